"""Write a root file system as a reproducible OCI image layout in a tar file.

Entries are sorted; the owner is root, the modification time is ``SOURCE_DATE_EPOCH``. File modes are 0755 or 0644, so
that neither the umask of the build nor a set-user-ID bit is in the image.

Source: OCI image specification, "Image Layout" and "Image Configuration".
"""

# ruff: noqa: INP001 - a script, run by its path

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import json
import os
import stat
import tarfile
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_COMPRESSION: Final = 9
_WRITABLE: Final = frozenset({"tmp", "var/tmp"})
"""Directories with the sticky bit; a build without root privileges does not extract that bit."""
_NOBODY: Final = "65534:65534"
"""User of the image. Manifests of the daemon select root, since only root has access to the runtime socket."""
_LAYER: Final = "application/vnd.oci.image.layer.v1.tar+gzip"
_CONFIG: Final = "application/vnd.oci.image.config.v1+json"
_MANIFEST: Final = "application/vnd.oci.image.manifest.v1+json"
_INDEX: Final = "application/vnd.oci.image.index.v1+json"


def main() -> None:
    """Write the image layout with the options of the command line."""
    parser = argparse.ArgumentParser(description="Write a root file system as an OCI image layout.")
    parser.add_argument("root", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--architecture", required=True)
    parser.add_argument("--version", required=True)
    parser.add_argument("--reference", required=True, help="name of the image for its import")
    options = parser.parse_args()
    epoch = int(os.environ["SOURCE_DATE_EPOCH"])
    blobs: dict[str, bytes] = {}
    layer, diff_id = write_layer(options.root, epoch)
    created = datetime.fromtimestamp(epoch, UTC).isoformat().replace("+00:00", "Z")
    config = {
        "created": created,
        "architecture": options.architecture,
        "os": "linux",
        "config": {
            "User": _NOBODY,
            "Env": ["PATH=/usr/bin:/bin", "LANG=C.UTF-8"],
            "Entrypoint": ["nodeagent"],
            "WorkingDir": "/",
            "Labels": {
                "org.opencontainers.image.title": "nodeagent",
                "org.opencontainers.image.version": options.version,
                "org.opencontainers.image.licenses": "Apache-2.0",
            },
        },
        "rootfs": {"type": "layers", "diff_ids": [diff_id]},
        "history": [{"created": created, "created_by": "nodeagent make image"}],
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": _MANIFEST,
        "config": _add(blobs, _CONFIG, _json(config)),
        "layers": [_add(blobs, _LAYER, layer)],
    }
    names = {
        "io.containerd.image.name": options.reference,
        "org.opencontainers.image.ref.name": options.reference.rpartition(":")[2],
    }
    platform = {"architecture": options.architecture, "os": "linux"}
    entry = {**_add(blobs, _MANIFEST, _json(manifest)), "platform": platform, "annotations": names}
    index = {"schemaVersion": 2, "mediaType": _INDEX, "manifests": [entry]}
    files = {"oci-layout": _json({"imageLayoutVersion": "1.0.0"}), "index.json": _json(index)}
    files |= {f"blobs/sha256/{name}": content for name, content in blobs.items()}
    write_layout(options.output, files, epoch)
    print(f"{options.output}: {entry['digest']}")  # noqa: T201 - the digest is the output of the build


def write_layer(root: Path, epoch: int) -> tuple[bytes, str]:
    """Return the gzip-compressed layer of a root file system, and the digest of the uncompressed tar file."""
    with tempfile.TemporaryFile() as plain:
        write_tar(plain, root, epoch)
        plain.seek(0)
        content = plain.read()
    return gzip.compress(content, _COMPRESSION, mtime=0), _digest(content)


def write_tar(output: BinaryIO, root: Path, epoch: int) -> None:
    """Write the files below ``root`` to a tar file, in sorted order.

    Raises:
        ValueError: a file is not a regular file, a directory or a symbolic link.
    """
    with tarfile.open(fileobj=output, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in _sorted_tree(root):
            status = path.lstat()
            entry = tarfile.TarInfo(str(path.relative_to(root)))
            entry.mtime = epoch
            entry.mode = 0o1777 if entry.name in _WRITABLE else _mode(status.st_mode)
            if stat.S_ISLNK(status.st_mode):
                entry.type, entry.linkname, entry.mode = tarfile.SYMTYPE, str(path.readlink()), 0o777
                tar.addfile(entry)
            elif stat.S_ISDIR(status.st_mode):
                entry.type = tarfile.DIRTYPE
                tar.addfile(entry)
            elif stat.S_ISREG(status.st_mode):
                entry.size = status.st_size
                with path.open("rb") as file:
                    tar.addfile(entry, file)
            else:
                raise ValueError(f"{path}: neither a regular file nor a directory nor a symbolic link")


def _sorted_tree(root: Path) -> Iterator[Path]:
    for path in sorted(root.iterdir(), key=lambda each: each.name.encode()):
        yield path
        if path.is_dir() and not path.is_symlink():
            yield from _sorted_tree(path)


def _mode(mode: int) -> int:
    return 0o755 if stat.S_ISDIR(mode) or mode & stat.S_IXUSR else 0o644


def write_layout(path: Path, files: dict[str, bytes], epoch: int) -> None:
    """Write the tar file of an image layout, replacing a former file atomically."""
    partial = path.with_name(path.name + ".partial")
    with tarfile.open(partial, "w", format=tarfile.USTAR_FORMAT) as tar:
        for name in ("blobs", "blobs/sha256"):
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode, entry.mtime = tarfile.DIRTYPE, 0o755, epoch
            tar.addfile(entry)
        for name, content in sorted(files.items()):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode, entry.mtime = len(content), 0o644, epoch
            tar.addfile(entry, io.BytesIO(content))
    partial.replace(path)


def _add(blobs: dict[str, bytes], media_type: str, content: bytes) -> dict[str, Any]:
    """Add a blob to the image layout; return its descriptor."""
    digest = _digest(content)
    blobs[digest.removeprefix("sha256:")] = content
    return {"mediaType": media_type, "digest": digest, "size": len(content)}


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _json(document: dict[str, Any]) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


if __name__ == "__main__":
    main()
