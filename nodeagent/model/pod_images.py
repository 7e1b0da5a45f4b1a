"""Images named by the pods of this node, from lists other than the runtime's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodeagent.record import Record, field

if TYPE_CHECKING:
    from collections.abc import Mapping


class PodImages(Record):
    """Images of static manifests and of pods bound to this node, running or not.

    Attributes:
        named: pods that name an image, by image reference, each pod with its source, such as ``shop/web (kubelet)``;
            sorted.
        error: cause of incomplete pod lists, because of which images missing in ``named`` may be in use; empty if the
            lists are complete.
        warnings: failed readings with their consequence, for display.
    """

    named: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    error: str = ""
    warnings: tuple[str, ...] = ()


NO_POD_IMAGES = PodImages()
"""Value for a node without a configured pod list."""
