"""The JSON and YAML forms of what the commands and the control service answer.

Keys carry their unit, times are RFC 3339 in UTC, and every document names its schema, so that a script can rely on
it. Fields are added, never renamed.
"""

from __future__ import annotations

import json
from base64 import b64encode
from datetime import datetime
from typing import TYPE_CHECKING

from nodeagent.model import ALL_IMAGES
from nodeagent.plan.decision import Verdict
from nodeagent.plan.gc.saved_plan import encode_policy, seal, snapshot_digest
from nodeagent.text import escape_lines, raw_bytes, to_json
from nodeagent.units import format_time

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nodeagent.act.gc.outcomes import PassReport, Result
    from nodeagent.model import FsObservation, Hold, NodeSnapshot
    from nodeagent.model.node_stop import NodeStop, StoppedPod
    from nodeagent.model.pressure import Observation
    from nodeagent.observe.eviction_signals import SignalLayout, SignalReadings
    from nodeagent.plan.decision import Decision, Plan, Reason
    from nodeagent.plan.eviction.state import Evaluation
    from nodeagent.plan.gc.planner import GCPolicy
    from nodeagent.plan.gc.saved_plan import Difference, Drift, SavedItem
    from nodeagent.plan.gc.storage_breakdown import Breakdown
    from nodeagent.store.history import PastAction, PastPass

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]


def time_text(moment: datetime | None) -> str | None:
    """Return a time as RFC 3339 in UTC with milliseconds, or ``None``."""
    return None if moment is None else format_time(moment)


def plain(value: object) -> Json:
    """Return a value of a reason's details, or of an event, in its JSON form."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, datetime):
        return time_text(value)
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(each) for each in value]
    if isinstance(value, dict):
        return {str(key): plain(each) for key, each in value.items()}
    return str(value)


def reason(value: Reason) -> dict[str, Json]:
    """Return code, sentence and numbers of a reason."""
    return {
        "code": value.code.value,
        "sentence": value.sentence,
        "details": {key: plain(each) for key, each in value.details.items()},
    }


def decision(value: Decision) -> dict[str, Json]:
    """Return one decision; ``id_base64`` is there where the id is a file's name that is not UTF-8."""
    raw = raw_bytes(value.id)
    return {
        "kind": value.kind.value,
        "id": value.id,
        **({} if raw is None else {"id_base64": b64encode(raw).decode()}),
        "name": value.name,
        "verdict": value.verdict.value,
        "reason": reason(value.reason),
        "frees_bytes": value.frees_bytes,
        "frees_inodes": value.frees_inodes,
    }


def plan(value: Plan) -> dict[str, Json]:
    """Return a plan with every decision, the kept ones too."""
    return {
        "kind": value.kind,
        "made_at": time_text(value.made_at),
        "accounting": value.accounting.value,
        "wanted_bytes": value.wanted_bytes,
        "pending_bytes": value.pending_bytes,
        "frees_bytes": value.frees_bytes,
        "shortfall_bytes": value.shortfall_bytes,
        "blocked": value.blocked,
        "warnings": list(value.warnings),
        "decisions": [decision(each) for each in value.decisions],
    }


def filesystem(value: FsObservation | None) -> Json:
    """Return a filesystem reading, or ``None``."""
    if value is None:
        return None
    return {
        "path": value.path,
        "capacity_bytes": value.capacity_bytes,
        "available_bytes": value.available_bytes,
        "used_percent": value.used_percent,
        "inodes": value.inodes,
        "inodes_free": value.inodes_free,
        "observed_at": time_text(value.observed_at),
    }


def runtime(snapshot: NodeSnapshot) -> dict[str, Json]:
    """Return who answered on the runtime socket."""
    info = snapshot.runtime
    return {
        "name": info.name,
        "version": info.version,
        "api_version": info.api_version,
        "endpoint": info.endpoint,
        "role": snapshot.role.value,
    }


def preview(scope: str, snapshot: NodeSnapshot, plans: Sequence[Plan]) -> dict[str, Json]:
    """Return what a run would do: schema ``nodeagent/preview/v1``."""
    return {
        "schema": "nodeagent/preview/v1",
        "scope": scope,
        "dry_run": True,
        "observed_at": time_text(snapshot.observed_at),
        "runtime": runtime(snapshot),
        "imagefs": filesystem(snapshot.image_filesystem),
        "warnings": list(snapshot.warnings),
        "plans": [plan(each) for each in plans],
    }


