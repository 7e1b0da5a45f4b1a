"""Images named by the pods of this node, from lists other than the runtime's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodeagent.record import Record, field

if TYPE_CHECKING:
    from collections.abc import Mapping


class PodImages(Record):
    """Images of static manifests and of pods bound to this node, running or not.

    Attributes:
        named: image reference to the pods that name it, each with its source, such as
            ``shop/web (kubelet)``; sorted.
        error: reason that any image can be named by a pod: a configured list of pods has never been read, or lacks
            pods; empty normally.
        warnings: failed readings with their consequence, for display.
    """

    named: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    error: str = ""
    warnings: tuple[str, ...] = ()


NO_POD_IMAGES = PodImages()
"""No list of pods is configured."""
