"""Images of a simulated node: pulls, names, CRI's image records and removals."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final, Unpack

from nodeagent.gc.plan.image_users import normalise, repository_of
from nodeagent.model.runtime import PieceKind
from nodeagent.record import replace
from tests.sim.content import build_artifact, build_image
from tests.sim.disk import DiskProperties, SimDisk
from tests.sim.store import SNAPSHOTTER, Blob, ImageName, RefusedError, Snapshot, SnapshotKind, on_disk
from tests.sim.workload import SimImage

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime

    from tests.sim.content import BuiltImage, Layer

_PINNED: Final = "io.cri-containerd.pinned"
_SOURCE_LABEL: Final = "containerd.io/distribution.source."


class SimImages(SimDisk):
    """Images of a simulated containerd on the image filesystem; returned records are frozen.

    Attributes:
        images: CRI image records by image id.
    """

    def __init__(self, **disk: Unpack[DiskProperties]) -> None:
        """Create an empty image filesystem without images."""
        super().__init__(**disk)
        self.images: dict[str, SimImage] = {}
        self._image_of_target: dict[str, SimImage] = {}
        self._nameless: dict[str, SimImage] = {}
        self._names_of: dict[str, dict[str, None]] = {}

    def add_image(
        self,
        *tags: str,
        layers: Sequence[Layer],
        age_s: float = 0,
        pinned: bool = False,
        variant: str | None = None,
        digest_only: bool = False,
        index: bool = False,
        docker: bool = False,
        unpacked: bool = True,
        layer_blobs: bool = True,
        imported: bool = False,
        stop_signal: str = "",
        config_labels: Mapping[str, str] | None = None,
    ) -> SimImage:
        """Pull an image and return it; a tag of another image is moved to the pulled image.

        Args:
            tags: references in one or several repositories; at least one.
            layers: layers, bottom first; existing layers are shared.
            age_s: seconds since the pull.
            pinned: whether the runtime marks the image as pinned.
            variant: text that distinguishes images of the same layers; the first tag by default.
            digest_only: whether to omit the tags, as after a pull by digest or after the tag moved.
            index: whether the names refer to a multi-platform index.
            docker: whether to use Docker's media types.
            unpacked: whether the layers have snapshots.
            layer_blobs: whether the compressed layers are kept (containerd's ``discard_unpacked_layers`` removes them).
            imported: whether the image is imported from an archive and not pulled.
            stop_signal: stop signal in the configuration.
            config_labels: labels in the configuration, besides the label ``variant``.
        """
        at = self.now - timedelta(seconds=age_s)
        variant = tags[0] if variant is None else variant
        built = build_image(layers, variant=variant, index=index, docker=docker, labels=config_labels)
        for key, parent, layer in zip(built.chain_ids, ("", *built.chain_ids), layers, strict=False):
            if unpacked:
                size_bytes = on_disk(layer.size_bytes)
                committed = Snapshot(key, parent, SnapshotKind.COMMITTED, size_bytes, layer.inode_count, at)
                self.store.put_snapshot(committed)
            if layer_blobs:
                labels = {"containerd.io/uncompressed": layer.diff_id}
                self.store.put_blob(Blob(layer.blob_digest, layer.blob_bytes, at, labels))
        chain_id = built.chain_ids[-1] if unpacked and built.chain_ids else ""
        self._put_documents(built, chain_id, at, {} if imported else _source_labels(tags))
        config, target = built.config.descriptor, built.target.descriptor
        image = self.images.get(config.digest) or SimImage(
            config.digest,
            target.digest,
            chain_id,
            config.size_bytes + built.manifest.descriptor.size_bytes + sum(layer.blob_bytes for layer in layers),
            tuple(layer.diff_id for layer in layers),
        )
        image = replace(image, pinned=image.pinned or pinned, stop_signal=stop_signal)
        self.images[image.id] = self._image_of_target[target.digest] = image
        labels = {"io.cri-containerd.image": "managed"}
        if pinned:
            labels[_PINNED] = "pinned"
        digests = dict.fromkeys(f"{repository_of(tag)}@{target.digest}" for tag in tags)
        for name in (*(() if digest_only else tags), *digests, config.digest):
            self.set_name(ImageName(name, target, at, at, labels))
        return self.images[image.id]

    def update_pins(self) -> None:
        """Mark every image as pinned that has a name with the pin label; no image is unpinned."""
        pinned = {each.target.digest for each in self.store.names.values() if each.labels.get(_PINNED) == "pinned"}
        for digest in pinned & self._image_of_target.keys():
            image = replace(self._image_of_target[digest], pinned=True)
            self.images[image.id] = self._image_of_target[digest] = image

    def add_artifact(
        self, name: str, files: Sequence[Layer], *, artifact_type: str = "application/vnd.example.thing.v1"
    ) -> str:
        """Pull an OCI artifact, absent from CRI's image list; return its digest."""
        built = build_artifact(files, artifact_type)
        for file in files:
            self.store.put_blob(Blob(file.blob_digest, file.blob_bytes, self.now))
        self._put_documents(built, "", self.now, _source_labels((name,)))
        self.set_name(ImageName(name, built.target.descriptor, self.now, self.now))
        return built.target.descriptor.digest

    def resolve_image(self, reference: str) -> str | None:
        """Return the image id of a name, an id or a unique id prefix; ``None`` for an unknown image."""
        for image_id in (reference, f"sha256:{reference}"):
            if image_id in self.images:
                return image_id
        if not reference:
            return None
        for name in (reference, normalise(reference)):
            known = self.store.names.get(name)
            if known is not None:
                image = self._image_of_target.get(known.target.digest)
                return image.id if image is not None else None
        prefix = "sha256:" + reference.removeprefix("sha256:")
        found = [image_id for image_id in self.images if image_id.startswith(prefix)]
        return found[0] if len(found) == 1 else None

    def names_of(self, image_id: str) -> tuple[str, ...]:
        """Return all names of an image, in the order of creation."""
        return tuple(self._names_of.get(image_id, ()))

    def remove_image(self, reference: str) -> None:
        """Remove all names of an image, even if it is in use, and run the garbage collection once.

        Removing an unknown reference succeeds. The parent snapshots of a container are kept.

        Raises:
            RefusedError: the reference is empty.

        Source: containerd's CRI ``RemoveImage``.
        """
        if not reference:
            raise RefusedError("UNKNOWN", 'can not resolve "" locally: ambiguous digest string')
        image_id = self.resolve_image(reference)
        if image_id is None:
            return
        for name in self.names_of(image_id):
            self.delete_image_name(name)
        self.store.collect()

    def delete_image_name(self, name: str, *, sync: bool = False) -> None:
        """Delete one image name; with ``sync``, also run the garbage collection.

        Raises:
            RefusedError: the image name does not exist.

        Source: containerd's image service, ``Delete``.
        """
        known = self.store.delete_name(name)
        image = self._image_of_target.get(known.target.digest)
        if image is not None:
            self._delete_name(image.id, name)
        if sync:
            self.store.collect()
        self._changed()

    def _put_documents(self, built: BuiltImage, chain_id: str, at: datetime, sources: Mapping[str, str]) -> None:
        """Store the documents of an image with the labels of a pull and of containerd's garbage collector."""
        config_digest = built.config.descriptor.digest
        for document in built.documents:
            stored = self.store.blobs.get(document.descriptor.digest)
            if stored is not None:  # the image was pulled before, perhaps by other names
                for name, repositories in sources.items():
                    known = [each for each in stored.labels.get(name, "").split(",") if each]
                    stored.labels[name] = ",".join(dict.fromkeys((*known, *repositories.split(","))))
                continue
            labels = dict(sources)
            references = [(PieceKind.BLOB, child.digest) for child in document.children]
            for number, child in enumerate(document.children):
                key = "config" if child.digest == config_digest else f"l.{number - 1}"
                if document is not built.manifest:
                    key = f"m.{number}"
                labels[f"containerd.io/gc.ref.content.{key}"] = child.digest
            if document is built.config and chain_id:
                labels[f"containerd.io/gc.ref.snapshot.{SNAPSHOTTER}"] = chain_id
                references.append((PieceKind.SNAPSHOT, chain_id))
            descriptor = document.descriptor
            blob = Blob(descriptor.digest, descriptor.size_bytes, at, labels, tuple(references), document.data)
            self.store.put_blob(blob)

    def set_name(self, name: ImageName) -> None:
        """Add a name to an image, or move the name from another image, as a pull or a tag does."""
        before = self.store.names.get(name.name)
        self.store.set_name(name)
        if before is not None and before.target.digest != name.target.digest:
            image = self._image_of_target.get(before.target.digest)
            if image is not None:
                self._delete_name(image.id, name.name)
        image = self._image_of_target.get(name.target.digest) or self._revived(name.target.digest)
        if image is not None:
            self._names_of.setdefault(image.id, {})[name.name] = None
            self._update_names(image.id)
        self._changed()

    def _delete_name(self, image_id: str, name: str) -> None:
        names = self._names_of[image_id]
        names.pop(name, None)
        if names:
            self._update_names(image_id)
            return
        removed = self.images.pop(image_id)
        del self._names_of[image_id], self._image_of_target[removed.target_digest]
        self._nameless[removed.target_digest] = removed

    def _revived(self, target_digest: str) -> SimImage | None:
        """Return an image without names for a new name; ``None`` if its content was garbage-collected or is unknown."""
        image = self._nameless.pop(target_digest, None)
        if image is None or any(each not in self.store.blobs for each in (target_digest, image.id)):
            return None
        self.images[image.id] = self._image_of_target[target_digest] = image
        return image

    def _update_names(self, image_id: str) -> None:
        """Update the tags and digests in the record of an image."""
        names = [name for name in self._names_of[image_id] if not name.startswith("sha256:")]
        image = replace(
            self.images[image_id],
            repo_tags=tuple(sorted(name for name in names if "@" not in name)),
            repo_digests=tuple(sorted(name for name in names if "@" in name)),
        )
        self.images[image_id] = self._image_of_target[image.target_digest] = image


def _source_labels(references: Iterable[str]) -> dict[str, str]:
    """Return the distribution source labels of a pull by the given references."""
    repositories: dict[str, dict[str, None]] = {}
    for reference in references:
        host, _, path = repository_of(normalise(reference)).partition("/")
        repositories.setdefault(_SOURCE_LABEL + host.partition(":")[0], {})[path] = None
    return {label: ",".join(paths) for label, paths in repositories.items()}
