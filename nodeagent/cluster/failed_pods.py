"""The task that deletes failed pods of this node, which evictions and shutdowns left at the API server."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Final

from nodeagent.cluster import FAILED_PODS
from nodeagent.cluster.session_task import RegistrationReporter, SessionTask, open_api
from nodeagent.errors import ApiServerError, ApiServerRefusedError
from nodeagent.gc.executor import Outcome, PassEnd, PassTrigger
from nodeagent.gc.pass_state import new_pass_id
from nodeagent.model.decision import ItemKind
from nodeagent.record import Record, replace
from nodeagent.store.history import PLANNED, RUNNING, UNKNOWN, PastAction, PastPass
from nodeagent.telemetry.logging import StateLog

if TYPE_CHECKING:
    import asyncio

    from nodeagent.cluster.plan.failed_pods import Deletion, DeletionPlan, FailedPod
    from nodeagent.eviction.api_evictor import EvictionApi
    from nodeagent.gc.pass_history import HistoryWriter
    from nodeagent.kube.api_client import NodeApi
    from nodeagent.settings.settings import Settings

_GRACE_S: Final = 30
"""An ended pod is deleted at once all the same. Source: Kubernetes ``podStrategy.CheckGracefulDelete``."""
_SLACK_S: Final = 120.0
_WRITTEN_WITHIN_S: Final = 0.5
_OUTCOMES: Final = {404: Outcome.GONE, 409: Outcome.CHANGED}
"""Outcomes of a refused deletion by its status; with another status the deletion has failed."""
_ENDS_ROUND: Final = (401, 429)
"""Statuses of a refusal that does not depend on the pod; after another one the next pod is deleted."""
_SERVER_ERROR: Final = 500


class _Requests(Record):
    """Requests of one session."""

    list_pods: Callable[[], Awaitable[tuple[tuple[FailedPod, ...], datetime | None]]]
    deletions: EvictionApi
    nodes: NodeApi
    node: str


class _Known:
    """UIDs of pods known from earlier rounds of one session.

    Attributes:
        previewed: reported by a dry run.
        refused: their deletion failed.
    """

    def __init__(self) -> None:
        self.previewed: frozenset[str] = frozenset()
        self.refused: set[str] = set()


class FailedPodsTask(SessionTask):
    """Lists and deletes failed pods while that is configured; in a dry run it lists them."""

    name = FAILED_PODS
    list_interval_s: ClassVar[float] = 600.0
    between_deletions_s: ClassVar[float] = 1.0

    def _off_because(self, settings: Settings) -> str:
        if settings.invalid_because:  # the settings in force may have been withdrawn
            return "the configuration is invalid"
        kubernetes = settings.kubernetes
        return "" if kubernetes.delete_failed_after and kubernetes.access is not None else "not enabled"

    async def _run_session(self, settings: Settings, stop: asyncio.Event) -> None:
        # import h11, ssl and the objects of the API, which a daemon without this task does not load
        from nodeagent.cluster.failed_pod_api import list_failed_pods  # noqa: PLC0415
        from nodeagent.eviction.api_evictor import EvictionApi  # noqa: PLC0415
        from nodeagent.kube.api_client import NodeApi  # noqa: PLC0415

        client, name = open_api(settings)
        list_pods = partial(list_failed_pods, client, name)
        try:
            await self._keep(_Requests(list_pods, EvictionApi(client), NodeApi(client, name), name), settings, stop)
        finally:
            client.close()

    async def _keep(self, requests: _Requests, settings: Settings, stop: asyncio.Event) -> None:
        from nodeagent.pods.plan.watch import retry_s  # noqa: PLC0415 - with the client

        statuses, failures, known = self._context.loop_statuses, 0, _Known()
        reporter = RegistrationReporter(StateLog(self._logger, self._context.clock), statuses, FAILED_PODS)
        wait_s = self.poll_s  # the runtime and the role are known by then
        while True:
            statuses.waiting(FAILED_PODS, wait_s, _SLACK_S, removes=True)
            await self._wait(wait_s, settings, stop)
            if not self._continues(settings, stop):
                return
            if self._context.pass_lock.pause():
                wait_s = self.poll_s
                continue
            wait_s = self.list_interval_s * (1 + 0.1 * random.random())  # noqa: S311 - spreads the nodes of a fleet
            try:
                error = await self._delete(requests, settings, stop, known)
            except ApiServerError as raised:
                error = raised
                stated_s = raised.retry_after_s if isinstance(raised, ApiServerRefusedError) else None
                wait_s = retry_s(failures + 1, random.random(), stated_s)  # noqa: S311 - as above
            if error is not None:
                failures += 1
                reporter.failed("failed pods", error)
            else:
                failures = 0
                reporter.succeeded("failed pods")

    async def _delete(
        self, requests: _Requests, settings: Settings, stop: asyncio.Event, known: _Known
    ) -> ApiServerError | None:
        """List and delete; return the first refusal of a deletion, ``None`` without one.

        Raises:
            ApiServerError: a request failed for a reason other than its pod, or the Node object is not proven to be of
                this machine.
        """
        from nodeagent.cluster.facts import read_foreign  # noqa: PLC0415 - with the client
        from nodeagent.cluster.plan.failed_pods import plan_deletions  # noqa: PLC0415 - as above

        found, now = await requests.list_pods()
        known.refused &= {each.uid for each in found}
        plan = plan_deletions(found, requests.node, now, settings.kubernetes.delete_failed_after_s, known.refused)
        if not plan.deletions or self._context.dry_run:
            known.previewed = await self._preview(plan, known.previewed)
            return None
        known.previewed = frozenset()
        if because := await read_foreign(requests.nodes):
            raise ApiServerRefusedError(f"no failed pod is deleted: {because}", 403)
        record = _Record(self._history, self._begun(plan))
        await record.begin()
        refusals: list[ApiServerError] = []
        try:
            for number, each in enumerate(plan.deletions):
                if number:
                    await self._wait(self.between_deletions_s, settings, stop)
                if not self._may_delete(settings, stop):
                    break
                record.outcome(number, UNKNOWN)  # also if the request is cancelled
                try:
                    record.outcome(number, await self._delete_one(requests.deletions, each))
                except ApiServerError as error:
                    is_new = each.pod.uid not in known.refused
                    known.refused.add(each.pod.uid)
                    # a lost response and a server error, such as a timeout, do not prove that the pod was kept
                    if not isinstance(error, ApiServerRefusedError) or error.status >= _SERVER_ERROR:
                        record.outcome(number, UNKNOWN, str(error))
                        raise
                    record.outcome(number, Outcome.FAILED, str(error))
                    if error.status in _ENDS_ROUND:
                        raise
                    refusals.append(error)
                    if is_new:
                        self._logger.info("failed_pod_kept", **_fields(each), why=str(error))
        finally:
            await record.finish()
        return refusals[0] if refusals else None

    def _may_delete(self, settings: Settings, stop: asyncio.Event) -> bool:
        """Return whether the round continues; a pause, a reload and a shutdown end it."""
        return self._continues(settings, stop) and not self._context.dry_run and self._context.pass_lock.pause() is None

    async def _delete_one(self, requests: EvictionApi, deletion: Deletion) -> Outcome:
        """Delete a pod; return the outcome.

        Raises:
            ApiServerError: the request failed, neither because the pod does not exist nor because it has changed.
        """
        pod, fields = deletion.pod, _fields(deletion)
        try:
            await requests.delete(pod.namespace, pod.name, pod.uid, pod.resource_version, _GRACE_S)
        except ApiServerRefusedError as error:
            if (outcome := _OUTCOMES.get(error.status)) is None:
                raise
            self._logger.info("failed_pod_kept", **fields, why=str(error))
            return outcome
        self._logger.info("failed_pod_deleted", **fields, why=deletion.sentence)
        return Outcome.DONE

    async def _preview(self, plan: DeletionPlan, previewed: frozenset[str]) -> frozenset[str]:
        """Report the pods that would be deleted, each once; return their UIDs."""
        new = tuple(each for each in plan.deletions if each.pod.uid not in previewed)
        for each in new:
            self._logger.info("would_delete_failed_pod", **_fields(each), why=each.sentence, dry_run=True)
        if new:
            record = _Record(self._history, replace(self._begun(replace(plan, deletions=new)), dry_run=True))
            for number in range(len(new)):
                record.outcome(number, Outcome.DRY_RUN)
            await record.finish()
        return frozenset(each.pod.uid for each in plan.deletions)

    @property
    def _history(self) -> HistoryWriter | None:
        agent = self._context.agent
        return agent.history_writer if agent is not None and agent.record else None

    def _begun(self, plan: DeletionPlan) -> PastPass:
        started_at = self._context.clock.now()
        return PastPass(
            id=new_pass_id(started_at),
            started_at=started_at,
            duration_s=0.0,
            trigger=PassTrigger.INTERVAL,
            scope=FAILED_PODS,
            plan_id="",
            dry_run=False,
            result=RUNNING,
            actions=tuple(map(_planned, plan.deletions)),
        )


class _Record:
    """The history's record of one round."""

    def __init__(self, writer: HistoryWriter | None, past: PastPass) -> None:
        self._writer = writer
        self._past = past
        self._outcomes: dict[int, tuple[str, str]] = {}

    async def begin(self) -> None:
        """Record the planned deletions."""
        if self._writer is not None:
            await self._writer.begin(self._past, _WRITTEN_WITHIN_S)

    def outcome(self, number: int, outcome: str, detail: str = "") -> None:
        """Take the outcome of a deletion, and the error of a failed one."""
        self._outcomes[number] = str(outcome), detail

    async def finish(self) -> None:
        """Record the outcomes; a deletion without one was not attempted."""
        if self._writer is None:
            return
        not_attempted = Outcome.NOT_ATTEMPTED.value, ""
        outcomes = [self._outcomes.get(number, not_attempted) for number in range(len(self._past.actions))]
        actions = tuple(
            replace(each, outcome=outcome, detail=detail)
            for each, (outcome, detail) in zip(self._past.actions, outcomes, strict=True)
        )
        is_cut = any(outcome in (Outcome.NOT_ATTEMPTED, UNKNOWN) for outcome, _ in outcomes)
        end = PassEnd.CANCELLED if is_cut else PassEnd.COMPLETE
        await self._writer.finish(replace(self._past, result=end.value, actions=actions), _WRITTEN_WITHIN_S)


def _fields(deletion: Deletion) -> dict[str, str]:
    """Return the log fields of a pod."""
    pod = deletion.pod
    return {"pod_namespace": pod.namespace, "pod_name": pod.name, "pod_uid": pod.uid}


def _planned(deletion: Deletion) -> PastAction:
    return PastAction(
        kind=ItemKind.POD.value,
        item_id=deletion.pod.uid,
        name=deletion.pod.full_name,
        references=(),
        outcome=PLANNED,
        detail="",
        reason=deletion.verdict.value,
        sentence=deletion.sentence,
    )