def saved_plan(  # noqa: PLR0913 - the parts of the document
    scope: str,
    snapshot: NodeSnapshot,
    plans: Sequence[Plan],
    policy: GCPolicy,
    *,
    node: str,
    expires_at: datetime,
    agent_version: str,
    key: bytes | None,
) -> dict[str, Json]:
    """Return a plan as it is saved: schema ``nodeagent/plan/v1``; without a plan key it is not signed."""
    ordered = [each for verdict in (True, False) for plan in plans for each in plan.decisions if _goes(each) is verdict]
    return seal(
        _encodable(
            {
                "made_at": snapshot.observed_at.isoformat(),
                "expires_at": expires_at.isoformat(),
                "agent_version": agent_version,
                "node": node,
                "runtime": runtime(snapshot),
                "scope": scope,
                "snapshot_digest": snapshot_digest(snapshot),
                "imagefs": filesystem(snapshot.image_filesystem),
                "policy": encode_policy(policy),
                "accounting": {plan.kind: plan.accounting.value for plan in plans},
                "frees_bytes": sum(plan.frees_bytes for plan in plans),
                "warnings": [*snapshot.warnings, *(warning for plan in plans for warning in plan.warnings)],
                "decisions": [decision(each) for each in ordered],
            }
        ),
        key,
    )


def _goes(value: Decision) -> bool:
    return value.verdict is Verdict.REMOVE


def item(value: SavedItem) -> dict[str, Json]:
    """Return one item of a saved plan."""
    return {
        "kind": value.kind.value,
        "id": value.id,
        "name": value.name,
        "verdict": value.verdict.value,
        "reason": {"code": value.code, "sentence": value.sentence},
        "frees_bytes": value.frees_bytes,
    }


def drift(value: Drift) -> dict[str, Json]:
    """Return one item that a saved plan lists and that does not go any more."""
    return {
        "kind": value.item.kind.value,
        "id": value.item.id,
        "name": value.item.name,
        "gone": value.gone,
        "why": value.why,
    }


def difference(value: Difference) -> dict[str, Json]:
    """Return one item on which two saved plans differ."""
    known = value.after or value.before
    return {
        "kind": known.kind.value if known else None,
        "id": known.id if known else None,
        "name": known.name if known else None,
        "before": item(value.before) if value.before else None,
        "after": item(value.after) if value.after else None,
    }


def result(value: Result) -> dict[str, Json]:
    """Return what became of one planned removal."""
    return {
        **decision(value.decision),
        "outcome": value.outcome.value,
        "detail": value.detail,
        "duration_s": round(value.duration_s, 4),
    }


def report(value: PassReport) -> dict[str, Json]:
    """Return what a run did: schema ``nodeagent/report/v1``."""
    return {
        "schema": "nodeagent/report/v1",
        "pass_id": value.id,
        "scope": value.scope,
        "trigger": value.trigger,
        "dry_run": value.dry_run,
        "started_at": time_text(value.started_at),
        "duration_s": round(value.duration_s, 4),
        "end": value.end.value,
        "end_detail": value.end_detail,
        "predicted_bytes": value.predicted_bytes,
        "collected_bytes": value.collected_bytes,
        "freed_bytes": value.freed_bytes,
        "imagefs_before": filesystem(value.before),
        "imagefs_after": filesystem(value.after),
        "warnings": list(value.warnings),
        "results": [result(each) for each in value.results],
        "plans": [plan(each) for each in value.plans],
    }


def breakdown(value: Breakdown) -> dict[str, Json]:
    """Return a breakdown in its JSON form."""
    return {
        "imagefs": filesystem(value.filesystem),
        "exact": value.exact,
        "shares": [
            {
                "part": share.part.value,
                "bytes": share.size_bytes,
                "complete": share.exact,
                "largest": [{"name": name, "bytes": size} for name, size in share.members],
            }
            for share in value.shares
        ],
    }


def history(passes: Sequence[PastPass], stops: Sequence[NodeStop]) -> dict[str, Json]:
    """Return what was done: schema ``nodeagent/history/v1``."""
    return {
        "schema": "nodeagent/history/v1",
        "passes": [past_pass(each) for each in passes],
        "node_stops": [node_stop(each) for each in stops],
    }


def past_pass(past: PastPass) -> dict[str, Json]:
    """Return one pass of the history."""
    return {
        "id": past.id,
        "started_at": time_text(past.started_at),
        "duration_s": round(past.duration_s, 4),
        "trigger": past.trigger,
        "scope": past.scope,
        "plan_id": past.plan_id,
        "dry_run": past.dry_run,
        "end": past.result,
        "end_detail": past.detail,
        "predicted_bytes": past.predicted_bytes,
        "freed_bytes": past.freed_bytes,
        "imagefs_percent_before": past.percent_before,
        "imagefs_percent_after": past.percent_after,
        "actions": [_past_action(each) for each in past.actions],
        **({"eviction": json.loads(past.eviction)} if past.eviction else {}),
    }


