"""Evictions through the API server: the step that follows from an answer, and the memory of refused pods.

A pod is refused by its disruption budget, or for a reason of its own; both are tried again with a back-off. At the
level of a hard threshold the next pod is tried meanwhile, below it no other pod is. A request without an answer may
have taken effect, so no other pod is evicted until the API server shows the state of its pod.

Source: Kubernetes API-initiated eviction, ``policy/v1``.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final

from nodeagent.record import Record, field, replace

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nodeagent.model.pods import PodSpec

BUDGET_CAUSE: Final = "DisruptionBudget"
"""Source: Kubernetes ``policy/v1``, ``DisruptionBudgetCause``."""
FIRST_DELAY_S: Final = 10.0
LAST_DELAY_S: Final = 300.0
FIRST_POSTPONE_S: Final = 1.0
LAST_POSTPONE_S: Final = 60.0
JITTER_SHARE: Final = 0.5
UNKNOWN_S: Final = 60.0
"""Time without another eviction after a request of unknown effect, unless the API server shows its pod unchanged."""
SETTLED_S: Final = 5.0
"""Age of such a request from which a current watch shows its effect."""
BUDGET_REFUSALS: Final = 2
"""Refusals in a row after which a pod may be deleted despite its disruption budget, where that is configured."""
SERVER_FAILURES: Final = 3
"""Failures (5xx) in a row for one pod after which the next pod is tried."""
SEVERAL_BUDGETS: Final = "more than one PodDisruptionBudget"
"""Part of the message with which the API server refuses a pod with two budgets, with status 500 and no reason."""
RESERVED_S: Final = 135.0
"""Time in which a refusal by a budget can be an effect of an earlier request that ended no pod: the API server takes a
disruption from the budget before it compares the version of the pod. Source: kube-controller-manager, disruption
controller, ``DeletionTimeout`` of 2 minutes."""
MAX_REMEMBERED: Final = 512
_POD_KINDS: Final = frozenset({"pods", "pod"})
"""Kinds in the answer that a pod is missing; the singular is of ``NodeRestriction``, for a node certificate."""


class Answer(Record):
    """Answer to the request of an eviction.

    Attributes:
        status: HTTP status; 0 without a complete answer.
        kind: resource that the refusal is about, such as ``pods``.
        causes: reasons of the causes, such as ``DisruptionBudget``.
        retry_after_s: least time that the server stated; ``None`` without one.
        text: for display; empty for an accepted request.
    """

    status: int
    kind: str = ""
    causes: tuple[str, ...] = ()
    retry_after_s: float | None = None
    text: str = ""


class Step(StrEnum):
    """Steps after an answer.

    Attributes:
        WAIT: the pod ends: wait for the end of its processes.
        COMPARE: the pod changed: compare it again, and repeat the request.
        DEFER: repeat the request later, and evict no other pod meanwhile.
        NEXT: try the next pod, and this one later.
        POSTPONE: no pod can be evicted now.
    """

    WAIT = "wait"
    COMPARE = "compare"
    DEFER = "defer"
    NEXT = "next"
    POSTPONE = "postpone"


class Consequence(Record):
    """Step after an answer.

    Attributes:
        delay_s: time until the request is repeated.
        by_budget: whether a disruption budget refused the eviction.
        effect_unknown: whether the eviction may have taken effect.
    """

    step: Step
    delay_s: float = 0.0
    by_budget: bool = False
    effect_unknown: bool = False


def consequence(answer: Answer, refusals: int, *, hard: bool, jitter: float, repeats: bool = False) -> Consequence:
    """Return the step after an answer.

    Args:
        answer: of the API server.
        refusals: earlier refusals and failures in a row for this pod.
        hard: whether a hard threshold is met, or the pod exceeds a storage limit of its own.
        jitter: 0 to 1.
        repeats: whether a request about a changed pod is repeated at once.
    """
    if 200 <= answer.status < 300 or (answer.status == 404 and answer.kind in _POD_KINDS):
        return Consequence(Step.WAIT)  # a pod that the API server lacks is ended by its kubelet
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
    )  # such as 403 by an admission webhook, or two budgets


def _delay_s(first_s: float, last_s: float, refusals: int, jitter: float, least_s: float | None) -> float:
    delay_s = min(last_s, first_s * 2.0 ** min(refusals, 16))
    return max(delay_s * (1 - JITTER_SHARE * jitter), least_s or 0.0)


class Refusal(Record):
    """Refusals of one pod in a row, or of all pods.

    Attributes:
        until_s: monotonic time of the next attempt.
        text: last refusal.
        budget_refusals: refusals in a row by a disruption budget.
    """

    count: int
    until_s: float
    text: str
    budget_refusals: int = 0


class EvictionMemory(Record):
    """Earlier answers.

    Attributes:
        refused: by the UID of the pod.
        postponed: state of the API server; ``None`` if it answers.
        unknown_s: UID of a pod that may end to the monotonic time since which that is unknown.
        deletable: UIDs of the pods whose next request is a deletion.
        reserved_s: monotonic time of the last request that may have used a budget without an effect on its pod, such as
            a conflict (409); ``None`` before the first.
    """

    refused: Mapping[str, Refusal] = field(default_factory=dict)
    postponed: Refusal | None = None
    unknown_s: Mapping[str, float] = field(default_factory=dict)
    deletable: frozenset[str] = frozenset()
    reserved_s: float | None = None

    def count(self, uid: str) -> int:
        """Return the refusals and failures in a row of a pod."""
        return self.refused[uid].count if uid in self.refused else 0

    def is_overridable(self, uid: str) -> bool:
        """Return whether a disruption budget alone refused a pod, repeatedly."""
        found = self.refused.get(uid)
        return found is not None and found.budget_refusals >= BUDGET_REFUSALS


def remember(memory: EvictionMemory, uid: str, answer: Answer, then: Consequence, now_s: float) -> EvictionMemory:
    """Return the memory after an answer about one pod."""
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
    """Return the memory with a pod whose eviction was accepted, and which has not ended in time."""
    return replace(memory, unknown_s={**memory.unknown_s, uid: now_s})


class HeldBack(Record):
    """A pod that is not evicted now.

    Attributes:
        text: cause, for display.
        tries_next: whether the next pod is tried; otherwise none is evicted now.
    """

    text: str
    tries_next: bool


def held_back(  # noqa: PLR0913 - facts of one moment
    memory: EvictionMemory, uid: str, pods: Mapping[str, PodSpec], *, answered_s: float | None, hard: bool, now_s: float
) -> HeldBack | None:
    """Return the reason against the request of an eviction now; ``None`` without one.

    Args:
        memory: earlier answers.
        uid: of the pod.
        pods: pods at the API server, by UID.
        answered_s: monotonic time of the last answer of their watch; ``None`` if they are not current.
        hard: whether a hard threshold is met, or the pod exceeds a storage limit of its own.
        now_s: monotonic seconds.
    """
    if answered_s is None:
        return HeldBack("the pods of the API server are not current", tries_next=False)
    if memory.postponed is not None and now_s < memory.postponed.until_s:
        return HeldBack(memory.postponed.text, tries_next=False)
    for other, at_s in memory.unknown_s.items():
        if other == uid or now_s - at_s >= UNKNOWN_S:
            continue
        spec = pods.get(other)
        if spec is None or spec.deleting or answered_s < at_s + SETTLED_S:
            return HeldBack(f"the eviction of pod {other} may have taken effect", tries_next=False)
    found = memory.refused.get(uid)
    return HeldBack(found.text, tries_next=hard) if found is not None and now_s < found.until_s else None
