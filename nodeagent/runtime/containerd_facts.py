"""Facts recorded by containerd and not reported by its CRI service.

Containers created by other clients in the same namespace also use images, and containerd 1.6 does not report pinned
images through CRI. These containers and pins are read from containerd's own services.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodeagent.model import Container, ContainerState
from nodeagent.record import replace

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

    from nodeagent.model import Image, Sandbox, StorageGraph
    from nodeagent.runtime.containerd_records import StoredContainer, StoredImage

PINNED_LABEL = "io.cri-containerd.pinned"


def unlisted_containers(
    stored: Sequence[StoredContainer], containers: Iterable[Container], sandboxes: Iterable[Sandbox]
) -> tuple[Container, ...]:
    """Return the stored containers not listed by CRI, in unknown state and without creation time."""
    if not stored:
        return ()
    listed = {each.id for each in containers} | {each.id for each in sandboxes}
    return tuple(
        Container(
            id=each.id,
            name=each.id,
            sandbox_id="",
            state=ContainerState.UNKNOWN,
            image_name=each.image,
            labels=each.labels,
        )
        for each in stored
        if each.id not in listed
    )


def is_pinned(stored: StoredImage) -> bool:
    """Return whether a name's label pins its image. Source: containerd CRI plugin, ``labels.PinnedImageLabelKey``."""
    return stored.labels.get(PINNED_LABEL) == "pinned"


def with_pins(images: Sequence[Image], storage: StorageGraph) -> tuple[Image, ...]:
    """Return the images with pins from containerd's labels added; a pin on any of an image's names counts.

    The same tuple is returned if no pin is added.
    """
    pinned = {image_id for image_id, record in storage.records.items() if record.pinned}
    if not any(image.id in pinned and not image.pinned for image in images):
        return tuple(images)
    return tuple(replace(image, pinned=True) if image.id in pinned and not image.pinned else image for image in images)


def pull_times(images: Iterable[Image], storage: StorageGraph | None) -> dict[str, datetime | None]:
    """Return the time of the last pull by image id; ``None`` if the runtime does not report the time."""
    if storage is None:
        return dict.fromkeys([image.id for image in images])
    records = [(image.id, storage.records.get(image.id)) for image in images]
    return {image_id: record.pulled_at if record is not None else None for image_id, record in records}
