"""Manifest of an installation: the list of its files; uninstalling removes no other files.

The manifest is a JSON file in the prefix. An installation writes an incomplete manifest before the first file is
placed, and the complete manifest at its end, so that an interrupted installation can be repeated or removed.

The manifest determines which files root removes, so it is verified: only its owner may have write access, paths of the
environment must be inside the prefix, and files outside the prefix are removed only at known paths of an installation.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final

from nodeagent import __version__
from nodeagent.errors import InstallError
from nodeagent.files import replace_file
from nodeagent.parsing import parse_json

if TYPE_CHECKING:
    from collections.abc import Mapping

NAME: Final = "nodeagent-manifest.json"
_FORMAT: Final = 1
_MAX_BYTES: Final = 16 << 20
_WRITABLE_BY_OTHERS: Final = stat.S_IWGRP | stat.S_IWOTH


@dataclass(frozen=True, slots=True)  # not a Record: installation imports only the standard library
class Manifest:
    """The files of one installation.

    Attributes:
        complete: whether the installation finished.
        environment: files and links of the virtual environment, relative to the prefix.
        files: files placed outside the prefix with their possible fingerprints: during an upgrade the former and the
            new fingerprint.
    """

    complete: bool = False
    environment: frozenset[str] = frozenset()
    files: Mapping[Path, frozenset[str]] = field(default_factory=dict)


def fingerprint(path: Path) -> str | None:
    """Return the fingerprint of a file, without following a link; ``None`` if the path does not exist.

    ``sha256:HEX`` for a regular file, ``link:TARGET`` for a symbolic link, ``other`` for any other type.

    Raises:
        OSError: the file cannot be read.
    """
    try:
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode):
            return link_fingerprint(str(path.readlink()))
        return content_fingerprint(path.read_bytes()) if stat.S_ISREG(mode) else "other"
    except (FileNotFoundError, NotADirectoryError):
        return None


def content_fingerprint(content: bytes) -> str:
    """Return the fingerprint of a regular file with this content."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def link_fingerprint(target: str) -> str:
    """Return the fingerprint of a symbolic link with this target."""
    return f"link:{target}"


def read_manifest(directory: Path) -> Manifest | None:
    """Return the manifest in a prefix; ``None`` without a manifest.

    Raises:
        InstallError: the manifest cannot be read, other users have write access, or it lists impossible paths.
    """
    path = directory / NAME
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise InstallError(f"cannot read {path}: {error.strerror or error}; remove it and run install again") from error
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if (
            not stat.S_ISREG(found.st_mode)
            or found.st_uid not in {0, os.geteuid()}
            or found.st_mode & _WRITABLE_BY_OTHERS
        ):
            raise InstallError(
                f"{path} is not used: writable by other users than root; check its content, then "
                f"chown root {path}; chmod 0644 {path}"
            )
        try:
            return parse(file.read(_MAX_BYTES))
        except (OSError, ValueError) as error:
            raise InstallError(
                f"{path} is not valid: {error}; nothing was changed; if you remove it, the installation is recognised "
                "by its content"
            ) from error


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Write the manifest into a prefix atomically.

    Raises:
        InstallError: the manifest cannot be written.
    """
    path = directory / NAME
    document = {
        "format": _FORMAT,
        "version": __version__,
        "complete": manifest.complete,
        "environment": sorted(manifest.environment),
        "files": {str(each): sorted(manifest.files[each]) for each in sorted(manifest.files)},
    }
    try:
        replace_file(path, json.dumps(document, indent=1) + "\n", mode=0o644)
    except OSError as error:
        raise InstallError(f"cannot write {path}: {error.strerror or error}") from error


def parse(text: bytes) -> Manifest:
    """Return the manifest in a JSON document.

    Raises:
        ValueError: the document is malformed, of another format, or lists a path that no installation has.
    """
    document = parse_json(text)
    if not isinstance(document, dict):
        raise ValueError("not an object")  # noqa: TRY004 - the content is wrong, not an argument
    if document.get("format") != _FORMAT:
        raise ValueError(f"format {document.get('format')!r}: this version reads format {_FORMAT}")
    complete, environment, files = (document.get(key) for key in ("complete", "environment", "files"))
    if not isinstance(complete, bool) or not isinstance(environment, list) or not isinstance(files, dict):
        raise ValueError("complete, environment or files is missing")  # noqa: TRY004 - the content is wrong, not an argument
    for each in environment:
        if not isinstance(each, str) or not is_inside(each):
            raise ValueError(f"environment: {each!r} is not a path inside the prefix")
    for name, fingerprints in files.items():
        if not name.startswith("/") or not is_inside(name[1:]):
            raise ValueError(f"files: {name!r} is not an absolute, normal path")
        if not isinstance(fingerprints, list) or not all(isinstance(each, str) for each in fingerprints):
            raise ValueError(f"files: {name!r} has no fingerprints")
    return Manifest(complete, frozenset(environment), {Path(name): frozenset(values) for name, values in files.items()})


def is_inside(name: str) -> bool:
    """Return whether a path is relative and normal: without ``..`` and empty parts."""
    pure = PurePosixPath(name)
    return (
        bool(pure.parts)
        and str(pure) == name
        and not pure.is_absolute()
        and ".." not in pure.parts
        and "\0" not in name
    )
