"""Reader of bbolt databases, such as those of containerd's snapshotters.

The owner process holds the lock of its database, so the reader cannot acquire that lock. The owner never changes the
pages of the newest transaction: a commit writes free pages, then one of the two meta pages. A reading is therefore
consistent if the newest transaction is the same before and after the reading; an inconsistent reading is repeated.

No maintained Python package reads the format; one third-party port is abandoned.

Source: bbolt ``page.go``, ``meta.go``, ``bucket.go``: little-endian, page header of 16 bytes, elements of 16 bytes.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Final

from nodeagent.errors import ObservationError
from nodeagent.record import Record

if TYPE_CHECKING:
    from collections.abc import Iterator

_MAGIC: Final = 0xED0CDAED
_VERSION: Final = 2
_PAGE: Final = struct.Struct("<QHHI")
_META: Final = struct.Struct("<IIIIQQQQQQ")
_LEAF: Final = struct.Struct("<IIII")
_BRANCH: Final = struct.Struct("<IIQ")
_BUCKET: Final = struct.Struct("<QQ")
_BRANCH_PAGE, _LEAF_PAGE = 0x01, 0x02
_IS_BUCKET: Final = 0x01
_MAX_DEPTH: Final = 32
_ATTEMPTS: Final = 5

Tree = dict[bytes, "bytes | Tree"]
"""A bucket: values and nested buckets by key."""


class _Meta(Record):
    page_bytes: int
    root: int
    transaction: int


def read_bolt(path: str, *names: bytes) -> Tree:
    """Return the bucket with the path ``names``, including nested buckets; empty if the bucket does not exist.

    Raises:
        ObservationError: the file cannot be read, is no bbolt database, or changed during every attempt.
    """
    try:
        for _ in range(_ATTEMPTS):
            with Path(path).open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                before = _newest(data)
                found = _try_read(data, before, names)
                if found is not None and _newest(data) == before:
                    return found
    except OSError as error:
        raise ObservationError(f"cannot read {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise ObservationError(f"cannot read {path}: {error}") from error
    raise ObservationError(f"cannot read {path}: it changed during {_ATTEMPTS} readings, or is damaged")


def _try_read(data: mmap.mmap, meta: _Meta, names: tuple[bytes, ...]) -> Tree | None:
    """Return the bucket with the path ``names``; ``None`` if its pages are inconsistent."""
    try:
        return _bucket(data, meta, names)
    except (struct.error, ValueError, RecursionError):
        return None


def _newest(data: mmap.mmap) -> _Meta:
    """Return the valid meta page of the newest transaction."""
    first = _meta(data, _PAGE.size)
    sizes = {first.page_bytes} if first is not None else {4096, 8192, 16384, 65536}
    second = (_meta(data, size + _PAGE.size) for size in sorted(sizes))
    found = [each for each in (first, *second) if each is not None]
    if not found:
        raise ValueError("no bbolt database")
    return max(found, key=lambda each: each.transaction)


def _meta(data: mmap.mmap, offset: int) -> _Meta | None:
    if len(data) < offset + _META.size:
        return None
    magic, version, page_bytes, _, root, _, _, _, transaction, checksum = _META.unpack_from(data, offset)
    if magic != _MAGIC or version != _VERSION or _fnv(data[offset : offset + _META.size - 8]) != checksum:
        return None
    return _Meta(page_bytes, root, transaction)


def _fnv(content: bytes) -> int:
    """Return the 64-bit FNV-1a hash of ``content``."""
    value = 0xCBF29CE484222325
    for byte in content:
        value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return value


def _bucket(data: mmap.mmap, meta: _Meta, names: tuple[bytes, ...]) -> Tree:
    items = _items(data, meta, meta.root, 0)
    for name in names:
        value = next((value for flags, key, value in items if key == name and flags & _IS_BUCKET), None)
        if value is None:
            return {}
        items = _bucket_items(data, meta, value, 0)
    return _tree(data, meta, items, 0)


def _tree(data: mmap.mmap, meta: _Meta, items: Iterator[tuple[int, bytes, bytes]], depth: int) -> Tree:
    if depth > _MAX_DEPTH:
        raise ValueError("nested too deeply")
    return {
        key: _tree(data, meta, _bucket_items(data, meta, value, depth), depth + 1) if flags & _IS_BUCKET else value
        for flags, key, value in items
    }


def _bucket_items(data: mmap.mmap, meta: _Meta, value: bytes, depth: int) -> Iterator[tuple[int, bytes, bytes]]:
    """Yield the elements of a nested bucket; a small bucket is stored inside its value."""
    root, _ = _BUCKET.unpack_from(value)
    return _elements(value, _BUCKET.size, data, meta, depth) if root == 0 else _items(data, meta, root, depth)


def _items(data: mmap.mmap, meta: _Meta, page: int, depth: int) -> Iterator[tuple[int, bytes, bytes]]:
    return _elements(data, page * meta.page_bytes, data, meta, depth)


def _elements(
    within: mmap.mmap | bytes, offset: int, data: mmap.mmap, meta: _Meta, depth: int
) -> Iterator[tuple[int, bytes, bytes]]:
    """Yield flags, key and value of every element of a page and of the pages below it."""
    if depth > _MAX_DEPTH:
        raise ValueError("pages nested too deeply")
    _, flags, count, _ = _PAGE.unpack_from(within, offset)
    start = offset + _PAGE.size
    if flags == _LEAF_PAGE:
        for index in range(count):
            at = start + index * _LEAF.size
            kind, position, key_bytes, value_bytes = _LEAF.unpack_from(within, at)
            key = at + position
            if key + key_bytes + value_bytes > len(within):
                raise ValueError("element beyond the end")
            middle = key + key_bytes
            yield kind, bytes(within[key:middle]), bytes(within[middle : middle + value_bytes])
    elif flags == _BRANCH_PAGE:
        for index in range(count):
            _, _, page = _BRANCH.unpack_from(within, start + index * _BRANCH.size)
            yield from _items(data, meta, page, depth + 1)
    else:
        raise ValueError(f"page of unknown kind {flags}")
