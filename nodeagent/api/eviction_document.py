"""An eviction plan as plain data, for records and for what commands answer. Keys carry their unit."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from nodeagent.units import format_time

if TYPE_CHECKING:
    from nodeagent.model.pressure import Fact, PodFacts
    from nodeagent.plan.decision import Detail, Reason
    from nodeagent.plan.eviction.planner import EvictionPlan
    from nodeagent.plan.eviction.ranking import RankedPod
    from nodeagent.plan.eviction.state import ThresholdStatus

Plain = None | bool | int | float | str | list["Plain"] | dict[str, "Plain"]


def describe_plan(plan: EvictionPlan) -> dict[str, Plain]:
    """Return what was decided: the cause, what to reclaim, and every pod with its place, facts and reason."""
    decisions = {each.id: each for each in plan.plan.decisions}
    return {
        "threshold": None if plan.selected is None else describe_status(plan.selected),
        "reclaim": [step.text for step in plan.reclaim],
        "withheld": None if plan.withheld is None else describe_reason(plan.withheld),
        "victim": None if plan.victim is None else plan.victim.pod.uid,
        "grace_s": None if plan.victim is None else plan.victim.grace_s,
        "message": None if plan.victim is None else plan.victim.message,
        "ranking": [_ranked(each, decisions[each.pod.uid].reason) for each in plan.ranking],
        "decisions": [
            {
                "uid": each.id,
                "name": each.name,
                "verdict": each.verdict.value,
                "reason": describe_reason(each.reason),
            }
            for each in plan.plan.decisions
        ],
        "blocked": plan.plan.blocked,
        "warnings": list(plan.plan.warnings),
    }


def describe_status(status: ThresholdStatus) -> dict[str, Plain]:
    """Return how one threshold stands."""
    seen = status.observation
    return {
        "threshold": status.threshold.text,
        "signal": status.threshold.signal.value,
        "hard": status.threshold.hard,
        "grace_period_s": status.threshold.grace_s,
        "available": None if seen is None else seen.available,
        "capacity": None if seen is None else seen.capacity,
        "limit": status.limit,
        "observed_at": None if seen is None else format_time(seen.observed_at.at),
        "met": status.met,
        "held_s": round(status.met_for_s, 3),
        "acting": status.acting,
    }


def describe_reason(reason: Reason) -> dict[str, Plain]:
    """Return code, sentence and numbers of a reason."""
    return {
        "code": reason.code.value,
        "sentence": reason.sentence,
        "details": {key: _detail(value) for key, value in reason.details.items()},
    }


def describe_facts(pod: PodFacts) -> dict[str, Plain]:
    """Return what is known of a pod, each fact with its source."""
    facts = {
        "priority": pod.priority,
        "qos": pod.qos,
        "static": pod.static,
        "mirror": pod.mirror,
        "critical": pod.critical,
        "memory_request_bytes": pod.memory_request_bytes,
        "ephemeral_request_bytes": pod.ephemeral_request_bytes,
        "termination_grace_s": pod.termination_grace_s,
    }
    return {
        **{name: _fact(fact) for name, fact in facts.items()},
        "priority_class": pod.priority_class,
        "contradictions": list(pod.contradictions),
    }


def _ranked(each: RankedPod, reason: Reason) -> dict[str, Plain]:
    usage = each.pod.usage
    return {
        "rank": each.rank,
        "uid": each.pod.uid,
        "name": f"{each.pod.namespace}/{each.pod.name}",
        "resource": each.resource.value,
        "usage": each.usage,
        "request": each.request,
        "excess": each.excess,
        "priority": each.priority,
        "assumed": list(each.assumed),
        "memory_bytes": None if usage is None else usage.memory_bytes,
        "pids": None if usage is None else usage.pids,
        "reason": reason.code.value,
        "facts": describe_facts(each.pod),
    }


def _fact(fact: Fact[object]) -> dict[str, Plain]:
    value = fact.value
    return {
        "value": value if value is None or isinstance(value, bool | int | float | str) else str(value),
        "source": fact.source.value,
    }


def _detail(value: Detail) -> Plain:
    if isinstance(value, datetime):
        return format_time(value)
    if isinstance(value, tuple):
        return list(value)
    return value
