"""Saved plans: encoding and comparison of plans that are applied later.

A saved plan is a JSON document: a list of items, each with its id, its decision and a digest of its state. To apply it,
the agent plans again under the policy in force, and removes the items that both plans remove and whose digest is
unchanged. The plan needs no signature, since a changed plan removes nothing that a pass without a plan would keep. All
other listed items are kept and reported as drift. The id of the plan is a digest of its content, which detects
accidental changes.
"""

from __future__ import annotations

import hashlib
import json
from base64 import b64decode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from nodeagent.gc.plan.policy import Scope
from nodeagent.model.decision import Decision, ItemKind, Plan, Verdict, sentence_of
from nodeagent.parsing import parse_json
from nodeagent.record import Record, equal_fields
from nodeagent.schemas import SchemaId
from nodeagent.units import format_time

if TYPE_CHECKING:
    from nodeagent.model.node import NodeSnapshot

SCHEMA: Final = SchemaId.SAVED_PLAN.value

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]
_Time = Annotated[datetime, Meta(tz=True)]
_SKEW: Final = timedelta(minutes=5)
"""Tolerated clock skew between saving and applying a plan."""
_CHANGED: Final = "it changed after the plan was saved: its names, its state or its references differ"


class SavedItem(Record):
    """Decision of a saved plan, with the fields needed to apply and compare plans.

    Attributes:
        digest: digest of the item's names, state and references, see ``item_digests``.
    """

    kind: ItemKind
    id: str
    name: str
    verdict: Verdict
    code: str
    sentence: str
    frees_bytes: int | None
    digest: str


class SavedPlan(Record):
    """A decoded saved plan.

    Attributes:
        id: digest of the document.
        made_at: creation time of the plan, aware UTC.
        expires_at: end of the plan's validity, aware UTC.
        node: name of the node on which the plan was created.
        items: all decisions; removals first, in order of execution.
    """

    id: str
    made_at: datetime
    expires_at: datetime
    node: str
    scope: Scope
    items: tuple[SavedItem, ...]

    @property
    def removals(self) -> tuple[SavedItem, ...]:
        """The items to remove, in order of execution."""
        return tuple(item for item in self.items if item.verdict is Verdict.REMOVE)


class Drift(Record):
    """An item of a saved plan that is no longer removable.

    Attributes:
        gone: whether the item no longer exists; otherwise it is kept.
        why: reason why the item is not removed, as text.
    """

    item: SavedItem
    gone: bool
    why: str


class _Reason(Struct):
    code: str
    details: dict[str, Any] = {}


class _Decision(Struct):
    kind: ItemKind
    id: str
    name: str
    verdict: Verdict
    reason: _Reason
    frees_bytes: int | None
    digest: str
    id_base64: str | UnsetType = UNSET

    def item(self) -> SavedItem:
        """Return the decision as an item; an id that is a file name in invalid UTF-8 is decoded from ``id_base64``."""
        encoded = self.id_base64
        item_id = self.id
        if isinstance(encoded, str):
            item_id = b64decode(encoded, validate=True).decode(errors="surrogateescape")
        code, sentence = self.reason.code, sentence_of(self.reason.code, self.reason.details)
        return SavedItem(**equal_fields(SavedItem, self, id=item_id, code=code, sentence=sentence))


class _Document(Struct):
    """Fields of a plan document that are decoded; the id covers all fields."""

    id: str
    made_at: _Time
    expires_at: _Time
    node: str
    scope: Scope
    decisions: list[_Decision]


def item_digests(snapshot: NodeSnapshot) -> dict[tuple[ItemKind, str], str]:
    """Return a digest of the names, the state and the references of each item, independent of time."""
    facts: Iterator[tuple[ItemKind, str, list[object]]] = chain(
        (
            (ItemKind.IMAGE, each.id, [sorted(each.repo_tags), sorted(each.repo_digests), each.pinned])
            for each in snapshot.images
        ),
        (
            (ItemKind.CONTAINER, each.id, [each.state.value, each.sandbox_id, each.image_ref])
            for each in snapshot.containers
        ),
        ((ItemKind.SANDBOX, each.id, [each.ready, each.uid, each.image]) for each in snapshot.sandboxes),
        ((ItemKind.POD_LOG_DIRECTORY, each.name, []) for each in snapshot.pod_log_directories),
        ((ItemKind.CONTAINER_LOG_LINK, each.name, []) for each in snapshot.dead_log_links),
    )
    return {(kind, item_id): _digest([kind.value, item_id, *rest]) for kind, item_id, rest in facts}


def plan_id(scope: Scope, snapshot: NodeSnapshot, plans: Sequence[Plan]) -> str:
    """Return the id of an unsaved plan: a digest of scope, time and removals."""
    removals = [(each.kind.value, each.id, each.reason.code.value) for plan in plans for each in plan.removals]
    return _digest([scope.value, snapshot.observed_at.isoformat(), removals])


