"""Last pods received from the API server, stored for a shutdown or a start of the agent without a network."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Final

import msgspec

from nodeagent.errors import StoreError
from nodeagent.files import open_regular, replace_file
from nodeagent.model.pods import PodSpec

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

FILE_NAME: Final = "api-pods.json"
MAX_BYTES: Final = 8 << 20
_FORMAT: Final = 1


class StoredPods(msgspec.Struct, frozen=True, kw_only=True):
    """Stored pods of a node.

    Attributes:
        version: version of the file format.
        node: name of the node.
        at: time of the last response of the API server, aware UTC.
    """

    version: int
    node: str
    at: datetime
    pods: tuple[PodSpec, ...]


def write_watched_pods(directory: Path, node: str, pods: Iterable[PodSpec], at: datetime) -> None:
    """Write the pods to the file; blocks.

    Raises:
        StoreError: the file cannot be written, or would exceed ``MAX_BYTES``; the previous file is kept.
    """
    path = directory / FILE_NAME
    text = msgspec.json.encode(StoredPods(version=_FORMAT, node=node, at=at, pods=tuple(pods)))
    if len(text) > MAX_BYTES:
        raise StoreError(f"cannot write {path}: more than {MAX_BYTES} bytes")
    try:
        directory.mkdir(mode=0o750, parents=True, exist_ok=True)
        replace_file(path, text.decode())
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror or error}") from error


def read_watched_pods(directory: Path, node: str) -> StoredPods | None:
    """Return the stored pods of a node; ``None`` if no usable file of the node exists. Blocks.

    Raises:
        StoreError: the file cannot be read, exceeds ``MAX_BYTES`` or is malformed.
    """
    path = directory / FILE_NAME
    try:
        with open_regular(path) as file:
            text = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror or error}") from error
    if len(text) > MAX_BYTES:
        raise StoreError(f"{path}: more than {MAX_BYTES} bytes; not used")
    try:
        found = msgspec.json.decode(text, type=StoredPods)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise StoreError(f"{path}: malformed; not used") from error
    return found if found.version == _FORMAT and found.node == node and found.at.tzinfo is not None else None
