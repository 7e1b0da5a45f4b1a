"""Saved plans: encoding, verification and comparison of plans that are applied later.

A saved plan is a JSON document. Its id is a digest of its content, which identifies the plan but does not prove its
origin. Its signature (``mac``) is computed with a key readable only by root, and proves that this node's agent created
the plan; only a signed plan is applied. To apply a saved plan, the agent creates a new plan from the current state,
under the stricter of the saved and the current policy (``strictness.py``). Only items listed in the saved plan are
removed. Listed items that are no longer removable are kept and reported as drift.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from base64 import b64decode
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from nodeagent.parsing import parse_json
from nodeagent.plan.decision import ItemKind, Verdict, sentence_of
from nodeagent.plan.gc.image_origin import Irreplaceable
from nodeagent.plan.gc.image_protection import ProtectionPolicy, parse_rule
from nodeagent.plan.gc.policy import GCPolicy
from nodeagent.plan.gc.scope import Scope
from nodeagent.record import Record, replace
from nodeagent.schemas import SchemaId
from nodeagent.units import format_time

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from nodeagent.model import NodeSnapshot
    from nodeagent.plan.decision import Decision, Plan

SCHEMA: Final = SchemaId.SAVED_PLAN.value

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]
_T = TypeVar("_T")
_Time = Annotated[datetime, Meta(tz=True)]
_SKEW: Final = timedelta(minutes=5)
"""Tolerated clock skew between saving and applying a plan."""
_ADDED_SETTINGS: Final = frozenset(
    {"logs.period_s", "images.protection.irreplaceable", "images.protection.unreachable_registries"}
)
"""Settings missing in plans of version 0.1; their default applies."""


class SavedItem(Record):
    """Decision of a saved plan, with the fields needed to apply and compare plans."""

    kind: ItemKind
    id: str
    name: str
    verdict: Verdict
    code: str
    sentence: str
    frees_bytes: int | None


class SavedPlan(Record):
    """A decoded saved plan.

    Attributes:
        id: digest of the document.
        made_at: creation time of the plan, aware UTC.
        expires_at: end of the plan's validity, aware UTC.
        node: name of the node on which the plan was created.
        policy: policy with which the plan was created.
        items: all decisions; removals first, in order of execution.
    """

    id: str
    made_at: datetime
    expires_at: datetime
    node: str
    scope: Scope
    policy: GCPolicy
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
    id_base64: str | UnsetType = UNSET

    def item(self) -> SavedItem:
        """Return the decision as an item; an id that is a file name in invalid UTF-8 is decoded from ``id_base64``."""
        encoded = self.id_base64
        item_id = self.id
        if isinstance(encoded, str):
            item_id = b64decode(encoded, validate=True).decode(errors="surrogateescape")
        return SavedItem(
            self.kind,
            item_id,
            self.name,
            self.verdict,
            self.reason.code,
            sentence_of(self.reason.code, self.reason.details),
            self.frees_bytes,
        )


class _Document(Struct):
    """Fields of a plan document that are decoded; id and signature cover all fields."""

    id: str
    made_at: _Time
    expires_at: _Time
    node: str
    scope: Scope
    policy: dict[str, Any]
    decisions: list[_Decision]


class _Protection(Struct):
    rules: list[str]
    keep_last_n_tags_per_repository: int
    irreplaceable: Irreplaceable = Irreplaceable.LAST
    unreachable_registries: tuple[str, ...] = ()


def snapshot_digest(snapshot: NodeSnapshot) -> str:
    """Return a digest of the items in a snapshot, their states and references, independent of time."""
    parts: list[object] = [
        sorted((image.id, *image.repo_tags, *image.repo_digests, image.pinned) for image in snapshot.images),
        sorted((each.id, each.state.value, each.sandbox_id, each.image_ref) for each in snapshot.containers),
        sorted((each.id, each.ready, each.uid, each.image) for each in snapshot.sandboxes),
        sorted(each.name for each in snapshot.pod_log_directories),
        sorted(each.name for each in snapshot.dead_log_links),
        sorted(hold.id for hold in snapshot.holds),
        sorted(snapshot.pod_images.named),
    ]
    return _digest(parts)


def plan_id(scope: Scope, snapshot: NodeSnapshot, plans: Sequence[Plan]) -> str:
    """Return the id of an unsaved plan: a digest of scope, time and removals."""
    removals = [(each.kind.value, each.id, each.reason.code.value) for plan in plans for each in plan.removals]
    return _digest([scope.value, snapshot.observed_at.isoformat(), removals])


def seal(body: Mapping[str, Json], key: bytes | None) -> dict[str, Json]:
    """Return a plan document with schema, id and signature; without signature if ``key`` is ``None``."""
    content: dict[str, Json] = {"schema": SCHEMA, **body}
    identity = _digest(content)
    signed: dict[str, Json] = {"schema": SCHEMA, "id": identity}
    if key is not None:
        signed["mac"] = _mac({"id": identity, **content}, key)
    return {**signed, **body}


def unseal(text: str, key: bytes | None) -> SavedPlan:
    """Return the plan from a document to apply; ``key`` is this node's plan key, ``None`` if unavailable.

    Raises:
        ValueError: the text is not a plan, was changed after it was saved, was written by a different agent version, or
            was not signed with ``key``.
    """
    document = _load(text)
    mac = document.pop("mac", None)
    _check_id(document)
    if mac is None:
        raise ValueError(
            "the plan is not signed: the plan key was unavailable at its creation, or it was created by nodeagent 0.1; "
            "create a new plan"
        )
    if key is None:
        raise ValueError("this node has no plan key, so none of its plans can be verified; create a new plan")
    expected = _mac(document, key)
    if not isinstance(mac, str) or not hmac.compare_digest(mac.encode("utf-8", "replace"), expected.encode()):
        raise ValueError(
            "the signature does not match this node's plan key: the plan was changed, is from another node or "
            "state directory, or the key was replaced since; create a new plan"
        )
    return _decode(document)


def parse_plan(text: str) -> SavedPlan:
    """Return the plan from a document to print or compare; the signature is not verified.

    Raises:
        ValueError: the text is not a plan, was changed after it was saved, or has an unsupported schema version.
    """
    document = _load(text)
    document.pop("mac", None)
    _check_id(document)
    return _decode(document)


def _load(text: str) -> dict[str, Json]:
    try:
        document = parse_json(text, parse_constant=_refuse_constant)
    except ValueError as error:
        raise ValueError(f"not JSON: {error}") from error
    if not isinstance(document, dict) or not str(document.get("schema", "")).startswith("nodeagent/plan/"):
        raise ValueError("not a plan of this agent")
    if document["schema"] != SCHEMA:
        raise ValueError(f"unknown schema {document['schema']!r}; this agent reads {SCHEMA}")
    return document


def _refuse_constant(name: str) -> Json:
    """Raise ``ValueError`` for NaN and infinities: they are not valid JSON, and NaN is not equal to itself."""
    raise ValueError(f"{name} is not a number")


def _check_id(document: Mapping[str, Json]) -> None:
    content = {key: value for key, value in document.items() if key != "id"}
    if document.get("id") != _digest(content):
        raise ValueError("changed since it was saved: the id does not match the content")


def _decode(document: Mapping[str, Any]) -> SavedPlan:
    decoded = _convert(document, _Document)
    if decoded.scope is Scope.LEAKS:
        raise ValueError("scope leaks cannot be saved as a plan")
    return SavedPlan(
        id=decoded.id,
        made_at=decoded.made_at,
        expires_at=decoded.expires_at,
        node=decoded.node,
        scope=decoded.scope,
        policy=decode_policy(decoded.policy),
        items=tuple(each.item() for each in decoded.decisions),
    )


def _convert(value: object, kind: type[_T]) -> _T:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise ValueError(f"a field is missing or has the wrong type: {error}") from error


def encode_policy(policy: GCPolicy) -> dict[str, Any]:
    """Return a policy as JSON data for a saved plan."""
    document: dict[str, Any] = msgspec.to_builtins(policy)
    document["images"]["protection"]["rules"] = [rule.text for rule in policy.images.protection.rules]
    return document


def decode_policy(document: Mapping[str, Any]) -> GCPolicy:
    """Return the policy from JSON data of ``encode_policy``.

    Raises:
        ValueError: a setting is missing, unknown or of the wrong type. The default of a missing setting may be less
            strict than the value used by the plan, so it applies only to ``_ADDED_SETTINGS``.
    """
    plain = {name: section for name, section in document.items() if name != "images"}
    images = _convert(document.get("images"), dict[str, Any])
    protection = _convert(images.get("protection"), _Protection)
    without_rules = {name: value for name, value in images.items() if name != "protection"}
    policy = _convert({**plain, "images": without_rules}, GCPolicy)
    rules = ProtectionPolicy(
        tuple(map(parse_rule, protection.rules)),
        protection.keep_last_n_tags_per_repository,
        protection.irreplaceable,
        protection.unreachable_registries,
    )
    policy = replace(policy, images=replace(policy.images, protection=rules))
    present, expected = _keys(document), _keys(encode_policy(policy))
    odd = (present ^ expected) - (_ADDED_SETTINGS - present)
    if odd:
        raise ValueError(f"policy: missing or unknown: {', '.join(sorted(odd))}")
    return policy


def _keys(value: object, path: str = "") -> set[str]:
    """Return the dotted paths of all values in nested mappings."""
    if not isinstance(value, dict):
        return {path}
    return {path}.union(*(_keys(each, f"{path}.{key}" if path else str(key)) for key, each in value.items()))


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


def find_drift(saved: SavedPlan, plans: Iterable[Plan]) -> tuple[Drift, ...]:
    """Return the removals of ``saved`` that new plans keep or do not contain, each with the first reason."""
    fresh: dict[tuple[ItemKind, str], Decision] = {}
    for each in (decision for plan in plans for decision in plan.decisions):
        before = fresh.get((each.kind, each.id))
        if before is None or before.verdict is Verdict.REMOVE:
            fresh[each.kind, each.id] = each
    drift = []
    for item in saved.removals:
        decision = fresh.get((item.kind, item.id))
        if decision is None:
            drift.append(Drift(item, gone=True, why="it no longer exists"))
        elif decision.verdict is not Verdict.REMOVE:
            drift.append(Drift(item, gone=False, why=decision.reason.sentence))
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


def _mac(document: Mapping[str, Json], key: bytes) -> str:
    """Return the signature (``mac``) of a document that has no signature yet. Source: RFC 2104, HMAC with SHA-256."""
    return "hmac-sha256:" + hmac.new(key, _canonical(document), hashlib.sha256).hexdigest()


def _canonical(value: object) -> bytes:
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
