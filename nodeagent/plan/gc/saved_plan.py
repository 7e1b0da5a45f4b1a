"""Plans that outlive the moment: saved, compared, and applied later.

A saved plan is a JSON document. Its id is a digest of its content, which anybody can compute and which names the plan.
Its signature (``mac``) is computed with a key that only root can read, and proves that this node's agent wrote the
plan; only a signed plan is applied. Applying one plans anew on fresh state, under the stricter of the document's policy
and the policy in force (``plan/strictness.py``), restricted to the listed items: an item that is no longer removable is
kept and reported as drift; an item that is not listed is never removed.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from base64 import b64decode
from dataclasses import dataclass, fields, is_dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, TypeVar

from nodeagent.model.schemas import SchemaId
from nodeagent.plan.decision import ItemKind, Verdict
from nodeagent.plan.gc.containers import ContainerGCPolicy
from nodeagent.plan.gc.image_protection import ProtectionPolicy, parse_rule
from nodeagent.plan.gc.images import ImageGCPolicy
from nodeagent.plan.gc.planner import GCPolicy
from nodeagent.plan.gc.pod_logs import PodLogPolicy
from nodeagent.plan.gc.sandboxes import SandboxGCPolicy
from nodeagent.plan.gc.scope import Scope
from nodeagent.units import format_time

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from nodeagent.model import NodeSnapshot
    from nodeagent.plan.decision import Decision, Plan

SCHEMA: Final = SchemaId.SAVED_PLAN.value

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]
_Policy = TypeVar("_Policy")


_SKEW = timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class SavedItem:
    """One decision of a saved plan, as far as applying and comparing need it."""

    kind: ItemKind
    id: str
    name: str
    verdict: Verdict
    code: str
    sentence: str
    frees_bytes: int | None


@dataclass(frozen=True, slots=True)
class SavedPlan:
    """A plan read back.

    Attributes:
        id: digest of the document.
        made_at: the instant it was decided on, aware UTC.
        expires_at: from when on it may not be applied, aware UTC.
        node: which node it is for.
        scope: what it is about.
        policy: the rules it was made under.
        items: every decision; removals first, in order.
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
        """What it lists for removal, in order."""
        return tuple(item for item in self.items if item.verdict is Verdict.REMOVE)


@dataclass(frozen=True, slots=True)
class Drift:
    """Something a saved plan lists that does not go any more.

    Attributes:
        item: what it is.
        gone: whether it is not there any more; else it stays.
        why: in words.
    """

    item: SavedItem
    gone: bool
    why: str


def snapshot_digest(snapshot: NodeSnapshot) -> str:
    """Return a digest of what decisions depend on: which items are there, their state, and who uses what."""
    parts: list[object] = [
        sorted((image.id, *image.repo_tags, *image.repo_digests, image.pinned) for image in snapshot.images),
        sorted((each.id, each.state.value, each.sandbox_id, each.image_ref) for each in snapshot.containers),
        sorted((each.id, each.ready, each.uid, each.image) for each in snapshot.sandboxes),
        sorted(each.name for each in snapshot.pod_log_directories),
        sorted(each.name for each in snapshot.dead_log_links),
        sorted(hold.id for hold in snapshot.holds),
    ]
    return _digest(parts)


def plan_id(scope: Scope, snapshot: NodeSnapshot, plans: Sequence[Plan]) -> str:
    """Return an id for plans that are carried out without being saved: a digest of when, where and what."""
    removals = [(each.kind.value, each.id, each.reason.code.value) for plan in plans for each in plan.removals]
    return _digest([scope.value, snapshot.observed_at.isoformat(), removals])


def seal(body: Mapping[str, Json], key: bytes | None) -> dict[str, Json]:
    """Return a plan document: its schema first, the id of its content, and its signature unless ``key`` is ``None``."""
    content: dict[str, Json] = {"schema": SCHEMA, **body}
    identity = _digest(content)
    signed: dict[str, Json] = {"schema": SCHEMA, "id": identity}
    if key is not None:
        signed["mac"] = _mac({"id": identity, **content}, key)
    return {**signed, **body}


