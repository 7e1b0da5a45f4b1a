"""Marks of a pod in the annotations of its sandbox: static, mirror and priority.

An annotation is text of the pod's author unless a kubelet wrote it. A mark that protects a pod from eviction counts
only where the author is trusted; a malformed one counts as nothing. A shutdown, which exempts no pod, uses them all for
its order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from nodeagent.model.workload import ANNOTATION_SOURCE

if TYPE_CHECKING:
    from collections.abc import Mapping

ANNOTATION_MIRROR: Final = "kubernetes.io/config.mirror"
ANNOTATION_HASH: Final = "kubernetes.io/config.hash"
ANNOTATION_PRIORITY: Final = "nodeagent.dev/priority"
_PRIORITIES: Final = range(-(2**31), 2**31)
_SHOWN: Final = 40


class Marks(NamedTuple):
    """Marks in annotations; ``None`` for one that is absent or malformed.

    Attributes:
        malformed: a sentence for each malformed mark.
    """

    static: bool | None = None
    mirror: bool = False
    priority: int | None = None
    malformed: tuple[str, ...] = ()


def read_marks(annotations: Mapping[str, str]) -> Marks:
    """Return the marks in annotations.

    Source: kubelet ``config.source`` (``api``, ``file`` or ``http``) and ``config.mirror``.
    """
    malformed = []
    source, text = annotations.get(ANNOTATION_SOURCE), annotations.get(ANNOTATION_PRIORITY)
    static = static_by_source(source)
    if source is not None and static is None:
        malformed.append(f"annotation {ANNOTATION_SOURCE} is {source[:_SHOWN]!r}, not api, file or http")
    priority = None if text is None else _priority(text)
    if text is not None and priority is None:
        malformed.append(f"annotation {ANNOTATION_PRIORITY} is {text[:_SHOWN]!r}, not a 32-bit number")
    return Marks(static, ANNOTATION_MIRROR in annotations, priority, tuple(malformed))


def static_by_source(source: str | None) -> bool | None:
    """Return whether a pod of this source is static; ``None`` without a known source."""
    return {"file": True, "http": True, "api": False}.get(source or "")


def _priority(text: str) -> int | None:
    try:
        priority = int(text) if len(text) <= 11 and text.isascii() else None
    except ValueError:
        return None
    # A range searches a value other than an integer one by one.
    return priority if priority is not None and priority in _PRIORITIES else None
