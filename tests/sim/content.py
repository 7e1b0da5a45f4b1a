"""Image content: layers, and manifests, configs and indexes with the exact bytes of a registry."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

from nodeagent.record import Record

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

OCI_MANIFEST: Final = "application/vnd.oci.image.manifest.v1+json"
OCI_INDEX: Final = "application/vnd.oci.image.index.v1+json"
DOCKER_MANIFEST: Final = "application/vnd.docker.distribution.manifest.v2+json"
DOCKER_LIST: Final = "application/vnd.docker.distribution.manifest.list.v2+json"
_OCI_CONFIG: Final = "application/vnd.oci.image.config.v1+json"
_OCI_LAYER: Final = "application/vnd.oci.image.layer.v1.tar+gzip"
_DOCKER_CONFIG: Final = "application/vnd.docker.container.image.v1+json"
_DOCKER_LAYER: Final = "application/vnd.docker.image.rootfs.diff.tar.gzip"
_EMPTY: Final = b"{}"
_BYTES_PER_FILE: Final = 48 * 1024

Document = dict[str, object]


def digest(data: bytes) -> str:
    """Return the SHA-256 digest of the data, in the form ``sha256:...``."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


@dataclass(frozen=True)
class Layer:
    """Image layer, identified by name and size.

    Attributes:
        name: any text.
        size_bytes: unpacked size.
        compressed_bytes: size of the compressed blob; 0 selects two fifths of ``size_bytes``.
        inodes: number of files and directories; 0 selects the average of distribution packages.
    """

    name: str
    size_bytes: int
    compressed_bytes: int = 0
    inodes: int = 0

    @cached_property
    def diff_id(self) -> str:
        """Digest of the uncompressed layer archive."""
        return digest(f"diff {self.name} {self.size_bytes}".encode())

    @cached_property
    def blob_digest(self) -> str:
        """Digest of the compressed layer archive."""
        return digest(f"blob {self.name} {self.size_bytes}".encode())

    @property
    def blob_bytes(self) -> int:
        """Size of the compressed layer archive."""
        return self.compressed_bytes or max(1, self.size_bytes * 2 // 5)

    @property
    def inode_count(self) -> int:
        """Number of inodes that the unpacked layer uses."""
        return self.inodes or 1 + self.size_bytes // _BYTES_PER_FILE


class Descriptor(Record):
    """Descriptor of a blob. Source: OCI image specification, "Content Descriptors"."""

    digest: str
    size_bytes: int
    media_type: str


class JsonBlob(Record):
    """JSON document of an image, and the descriptors in it."""

    descriptor: Descriptor
    data: bytes
    children: tuple[Descriptor, ...] = ()


class BuiltImage(Record):
    """Documents of an image or artifact in a registry.

    Attributes:
        target: target of the image name: a manifest, or an index of several manifests.
        manifest: manifest of this platform.
        config: config of the manifest; the digest of an image's config is CRI's image id.
        chain_ids: snapshot key of each layer, bottom first; empty for an artifact.
    """

    target: JsonBlob
    manifest: JsonBlob
    config: JsonBlob
    chain_ids: tuple[str, ...]

    @property
    def documents(self) -> tuple[JsonBlob, ...]:
        """Indexes, manifests and configs of the image, without duplicates."""
        return tuple({blob.descriptor.digest: blob for blob in (self.target, self.manifest, self.config)}.values())


def chain_ids(diff_ids: Iterable[str]) -> tuple[str, ...]:
    """Return the chain id of each layer, bottom first.

    Source: OCI image specification, "Layer ChainID".
    """
    chain: list[str] = []
    for diff_id in diff_ids:
        chain.append(digest(f"{chain[-1]} {diff_id}".encode()) if chain else diff_id)
    return tuple(chain)


def build_image(
    layers: Sequence[Layer],
    *,
    variant: str = "",
    index: bool = False,
    docker: bool = False,
    labels: Mapping[str, str] | None = None,
) -> BuiltImage:
    """Return an image of these layers for linux/amd64.

    Args:
        layers: layers of the image, bottom first.
        variant: text that distinguishes images of equal layers.
        index: whether the target is an index with a second platform, whose manifest is absent, as on a real node.
        docker: whether to use Docker's media types.
        labels: labels in the config, besides the label ``variant``.
    """
    config = _document(
        {
            "architecture": "amd64",
            "os": "linux",
            "created": "2026-01-01T00:00:00Z",
            "config": {
                "Env": ["PATH=/usr/bin:/bin"],
                "Cmd": ["/bin/app"],
                "Labels": {"variant": variant, **(labels or {})},
            },
            "rootfs": {"type": "layers", "diff_ids": [layer.diff_id for layer in layers]},
            "history": [{"created_by": layer.name} for layer in layers],
        },
        _DOCKER_CONFIG if docker else _OCI_CONFIG,
    )
    layer_type = _DOCKER_LAYER if docker else _OCI_LAYER
    stacked = tuple(Descriptor(layer.blob_digest, layer.blob_bytes, layer_type) for layer in layers)
    manifest = _manifest(config.descriptor, stacked, DOCKER_MANIFEST if docker else OCI_MANIFEST)
    target = _index(manifest.descriptor, DOCKER_LIST if docker else OCI_INDEX) if index else manifest
    return BuiltImage(target, manifest, config, chain_ids(layer.diff_id for layer in layers))


def build_artifact(files: Sequence[Layer], artifact_type: str) -> BuiltImage:
    """Return an OCI artifact: a manifest with an empty config, never unpacked by a runtime."""
    config = JsonBlob(Descriptor(digest(_EMPTY), len(_EMPTY), "application/vnd.oci.empty.v1+json"), _EMPTY)
    stored = tuple(Descriptor(file.blob_digest, file.blob_bytes, "application/octet-stream") for file in files)
    manifest = _manifest(config.descriptor, stored, OCI_MANIFEST, artifact_type=artifact_type)
    return BuiltImage(manifest, manifest, config, ())


def _manifest(
    config: Descriptor, layers: tuple[Descriptor, ...], media_type: str, *, artifact_type: str = ""
) -> JsonBlob:
    document: Document = {
        "schemaVersion": 2,
        "mediaType": media_type,
        "config": _reference(config),
        "layers": [_reference(layer) for layer in layers],
    }
    if artifact_type:
        document["artifactType"] = artifact_type
    return _document(document, media_type, (config, *layers))


def _index(manifest: Descriptor, media_type: str) -> JsonBlob:
    other = Descriptor(digest(manifest.digest.encode() + b" arm64"), manifest.size_bytes, manifest.media_type)
    manifests = [
        {**_reference(manifest), "platform": {"architecture": "amd64", "os": "linux"}},
        {**_reference(other), "platform": {"architecture": "arm64", "os": "linux"}},
    ]
    document: Document = {"schemaVersion": 2, "mediaType": media_type, "manifests": manifests}
    return _document(document, media_type, (manifest, other))


def _reference(descriptor: Descriptor) -> Document:
    return {"mediaType": descriptor.media_type, "digest": descriptor.digest, "size": descriptor.size_bytes}


def _document(content: Mapping[str, object], media_type: str, children: tuple[Descriptor, ...] = ()) -> JsonBlob:
    data = json.dumps(content, separators=(",", ":")).encode()
    return JsonBlob(Descriptor(digest(data), len(data), media_type), data, children)