def unseal(text: str, key: bytes | None) -> SavedPlan:
    """Read a plan document that is to be applied; ``key`` is this node's plan key, ``None`` where there is none.

    Raises:
        ValueError: it is not a plan, was changed since it was saved, was written by a newer agent, or was not signed
            with ``key``.
    """
    document = _load(text)
    mac = document.pop("mac", None)
    _check_id(document)
    if mac is None:
        raise ValueError(
            "the plan is not signed: the plan key was unavailable when it was made, or nodeagent 0.1 made it; make a "
            "new plan"
        )
    if key is None:
        raise ValueError("this node has no plan key, so none of its plans can be verified; make a new plan")
    expected = _mac(document, key)
    if not isinstance(mac, str) or not hmac.compare_digest(mac.encode("utf-8", "replace"), expected.encode()):
        raise ValueError(
            "the signature does not match this node's plan key: the plan was changed, comes from another node or "
            "state directory, or the key was replaced since; make a new plan"
        )
    return _decode(document)


def parse_plan(text: str) -> SavedPlan:
    """Read a plan document that is to be shown or compared, signed or not.

    Raises:
        ValueError: it is not a plan, was changed since it was saved, or was written by a newer agent.
    """
    document = _load(text)
    document.pop("mac", None)
    _check_id(document)
    return _decode(document)


def _load(text: str) -> dict[str, Json]:
    try:
        document = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from error
    if not isinstance(document, dict) or not str(document.get("schema", "")).startswith("nodeagent/plan/"):
        raise ValueError("not a plan of this agent")
    if document["schema"] != SCHEMA:
        raise ValueError(f"it is of schema {document['schema']!r}, this agent knows {SCHEMA}")
    return document


def _refuse_constant(name: str) -> Json:
    """Refuse NaN and infinities, which are not JSON and compare as nothing does."""
    raise ValueError(f"{name} is not a number")


def _check_id(document: Mapping[str, Json]) -> None:
    content = {key: value for key, value in document.items() if key != "id"}
    if document.get("id") != _digest(content):
        raise ValueError("it was changed since it was saved: its id does not fit its content")


def _decode(document: Mapping[str, Any]) -> SavedPlan:
    try:
        scope = Scope(document["scope"])
        if scope is Scope.LEAKS:
            raise ValueError("scope leaks cannot be saved as a plan")
        return SavedPlan(
            id=str(document["id"]),
            made_at=_moment(document["made_at"]),
            expires_at=_moment(document["expires_at"]),
            node=str(document["node"]),
            scope=scope,
            policy=decode_policy(document["policy"]),
            items=tuple(_item(row) for row in document["decisions"]),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"it lacks something or holds what does not belong there: {error}") from error


def encode_policy(policy: GCPolicy) -> dict[str, Json]:
    """Return the rules of a plan in their JSON form."""
    return _encoded(policy)


def decode_policy(document: Mapping[str, Json]) -> GCPolicy:
    """Return the rules that ``encode_policy`` wrote.

    Raises:
        ValueError: a rule cannot be understood.
        KeyError: one is missing.
        TypeError: one is unknown.
    """
    images = dict(_section(document, "images"))
    protection = _section(images, "protection")
    rules = protection.get("rules")
    if not isinstance(rules, list):
        raise TypeError("protection.rules is not a list")
    images.pop("protection")
    keep = protection.get("keep_last_n_tags_per_repository")
    if not isinstance(keep, int):
        raise TypeError("protection.keep_last_n_tags_per_repository is not a number")
    return GCPolicy(
        images=replace(
            _decoded(ImageGCPolicy(), images),
            protection=ProtectionPolicy(tuple(parse_rule(str(rule)) for rule in rules), keep),
        ),
        containers=_decoded(ContainerGCPolicy(), _section(document, "containers")),
        sandboxes=_decoded(SandboxGCPolicy(), _section(document, "sandboxes")),
        logs=_decoded(PodLogPolicy(), _section(document, "logs")),
    )


def refusal_of(saved: SavedPlan, now: datetime, node: str) -> str:
    """Return why a saved plan is not carried out now on a node, in words; empty if it may be."""
    if now >= saved.expires_at:
        return f"the plan expired at {format_time(saved.expires_at)}; nothing was done, make a new one"
    if now < saved.made_at - _SKEW:
        made = format_time(saved.made_at)
        return f"the plan was made at {made}, which is in the future; nothing was done, is the clock right?"
    if saved.node != node:
        return f"the plan is for node {saved.node}, this is {node}; nothing was done"
    return ""