def _past_action(action: PastAction) -> dict[str, Json]:
    return {
        "kind": action.kind,
        "id": action.item_id,
        "name": action.name,
        "references": list(action.references),
        "outcome": action.outcome,
        "detail": action.detail,
        "reason": {"code": action.reason, "sentence": action.sentence},
        "frees_bytes": action.frees_bytes,
        "duration_s": round(action.duration_s, 4),
    }


def node_stop(stop: NodeStop) -> dict[str, Json]:
    """Return one time that the node went down."""
    return {
        "id": stop.id,
        "boot_id": stop.boot_id,
        "kind": stop.kind.value,
        "end": stop.end.value,
        "started_at": time_text(stop.started_at),
        "ended_at": time_text(stop.ended_at),
        "granted_s": stop.granted_ms / 1000,
        "pods": [_stopped(each) for each in stop.pods],
    }


def _stopped(pod: StoppedPod) -> dict[str, Json]:
    return {
        "uid": pod.uid,
        "namespace": pod.namespace,
        "name": pod.name,
        "phase": pod.phase,
        "why": pod.why,
        "outcome": pod.outcome.value if pod.outcome else None,
        "asked_s": pod.requested_at_ms / 1000,
        "took_s": None if pod.took_ms is None else pod.took_ms / 1000,
        "detail": pod.detail,
    }


def holds(found: Sequence[Hold], now: datetime) -> dict[str, Json]:
    """Return holds: schema ``nodeagent/holds/v1``."""
    return {"schema": "nodeagent/holds/v1", "holds": [hold(each, now) for each in found]}


def hold(value: Hold, now: datetime) -> dict[str, Json]:
    """Return one hold."""
    return {
        "id": value.id,
        "image": value.image or None,
        "all": value.image == ALL_IMAGES,
        "why": value.why,
        "by": value.by,
        "placed_at": time_text(value.placed_at),
        "until": time_text(value.until),
        "seconds_left": max(0, round((value.until - now).total_seconds())),
    }


def pressure(
    ground: SignalLayout,
    seen: SignalReadings,
    found: Evaluation,
    warnings: Sequence[str],
    earlier: SignalReadings | None = None,
) -> dict[str, Json]:
    """Return the node's signals against their thresholds: schema ``nodeagent/pressure/v1``.

    ``earlier`` is a look before, from which the trend is told.
    """
    return {
        "schema": "nodeagent/pressure/v1",
        "layout": ground.layout.value,
        "conditions": [each.condition.value for each in found.conditions if each.active],
        "signals": [_signal(each, found, earlier) for each in seen.observations],
        "warnings": list(warnings),
    }


def _signal(seen: Observation, found: Evaluation, earlier: SignalReadings | None) -> dict[str, Json]:
    return {
        "signal": seen.signal.value,
        "available": seen.available,
        "capacity": seen.capacity,
        "observed_at": time_text(seen.observed_at.at),
        "change_per_s": change_per_s(seen, earlier),
        "thresholds": [
            {
                "text": each.threshold.text,
                "value": each.limit,
                "met": each.met,
                "distance": None if each.limit is None else abs(seen.available - each.limit) * (-1 if each.met else 1),
            }
            for each in found.statuses
            if each.threshold.signal is seen.signal
        ],
    }


def change_per_s(seen: Observation, earlier: SignalReadings | None) -> float | None:
    """Return how fast a signal changes since the look before; ``None`` at the first."""
    before = next((each for each in earlier.observations if each.signal is seen.signal), None) if earlier else None
    if before is None:
        return None
    passed_s = seen.observed_at.monotonic_s - before.observed_at.monotonic_s
    return (seen.available - before.available) / passed_s if passed_s > 0 else None


def dumps(document: Mapping[str, Json], form: str) -> str:
    """Return a document as text, ``form`` being ``json`` or ``yaml``; ends with a newline.

    Any text in it may be printed to a terminal: what is not printable is written with the form's own escapes.
    """
    if form == "yaml":
        import yaml  # noqa: PLC0415 - only who asks for YAML pays for it

        shown = _encodable(document)
        text = str(yaml.safe_dump(shown, sort_keys=False, allow_unicode=True))
        return text if escape_lines(text) == text else str(yaml.safe_dump(shown, sort_keys=False))
    return to_json(document, indent=2) + "\n"


def line(document: Mapping[str, Json]) -> str:
    """Return a document as one line of JSON; ends with a newline."""
    return to_json(document) + "\n"


def _encodable(document: Mapping[str, Json]) -> dict[str, Json]:
    """Return a document in which every text can be encoded."""
    made: dict[str, Json] = json.loads(to_json(document))
    return made
