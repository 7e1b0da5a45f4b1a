"""Static, mirror and priority annotations of pod sandboxes, called marks.

The author of a pod controls its annotations, unless a kubelet wrote them. A mark that protects a pod from eviction is
used only if its author is trusted; a malformed mark is ignored. The shutdown planner uses all well-formed marks, since
they only affect the stop order and exempt no pod.
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
    """Marks read from annotations; ``None`` for an absent or malformed mark.

    Attributes:
        malformed: a sentence for each malformed mark.
    """

    static: bool | None = None
    mirror: bool = False
    priority: int | None = None
    malformed: tuple[str, ...] = ()


def read_marks(annotations: Mapping[str, str]) -> Marks:
    """Return the marks in the annotations of a sandbox.

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
    """Return whether a pod with this config source is static; ``None`` for an unknown source."""
    return {"file": True, "http": True, "api": False}.get(source or "")


def _priority(text: str) -> int | None:
    try:
        priority = int(text) if len(text) <= 11 and text.isascii() else None
    except ValueError:
        return None
    # The test for ``None`` is first: ``in`` on a range compares a value that is not an integer with every element.
    return priority if priority is not None and priority in _PRIORITIES else None
