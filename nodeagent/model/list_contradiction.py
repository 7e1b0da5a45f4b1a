"""Contradictions between the lists of the runtime."""

from __future__ import annotations

from nodeagent.record import Record


class ListContradiction(Record):
    """One contradiction in an observation, confirmed by a second listing or by the status of an object.

    Attributes:
        detail: the objects and the evidence, for display.
        images_only: whether only the image list is wrong; otherwise pods and users of images are unknown as well.
    """

    detail: str
    images_only: bool = False
