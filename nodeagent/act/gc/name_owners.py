"""Names of images, and the images that own each name, from containerd's records and CRI's list."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodeagent.runtime.image_leases import ImageName

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from nodeagent.model import Image
    from nodeagent.runtime.containerd_records import StoredImage


def names_by_image(
    images: Collection[Image], stored: Mapping[str, tuple[StoredImage, bytes]]
) -> dict[str, tuple[ImageName, ...]]:
    """Return all names of each image, by image id: every name with the same target as a CRI name of the image.

    These include names that CRI cannot parse. Each remaining name would prevent the removal of the content.
    """
    by_target: dict[str, list[tuple[StoredImage, bytes]]] = {}
    for each in stored.values():
        by_target.setdefault(each[0].target, []).append(each)
    found = {}
    for image in images:
        targets = {stored[name][0].target for name in (*image.references, image.id) if name in stored}
        own = [each for target in sorted(targets) for each in by_target[target]]
        found[image.id] = tuple(ImageName(image.id, name, encoded) for name, encoded in own)
    return found


def owners_by_target(
    images: Iterable[Image], stored: Mapping[str, tuple[StoredImage, bytes]]
) -> dict[str, frozenset[str]]:
    """Return, by target digest, the ids of the images to which CRI attributes a name with that target."""
    owners: dict[str, set[str]] = {}
    for image in images:
        for name in (*image.references, image.id):
            if name in stored:
                owners.setdefault(stored[name][0].target, set()).add(image.id)
    for name, (record, _) in stored.items():
        if name.startswith("sha256:"):  # an image that CRI stores, but does not list yet
            owners.setdefault(record.target, set()).add(name)
    return {target: frozenset(each) for target, each in owners.items()}


def conflict(image_id: str, own: Sequence[ImageName], owners: Mapping[str, frozenset[str]]) -> str:
    """Return the reason to keep an image after one of its names was moved to another image; otherwise empty.

    CRI processes a moved tag with a delay, and attributes the tag to the old image until then. Names with the new
    target of the tag are names of the other image, which can be in use.
    """
    for each in own:
        others = owners.get(each.stored.target, frozenset()) - {image_id}
        if others:
            return f"{each.stored.name} refers to image {min(others)[:19]} as well, or was moved to it"
    return ""