def find_drift(saved: SavedPlan, plans: Iterable[Plan]) -> tuple[Drift, ...]:
    """Return what ``saved`` lists and the fresh ``plans`` do not all remove, with the first reason to keep it."""
    fresh: dict[tuple[ItemKind, str], Decision] = {}
    for each in (decision for plan in plans for decision in plan.decisions):
        before = fresh.get((each.kind, each.id))
        if before is None or before.verdict is Verdict.REMOVE:
            fresh[each.kind, each.id] = each
    drift = []
    for item in saved.removals:
        decision = fresh.get((item.kind, item.id))
        if decision is None:
            drift.append(Drift(item, gone=True, why="it is not there any more"))
        elif decision.verdict is not Verdict.REMOVE:
            drift.append(Drift(item, gone=False, why=decision.reason.sentence))
    return tuple(drift)


@dataclass(frozen=True, slots=True)
class Difference:
    """One item on which two saved plans do not agree; ``None`` where a plan does not know it."""

    before: SavedItem | None
    after: SavedItem | None


def compare(before: SavedPlan, after: SavedPlan) -> tuple[Difference, ...]:
    """Return every item whose verdict or reason differs, those to be removed by either first."""
    old = {(item.kind, item.id): item for item in before.items}
    new = {(item.kind, item.id): item for item in after.items}
    found = [
        Difference(old.get(key), new.get(key))
        for key in dict.fromkeys((*old, *new))
        if _status(old.get(key)) != _status(new.get(key))
    ]
    return tuple(sorted(found, key=lambda each: not (_goes(each.before) or _goes(each.after))))


def _status(item: SavedItem | None) -> tuple[Verdict, str] | None:
    return None if item is None else (item.verdict, item.code)


def _goes(item: SavedItem | None) -> bool:
    return item is not None and item.verdict is Verdict.REMOVE


def _digest(value: object) -> str:
    return "sha256:" + hashlib.sha256(_canonical(value)).hexdigest()


def _mac(document: Mapping[str, Json], key: bytes) -> str:
    """Return the signature of a document that lacks only its signature. Source: RFC 2104, HMAC with SHA-256."""
    return "hmac-sha256:" + hmac.new(key, _canonical(document), hashlib.sha256).hexdigest()


def _canonical(value: object) -> bytes:
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _moment(text: object) -> datetime:
    made = datetime.fromisoformat(str(text))
    if made.tzinfo is None:
        raise ValueError(f"{text!r} lacks its time zone")
    return made


def _item_id(row: Mapping[str, object]) -> str:
    """Return the id of an item; a file's name may not be UTF-8, and JSON cannot hold it then."""
    if "id_base64" not in row:
        return str(row["id"])
    return b64decode(str(row["id_base64"]), validate=True).decode(errors="surrogateescape")


def _item(row: Mapping[str, object]) -> SavedItem:
    reason, frees = row["reason"], row["frees_bytes"]
    if not isinstance(reason, dict):
        raise TypeError("a reason is not a table")
    return SavedItem(
        ItemKind(str(row["kind"])),
        _item_id(row),
        str(row["name"]),
        Verdict(str(row["verdict"])),
        str(reason["code"]),
        str(reason["sentence"]),
        frees if isinstance(frees, int) else None,
    )


def _encoded(policy: object) -> dict[str, Json]:
    if not is_dataclass(policy):
        raise TypeError(type(policy).__name__)
    document: dict[str, Json] = {}
    for each in fields(policy):
        value = getattr(policy, each.name)
        if each.name == "rules":
            document[each.name] = [rule.text for rule in value]
        elif is_dataclass(value):
            document[each.name] = _encoded(value)
        else:
            document[each.name] = value
    return document


def _decoded(default: _Policy, document: Mapping[str, Json]) -> _Policy:
    """Return a policy with every value of a document; all have to be there and of the default's type."""
    wanted = {each.name: getattr(default, each.name) for each in fields(default)}  # type: ignore[arg-type]
    wanted.pop("protection", None)
    if document.keys() != wanted.keys():
        odd = ", ".join(sorted(document.keys() ^ wanted.keys()))
        raise TypeError(f"{type(default).__name__}: {odd}")
    for name, value in document.items():
        allowed = (int, float) if isinstance(wanted[name], float) else type(wanted[name])
        if not isinstance(value, allowed) or isinstance(value, bool) != isinstance(wanted[name], bool):
            raise TypeError(f"{name} = {value!r}")
    return replace(default, **document)  # type: ignore[type-var]


def _section(document: Mapping[str, Json], name: str) -> dict[str, Json]:
    section = document[name]
    if not isinstance(section, dict):
        raise TypeError(f"{name} is not a table")
    return section
