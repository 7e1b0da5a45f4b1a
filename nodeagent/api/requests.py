"""Requests of the control API as typed structs, with fields in the path, the query or a JSON body."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeVar

import msgspec

from nodeagent.errors import UsageError

LONGEST_TEXT: Final = 4096
"""Maximum length of a text in a request, in characters."""
TEXT_FORM: Final = f"at most {LONGEST_TEXT} characters, all printable"


def is_text(value: str) -> bool:
    """Return whether a text is accepted in a request; it may be empty."""
    return len(value) <= LONGEST_TEXT and value.isprintable()


MOST_PATTERNS: Final = 64


def parse_patterns(text: str, subject: str = "only") -> tuple[str, ...]:
    """Return the image patterns in the field ``only``, in which commas separate them: no image name has a comma.

    ``subject`` is the name of the field, option or argument in an error.

    Raises:
        UsageError: a pattern is empty, or the text has too many patterns, is too long or unprintable.
    """
    if not is_text(text):
        raise UsageError(f"{subject}: {TEXT_FORM}; nothing was removed")
    patterns = tuple(each.strip() for each in text.split(","))
    if "" in patterns:
        raise UsageError(
            "the name of an image is empty; nothing was removed; give a name, an id, a digest or a name with *"
        )
    if len(patterns) > MOST_PATTERNS:
        raise UsageError(f"{subject}: {len(patterns)} patterns, at most {MOST_PATTERNS}; nothing was removed; use *")
    return patterns


class Empty(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request without fields."""


class PlanRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Fields of ``Plan``.

    Attributes:
        scope: ``images``, ``containers`` or ``all``.
        lasts_seconds: validity of the saved plan in seconds; 0 for a preview.
        only: patterns of the images to remove, see ``parse_patterns``; ``None`` for a pass without a selection. The
            plan is a preview: the control API removes no selected images.
    """

    scope: str = ""
    lasts_seconds: float = 0.0
    only: str | None = None


class HistoryRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Fields of ``History``.

    Attributes:
        seconds: maximum age of a pass; 0 for no limit.
        image: only passes with a decision on this image; empty for all passes.
        limit: maximum number of passes; 0 for the default.
        quiet: whether to include passes without removals.
    """

    seconds: float = 0.0
    image: str = ""
    limit: int = 0
    quiet: bool = False


class TrendRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Fields of ``Trend``.

    Attributes:
        resource: name of a resource or its beginning; empty for all.
        seconds: length of the record; 0 for a day.
    """

    resource: str = ""
    seconds: float = 0.0


class ExplainRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Fields of ``Explain``; ``name`` is a name, digest or id."""

    name: str = ""


class DiskUsageRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Fields of ``DiskUsage``; directories are measured for ``within_seconds`` at most."""

    within_seconds: float = 20.0


class LeaksRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Fields of ``Leaks``.

    Attributes:
        minimum_age_seconds: age below which an item is kept.
        rooted: whether to include items referenced only by containerd.io/gc.root.
        include: leases to delete, separated by commas; ``leases`` for all without expiry.
    """

    minimum_age_seconds: float = 0.0
    rooted: bool = False
    include: str = ""


class EvictionPreviewRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Fields of ``EvictionPreview``; ``simulate`` are readings ``SIGNAL=AMOUNT``, separated by commas."""

    simulate: str = ""


class ShutdownStatusRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Fields of ``ShutdownStatus``; ``limit`` is the maximum number of past node stops."""

    limit: int = 0


class AddHoldRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Fields of ``AddHold``.

    Attributes:
        image: an image, a pattern or a digest; empty for all images.
        seconds: duration of the hold.
        why: reason shown with the hold.
        by: user for whom root adds the hold, such as the user of sudo; rejected if the caller is not root.
    """

    image: str = ""
    seconds: float = 0.0
    why: str = ""
    by: str = ""


class RemoveHoldRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Fields of ``RemoveHold``."""

    id: str = ""


class PauseRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Fields of ``Pause``.

    Attributes:
        seconds: duration of the pause; required.
        why: reason shown with the pause.
    """

    seconds: float = 0.0
    why: str = ""


class TriggerRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Fields of ``Trigger``.

    Attributes:
        loop: ``containers``, ``images`` or ``eviction``.
        wait: whether to respond after the end of the run instead of immediately.
    """

    loop: str = ""
    wait: bool = False


class UndoRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Fields of ``Undo``; ``pass_id`` is a pass id or a prefix of a pass id, empty for the newest pass."""

    pass_id: str = ""


class ApplyRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Fields of ``Apply``.

    Attributes:
        scope: ``images``, ``containers`` or ``all``; empty with a saved plan.
        plan: text of a saved plan.
        rounds: maximum number of rounds of planning and removing; 0 for one round.
        no_dry_run: whether the pass removes although the configuration sets ``dry_run``.
    """

    scope: str = ""
    plan: str = ""
    rounds: int = 0
    no_dry_run: bool = False


REQUESTS: dict[str, type[msgspec.Struct]] = {
    "Plan": PlanRequest,
    "History": HistoryRequest,
    "Explain": ExplainRequest,
    "Trend": TrendRequest,
    "DiskUsage": DiskUsageRequest,
    "Leaks": LeaksRequest,
    "EvictionPreview": EvictionPreviewRequest,
    "ShutdownStatus": ShutdownStatusRequest,
    "AddHold": AddHoldRequest,
    "RemoveHold": RemoveHoldRequest,
    "Pause": PauseRequest,
    "Trigger": TriggerRequest,
    "Undo": UndoRequest,
    "Apply": ApplyRequest,
}
"""Request types by operation; an operation without an entry has no fields."""


def request_type(name: str) -> type[msgspec.Struct]:
    """Return the request type of an operation."""
    return REQUESTS.get(name, Empty)


R = TypeVar("R", bound=msgspec.Struct)


def parse_request(kind: type[R], texts: Mapping[str, str], body: bytes) -> R:
    """Return a request from path variables, query parameters and a JSON body.

    Raises:
        UsageError: a field is unknown or has a wrong type, the body is not a JSON object, or a field occurs twice.
    """
    try:
        fields: Any = msgspec.json.decode(body) if body.strip() else {}
        if not isinstance(fields, dict):
            raise UsageError("the body must be a JSON object")
        if both := sorted(fields.keys() & texts.keys()):
            raise UsageError(f"{both[0]}: given in the body and in the URL")
        types = {each.name: each.type for each in msgspec.structs.fields(kind)}
        converted = {
            name: msgspec.convert(text, types[name], strict=False) if name in types else text
            for name, text in texts.items()
        }
        return msgspec.convert({**fields, **converted}, kind)
    except msgspec.ValidationError as error:
        raise UsageError(f"invalid request: {error}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"the body is not JSON: {error}") from error