def seal(body: Mapping[str, Json]) -> dict[str, Json]:
    """Return a plan document with schema and id."""
    content: dict[str, Json] = {"schema": SCHEMA, **body}
    return {"schema": SCHEMA, "id": _digest(content), **body}


def parse_plan(text: str) -> SavedPlan:
    """Return the plan in a document.

    Raises:
        ValueError: the text is not a plan, was changed after it was saved, or has an unsupported schema version.
    """
    document = _load(text)
    content = {key: value for key, value in document.items() if key != "id"}
    if document.get("id") != _digest(content):
        raise ValueError("changed since it was saved: the id does not match the content")
    try:
        decoded = msgspec.convert(document, _Document)
    except msgspec.ValidationError as error:
        raise ValueError(f"a field is missing or has the wrong type: {error}") from error
    if decoded.scope is Scope.LEAKS:
        raise ValueError("scope leaks cannot be saved as a plan")
    return SavedPlan(**equal_fields(SavedPlan, decoded, items=tuple(each.item() for each in decoded.decisions)))


def _load(text: str) -> dict[str, Json]:
    try:
        document = parse_json(text, parse_constant=_refuse_constant)
    except ValueError as error:
        raise ValueError(f"not JSON: {error}") from error
    if not isinstance(document, dict) or not str(document.get("schema", "")).startswith("nodeagent/plan/"):
        raise ValueError("not a plan of this agent")
    if document["schema"] != SCHEMA:
        raise ValueError(f"unknown schema {document['schema']!r}; this agent reads {SCHEMA}; create a new plan")
    return document


def _refuse_constant(name: str) -> Json:
    """Raise ``ValueError`` for NaN and infinities: they are not valid JSON, and NaN is not equal to itself."""
    raise ValueError(f"{name} is not a number")


def refusal_of(saved: SavedPlan, now: datetime, node: str) -> str:
    """Return the reason why a saved plan cannot be applied to a node now, as text; empty if it can be applied."""
    if now >= saved.expires_at:
        return f"the plan expired at {format_time(saved.expires_at)}; nothing was removed; create a new plan"
    if now + _SKEW < saved.made_at:
        made = format_time(saved.made_at)
        return f"the plan was made at {made}, which is in the future; nothing was removed, check the clock"
    if saved.node != node:
        return f"the plan is for node {saved.node}, this is {node}; nothing was removed"
    return ""


def unchanged_removals(saved: SavedPlan, snapshot: NodeSnapshot) -> frozenset[str]:
    """Return the ids of the removals of a saved plan whose items are the same in a snapshot."""
    digests = item_digests(snapshot)
    return frozenset(each.id for each in saved.removals if digests.get((each.kind, each.id)) == each.digest)


def find_drift(saved: SavedPlan, plans: Iterable[Plan], unchanged: frozenset[str]) -> tuple[Drift, ...]:
    """Return the removals of ``saved`` that are not carried out, each with the first reason.

    Args:
        saved: the saved plan.
        plans: the new plans under the policy in force, then the plans to carry out.
        unchanged: ids of the removals whose items are the same.
    """
    fresh: dict[tuple[ItemKind, str], list[Decision]] = {}
    for each in (decision for plan in plans for decision in plan.decisions):
        fresh.setdefault((each.kind, each.id), []).append(each)
    drift = []
    for item in saved.removals:
        decisions = fresh.get((item.kind, item.id), [])
        kept = [each for each in decisions if each.verdict is not Verdict.REMOVE]
        if not decisions:
            drift.append(Drift(item, gone=True, why="it no longer exists"))
        elif kept:
            planned_again = decisions[0].verdict is Verdict.REMOVE
            changed = planned_again and item.id not in unchanged
            drift.append(Drift(item, gone=False, why=_CHANGED if changed else kept[0].reason.sentence))
    return tuple(drift)


class Difference(Record):
    """Item with different decisions in two saved plans; ``None`` for a plan without the item."""

    before: SavedItem | None
    after: SavedItem | None


def compare(before: SavedPlan, after: SavedPlan) -> tuple[Difference, ...]:
    """Return the items whose verdict or reason code differs, with the removals of both plans first."""
    old = {(item.kind, item.id): item for item in before.items}
    new = {(item.kind, item.id): item for item in after.items}
    found = [
        Difference(old.get(key), new.get(key))
        for key in dict.fromkeys((*old, *new))
        if _status(old.get(key)) != _status(new.get(key))
    ]
    return tuple(sorted(found, key=lambda each: not (_is_removal(each.before) or _is_removal(each.after))))


def _status(item: SavedItem | None) -> tuple[Verdict, str] | None:
    return None if item is None else (item.verdict, item.code)


def _is_removal(item: SavedItem | None) -> bool:
    return item is not None and item.verdict is Verdict.REMOVE


def _digest(value: object) -> str:
    return "sha256:" + hashlib.sha256(_canonical(value)).hexdigest()


def _canonical(value: object) -> bytes:
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
