"""Evictions through the API server: the next step after a response, and the record of refused evictions.

An eviction can be refused by a disruption budget or for another reason; the request is repeated with back-off. While a
hard threshold is met, the next pod is tried in the meantime; for a soft threshold no other pod is evicted. A request
without a response may have taken effect, so no other pod is evicted until the API server reports the state of the pod.

Source: Kubernetes API-initiated eviction, ``policy/v1``.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from nodeagent.record import Record, field, replace

if TYPE_CHECKING:
    from nodeagent.model.pods import PodSpec

BUDGET_CAUSE: Final = "DisruptionBudget"
"""Cause of a refusal by a disruption budget. Source: Kubernetes ``policy/v1``, ``DisruptionBudgetCause``."""
LEAST_GRACE_S: Final = 1
"""Minimum grace period of an eviction: with 0, the API server removes the Pod object before the processes end."""
FIRST_DELAY_S: Final = 10.0
LAST_DELAY_S: Final = 300.0
FIRST_POSTPONE_S: Final = 1.0
LAST_POSTPONE_S: Final = 60.0
JITTER_SHARE: Final = 0.5
UNKNOWN_S: Final = 60.0
"""Seconds without another eviction after a request of unknown effect, unless the API server shows the pod unchanged."""
SETTLED_S: Final = 5.0
"""Seconds after a request of unknown effect from which a current watch shows the effect."""
BUDGET_REFUSALS: Final = 2
"""Consecutive budget refusals after which a pod may be deleted despite its disruption budget, if configured."""
SERVER_FAILURES: Final = 3
"""Consecutive server errors (5xx) for one pod after which the next pod is tried."""
SEVERAL_BUDGETS: Final = "more than one PodDisruptionBudget"
"""Part of the API server's message if a pod has two budgets; the response has status 500 and no reason."""
RESERVED_S: Final = 135.0
"""Seconds in which a budget refusal can result from an earlier request that ended no pod.

The API server reserves a disruption in the budget before it compares the resource version of the pod.

Source: kube-controller-manager, disruption controller, ``DeletionTimeout`` of 2 minutes.
"""
MAX_REMEMBERED: Final = 512
_POD_KINDS: Final = frozenset({"pods", "pod"})
"""Resource kinds in a "not found" response for a pod; ``NodeRestriction`` uses the singular."""


class Answer(Record):
    """Response of the API server to an eviction request.

    Attributes:
        status: HTTP status; 0 without a complete response.
        kind: resource kind in the details of a refusal, such as ``pods``.
        causes: cause reasons in the details of a refusal, such as ``DisruptionBudget``.
        retry_after_s: seconds in the ``Retry-After`` header; ``None`` without the header.
        text: refusal or error for display; empty for an accepted request.
    """

    status: int
    kind: str = ""
    causes: tuple[str, ...] = ()
    retry_after_s: float | None = None
    text: str = ""


class Step(StrEnum):
    """Next step after the response to an eviction request.

    Attributes:
        WAIT: the pod terminates; wait for the exit of its processes.
        COMPARE: the pod changed; check the pod again and repeat the request.
        DEFER: repeat the request later, and evict no other pod meanwhile.
        NEXT: try the next pod now, and repeat the request later.
        POSTPONE: no pod can be evicted now.
    """

    WAIT = "wait"
    COMPARE = "compare"
    DEFER = "defer"
    NEXT = "next"
    POSTPONE = "postpone"


class Consequence(Record):
    """Next step after the response to an eviction request, with its delay.

    Attributes:
        delay_s: seconds until the request is repeated.
        by_budget: whether a disruption budget refused the eviction.
        effect_unknown: whether the eviction may have taken effect.
    """

    step: Step
    delay_s: float = 0.0
    by_budget: bool = False
    effect_unknown: bool = False


def consequence(answer: Answer, refusals: int, *, hard: bool, jitter: float, repeats: bool = False) -> Consequence:
    """Return the next step after the response to an eviction request.

    Args:
        answer: response of the API server.
        refusals: earlier consecutive refusals and failures for this pod.
        hard: whether a hard threshold is met or the pod exceeds its own storage limit.
        jitter: random number from 0 to 1, which shortens the delay.
        repeats: whether a request for a changed pod (409) is repeated immediately.
    """
    if 200 <= answer.status < 300 or (answer.status == 404 and answer.kind in _POD_KINDS):
        return Consequence(Step.WAIT)  # the kubelet ends a deleted pod
    if answer.status == 409 and repeats:
        return Consequence(Step.COMPARE)
    later_s = _delay_s(FIRST_DELAY_S, LAST_DELAY_S, refusals, jitter, answer.retry_after_s)
    if answer.status == 429 and BUDGET_CAUSE in answer.causes:
        return Consequence(Step.NEXT if hard else Step.DEFER, later_s, by_budget=True)
    soon_s = _delay_s(FIRST_POSTPONE_S, LAST_POSTPONE_S, refusals, jitter, answer.retry_after_s)
    if answer.status >= 500 and SEVERAL_BUDGETS not in answer.text:
        step = Step.NEXT if hard and refusals + 1 >= SERVER_FAILURES else Step.POSTPONE
        return Consequence(step, later_s if step is Step.NEXT else soon_s, effect_unknown=step is Step.POSTPONE)
    if answer.status in {0, 401, 404, 429}:
        return Consequence(Step.POSTPONE, soon_s, effect_unknown=answer.status == 0)
    return Consequence(
        Step.NEXT if hard else Step.DEFER, later_s
    )  # such as 403 of an admission webhook, or two budgets


