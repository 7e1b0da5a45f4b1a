"""Sandbox garbage collection plan: the sandboxes to remove, and the reason to keep every other sandbox."""

from __future__ import annotations

from collections import Counter, defaultdict
from operator import attrgetter
from typing import TYPE_CHECKING

from nodeagent.plan.clock import clock_untrusted
from nodeagent.plan.decision import (
    NO_FAILURES,
    Decision,
    ItemKind,
    Plan,
    Reason,
    ReasonCode,
    Verdict,
    sort_by_name,
)
from nodeagent.plan.gc.consistency import withheld
from nodeagent.plan.pods.names import sandbox_name
from nodeagent.record import replace

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import datetime

    from nodeagent.model import Container, NodeSnapshot, Sandbox
    from nodeagent.plan.gc.policy import SandboxGCPolicy
    from nodeagent.plan.pods.deletion import PodDeletionStatus

# Enum members used for every sandbox are module constants: a lookup in the enum class takes ten times as long.
_SANDBOX = ItemKind.SANDBOX

_SANDBOX_ID = attrgetter("sandbox_id")
_READY = Reason(ReasonCode.SANDBOX_READY)
_UNMANAGED = Reason(ReasonCode.NOT_KUBELET_MANAGED)
_AGE_UNKNOWN = Reason(ReasonCode.AGE_UNKNOWN)
_SUPERSEDED = Reason(ReasonCode.SANDBOX_SUPERSEDED)


def plan_sandbox_gc(  # noqa: PLR0913 - results of earlier plans
    snapshot: NodeSnapshot,
    policy: SandboxGCPolicy,
    *,
    statuses: Mapping[str, PodDeletionStatus],
    removed_containers: frozenset[str] = frozenset(),
    failed: Mapping[str, str] = NO_FAILURES,
    evict_non_deleted_pods: bool = False,
) -> Plan:
    """Return the plan that removes inactive sandboxes: all of deleted pods, and all but the newest of other pods.

    A sandbox is active while it is ready or has a container. The newest sandbox of an existing pod is always kept. The
    oldest sandbox is removed first, ties by attempt, then by id. The minimum age does not apply to evicted pods.

    Args:
        snapshot: snapshot of the node.
        policy: minimum age, and treatment of sandboxes without kubelet labels.
        statuses: the result of ``check_pods`` for this snapshot.
        removed_containers: ids of containers removed earlier in the pass, which no longer count for their sandboxes.
        failed: cause of the failure by sandbox id, for removals that failed earlier in this pass.
        evict_non_deleted_pods: also remove the sandboxes of pods that have finished but still exist.

    Source: kubelet ``containerGC.evictSandboxes``.
    """
    remaining: Iterable[Container] = snapshot.containers
    if removed_containers:
        remaining = [each for each in remaining if each.id not in removed_containers]
    container_counts = Counter(map(_SANDBOX_ID, remaining))
    removed: list[tuple[Sandbox, Reason]] = []
    kept: list[Decision] = []
    others: list[Sandbox] = []
    without_minimum_age = replace(policy, minimum_age_s=0.0)
    for sandbox in snapshot.sandboxes:
        status = statuses.get(sandbox.uid)
        in_force = without_minimum_age if status is not None and status.evicted else policy
        reason = _keep_reason(sandbox, snapshot, in_force, container_counts[sandbox.id], failed)
        if reason is not None:
            verdict = Verdict.FAILED if reason.code is ReasonCode.FAILED_EARLIER else Verdict.KEEP
            kept.append(_decision(sandbox, verdict, reason))
            continue
        reason = _pod_reason(status, include_finished=evict_non_deleted_pods)
        if reason is not None:
            removed.append((sandbox, reason))
        else:
            others.append(sandbox)
    newest = _newest_of_each_pod(snapshot) if others else frozenset()
    for sandbox in others:
        if sandbox.id not in newest:
            removed.append((sandbox, _SUPERSEDED))
            continue
        status = statuses.get(sandbox.uid)
        note = f" ({status.how})" if status is not None else ""
        kept.append(_decision(sandbox, Verdict.KEEP, Reason(ReasonCode.NEWEST_OF_POD, {"note": note})))
    removed.sort(key=lambda entry: _age_key(entry[0]))
    sort_by_name(kept)
    decisions = [_decision(sandbox, Verdict.REMOVE, reason) for sandbox, reason in removed]
    return withheld(Plan("sandboxes", snapshot.observed_at, (*decisions, *kept)), snapshot.contradictions)


def _keep_reason(  # noqa: PLR0911 - one return for each rule
    sandbox: Sandbox, snapshot: NodeSnapshot, policy: SandboxGCPolicy, containers: int, failed: Mapping[str, str]
) -> Reason | None:
    """Return the reason to keep a sandbox regardless of its pod; ``None`` for a candidate."""
    if sandbox.ready:
        return _READY
    if containers:
        return Reason(ReasonCode.SANDBOX_HAS_CONTAINERS, {"count": containers})
    if not sandbox.has_kubelet_labels and not policy.include_unlabelled:
        return _UNMANAGED
    if sandbox.id in failed:
        return Reason(ReasonCode.FAILED_EARLIER, {"detail": failed[sandbox.id]})
    if sandbox.created_at is None:
        return _AGE_UNKNOWN
    age_s = (snapshot.observed_at - sandbox.created_at).total_seconds()
    if age_s < policy.minimum_age_s:
        details = {"age_s": max(0.0, age_s), "minimum_s": policy.minimum_age_s}
        return Reason(ReasonCode.CREATED_RECENTLY, details)
    return clock_untrusted(snapshot.clock) if policy.minimum_age_s > 0 else None


def _pod_reason(status: PodDeletionStatus | None, *, include_finished: bool) -> Reason | None:
    if status is not None and status.deleted:
        return Reason(ReasonCode.POD_DELETED, {"how": status.how})
    if status is not None and include_finished and status.finished:
        return Reason(ReasonCode.POD_FINISHED, {"how": status.how})
    return None


def _newest_of_each_pod(snapshot: NodeSnapshot) -> frozenset[str]:
    """Return the ids of the newest sandbox of each pod; sandboxes without a creation time are ignored."""
    pods: defaultdict[str, list[Sandbox]] = defaultdict(list)
    for sandbox in snapshot.sandboxes:
        if sandbox.created_at is not None:
            pods[sandbox.uid or sandbox.id].append(sandbox)
    return frozenset(max(members, key=_age_key).id for members in pods.values())


def _age_key(sandbox: Sandbox) -> tuple[datetime, int, str]:
    if sandbox.created_at is None:  # excluded by the callers
        raise ValueError(sandbox.id)
    return sandbox.created_at, sandbox.attempt, sandbox.id


def _decision(sandbox: Sandbox, verdict: Verdict, reason: Reason) -> Decision:
    return Decision(_SANDBOX, sandbox.id, sandbox_name(sandbox), verdict, reason)
