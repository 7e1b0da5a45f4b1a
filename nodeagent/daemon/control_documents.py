"""Documents of the control API's own operations: pause, resume, trigger."""

from __future__ import annotations

from nodeagent.api.codec import Document, Time
from nodeagent.schemas import SchemaId


class Paused(Document, frozen=True, kw_only=True, tag=SchemaId.PAUSED.value):
    """Confirmation of a pause, with its end."""

    paused: bool = True
    until: Time


class Resumed(Document, frozen=True, kw_only=True, tag=SchemaId.RESUMED.value):
    """Confirmation of a resume; ``was_paused`` states whether a pause was in force."""

    paused: bool = False
    was_paused: bool


class Triggered(Document, frozen=True, kw_only=True, tag=SchemaId.TRIGGER.value):
    """Result of the trigger of a loop.

    Attributes:
        ended: whether its run is finished; ``result`` and ``detail`` are empty otherwise.
        dry_run: whether the run removed nothing; ``None`` if the configuration changed during the run.
    """

    loop: str
    ended: bool
    result: str
    detail: str
    dry_run: bool | None = None