def _delay_s(first_s: float, last_s: float, refusals: int, jitter: float, least_s: float | None) -> float:
    delay_s = min(last_s, first_s * 2.0 ** min(refusals, 16))
    return max(delay_s * (1 - JITTER_SHARE * jitter), least_s or 0.0)


class Refusal(Record):
    """Consecutive refusals of evictions of one pod, or of all pods.

    Attributes:
        until_s: time of the next attempt in monotonic seconds.
        text: text of the last refusal.
        budget_refusals: consecutive refusals by a disruption budget.
    """

    count: int
    until_s: float
    text: str
    budget_refusals: int = 0


class EvictionMemory(Record):
    """Record of earlier responses to eviction requests.

    Attributes:
        refused: refusals by pod UID.
        postponed: refusal that postpones all evictions, such as an unavailable API server; ``None`` otherwise.
        unknown_s: time of a request of unknown effect in monotonic seconds, by pod UID.
        deletable: UIDs of pods to delete, instead of evict, with the next request.
        reserved_s: monotonic time of the last request that may have reserved a disruption in a budget without ending
            its pod, such as a conflict (409); ``None`` without such a request.
    """

    refused: Mapping[str, Refusal] = field(default_factory=dict)
    postponed: Refusal | None = None
    unknown_s: Mapping[str, float] = field(default_factory=dict)
    deletable: frozenset[str] = frozenset()
    reserved_s: float | None = None

    def count(self, uid: str) -> int:
        """Return the number of consecutive refusals and failures of a pod."""
        return self.refused[uid].count if uid in self.refused else 0

    def is_overridable(self, uid: str) -> bool:
        """Return whether a disruption budget refused a pod often enough to delete the pod despite the budget."""
        found = self.refused.get(uid)
        return found is not None and found.budget_refusals >= BUDGET_REFUSALS


def remember(memory: EvictionMemory, uid: str, answer: Answer, then: Consequence, now_s: float) -> EvictionMemory:
    """Return the record updated with a response for one pod."""
    others = {key: each for key, each in memory.refused.items() if key != uid}
    unknown_s = {key: at_s for key, at_s in memory.unknown_s.items() if key != uid and now_s - at_s < UNKNOWN_S}
    if then.effect_unknown:
        unknown_s[uid] = now_s
    reserved_s = now_s if answer.status == 409 or then.effect_unknown else memory.reserved_s
    if then.step in {Step.WAIT, Step.COMPARE}:
        return EvictionMemory(others, None, unknown_s, reserved_s=reserved_s)
    before = memory.refused.get(uid)
    is_reserved = reserved_s is not None and now_s - reserved_s < RESERVED_S
    budget_refusals = before.budget_refusals if before is not None and then.by_budget else 0
    if then.by_budget and not is_reserved:
        budget_refusals += 1
    until_s = now_s + then.delay_s
    refusal = Refusal(memory.count(uid) + 1, until_s, answer.text, budget_refusals)
    postponed = replace(refusal, budget_refusals=0) if then.step is Step.POSTPONE else None
    refused = dict([*others.items(), (uid, refusal)][-MAX_REMEMBERED:])
    return EvictionMemory(refused, postponed, unknown_s, reserved_s=reserved_s)


def may_end(memory: EvictionMemory, uid: str, now_s: float) -> EvictionMemory:
    """Return the record with a pod that has not terminated in time after its eviction was accepted."""
    return replace(memory, unknown_s={**memory.unknown_s, uid: now_s})


class RefusedEviction(Record):
    """A pod that is not evicted now.

    Attributes:
        text: cause for display.
        tries_next: whether the next pod is tried; otherwise no pod is evicted now.
    """

    text: str
    tries_next: bool


def refused_eviction(  # noqa: PLR0913 - one argument for each input of the decision
    memory: EvictionMemory, uid: str, pods: Mapping[str, PodSpec], *, answered_s: float | None, hard: bool, now_s: float
) -> RefusedEviction | None:
    """Return the reason not to request the eviction of a pod now; ``None`` to request it.

    Args:
        memory: record of earlier responses.
        uid: UID of the pod.
        pods: pods of the API server by UID.
        answered_s: monotonic time of the last response of the pod watch; ``None`` if ``pods`` is not current.
        hard: whether a hard threshold is met or the pod exceeds its own storage limit.
        now_s: current time in monotonic seconds.
    """
    if answered_s is None:
        return RefusedEviction("the pods of the API server are not current", tries_next=False)
    if memory.postponed is not None and now_s < memory.postponed.until_s:
        return RefusedEviction(memory.postponed.text, tries_next=False)
    for other, at_s in memory.unknown_s.items():
        if other == uid or now_s - at_s >= UNKNOWN_S:
            continue
        spec = pods.get(other)
        if spec is None or spec.deleting or answered_s < at_s + SETTLED_S:
            return RefusedEviction(f"the eviction of pod {other} may have taken effect", tries_next=False)
    found = memory.refused.get(uid)
    return RefusedEviction(found.text, tries_next=hard) if found is not None and now_s < found.until_s else None
