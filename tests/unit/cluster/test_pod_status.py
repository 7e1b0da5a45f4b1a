"""Publication of the status of ended pods, with a fake API server, in virtual time and over TLS."""

from __future__ import annotations

import asyncio
import io
import json
from datetime import timedelta
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from nodeagent.cluster.node_session import SessionEnd
from nodeagent.cluster.pod_status import PodStatuses
from nodeagent.cluster.task import RegistrationTask
from nodeagent.config.validation import convert
from nodeagent.daemon.context import DaemonContext
from nodeagent.errors import RuntimeUnavailableError
from nodeagent.host.systemd import userspace_id
from nodeagent.loops.passes import LoopStatuses, PassLock
from nodeagent.model.pods import PodSpec
from nodeagent.model.runtime import Container, ContainerState, Sandbox
from nodeagent.model.stops import NodeStop, PodOutcome, StopEnd, StopKind, StoppedPod
from nodeagent.pods.plan import watch
from nodeagent.pods.role import RoleWatch
from nodeagent.record import replace
from nodeagent.settings.settings import Config
from nodeagent.store.history import History, PastAction, PastPass, Retention
from nodeagent.telemetry import logging as log
from tests.support.api_pods import pod
from tests.support.api_server import ApiServer, serving_api
from tests.support.virtual_time import START, play
from tests.unit.cluster.cluster import Cluster
from tests.unit.cluster.tasks import context_of, running, settings_with, until
from tests.unit.kubelet_double import KUBELET, KubeletDouble

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.certificates import Authority

SETTINGS = ("register_node", "watch_pods", "publish_pod_status")
MESSAGE = "The node was low on resource: memory. "
EVICTED = {
    "event": "evicted",
    "pod_namespace": "default",
    "pod_name": "web",
    "pod_uid": "uid-web",
    "message": MESSAGE,
}
STOPPED = {"event": "pod_stopped", "pod": "default/web", "pod_uid": "uid-web", "outcome": "stopped"}
EXITED = Container("c", "app", "s", ContainerState.EXITED, created_at=START - timedelta(days=1), pod_uid="")
RETENTION = Retention(timedelta(days=30), 1 << 20)


class Runtime:
    """Runtime with the containers of the pod ``web``; ``None`` without an answer."""

    def __init__(self) -> None:
        self.containers: tuple[Container, ...] | None = (EXITED,)

    async def version(self) -> object:
        raise RuntimeUnavailableError("not part of this double")

    async def list_sandboxes(self) -> tuple[Sandbox, ...]:
        return (Sandbox("s", "web", "default", "uid-web", ready=False, created_at=EXITED.created_at),)

    async def list_containers(self) -> tuple[Container, ...]:
        if self.containers is None:
            raise RuntimeUnavailableError("no answer")
        return self.containers


class Agent:
    """Agent with a runtime."""

    def __init__(self) -> None:
        self.cri = Runtime()


class Node:
    """A registered node with the pod ``web``, and the queue of its pod statuses."""

    def __init__(self, directory: Path, *pods: dict[str, Any]) -> None:
        self.cluster = Cluster(server=ApiServer(*SETTINGS))
        for each in pods or (pod("web"),):
            self.cluster.server.pods.put(each)
        settings = replace(convert(Config, {}).settings(), state_directory=directory)
        clock = self.cluster.clock
        logger = log.configure("json", "info", self.cluster.log)

        async def made() -> DaemonContext:
            """Return a context; its clock is that of the running loop."""
            return DaemonContext(settings, logger, clock, LoopStatuses(clock), PassLock(clock))

        self.context = play(made())
        agent: Any = Agent()
        self.context.agent = agent
        self.runtime: Runtime = agent.cri
        self.restart()

    def restart(self) -> None:
        """Lose the state in memory."""
        self.context.watched_pods.reset()
        if self.cluster.pod_statuses is not None:
            self.cluster.pod_statuses.close()
        self.cluster.pod_statuses = PodStatuses(self.context)
        self.cluster.pod_statuses.open()

    def add(self, event: dict[str, Any]) -> None:
        assert self.cluster.pod_statuses is not None
        self.cluster.pod_statuses.add(event)

    def watched(self) -> None:
        """Take the pods of the API server, as the watch does."""
        found = [
            PodSpec(each["metadata"]["uid"], "default", each["metadata"]["name"], phase=each["status"]["phase"])
            for each in self.cluster.server.pods.pods.values()
        ]
        clock, self.context.watched_pods.address = self.cluster.clock, "API server"
        self.context.watched_pods.state = watch.after_list(
            watch.WatchState(), found, "1", requested_s=clock.monotonic_s(), now_s=clock.monotonic_s(), now=clock.now()
        )

    def run(self, *events: dict[str, Any], seconds: float = 30, current: bool = True) -> SessionEnd:
        """Run a session in which the events are logged after 5 s."""

        async def script() -> None:
            await asyncio.sleep(5)
            if current:
                self.watched()
            for each in events:
                self.add(each)

        return self.cluster.run(seconds, script)

    @property
    def status(self) -> dict[str, Any]:
        (found,) = self.cluster.server.pods.pods.values()
        status: dict[str, Any] = found["status"]
        return status

    @property
    def patches(self) -> int:
        return len(self.cluster.server.seen("PATCH", "/pods/web/status"))


@pytest.mark.parametrize(
    ("event", "reason", "message"),
    [
        (EVICTED, "Evicted", MESSAGE),
        (STOPPED, "Terminated", "Pod was terminated in response to imminent node shutdown."),
        ({**STOPPED, "outcome": "killed"}, "Terminated", "Pod was terminated in response to imminent node shutdown."),
    ],
)
def test_ended_pod_has_the_phase_failed_with_reason_message_and_condition(
    tmp_path: Path, event: dict[str, Any], reason: str, message: str
) -> None:
    ready = {"type": "Ready", "status": "True", "message": "x"}
    node = Node(tmp_path, pod("web", status={"conditions": [ready, {"type": "PodScheduled", "status": "True"}]}))
    node.run(event)
    assert (node.status["phase"], node.status["reason"], node.status["message"]) == ("Failed", reason, message)
    conditions = {each["type"]: each for each in node.status["conditions"]}
    assert conditions["DisruptionTarget"]["reason"] == "TerminationByNodeagent"
    assert conditions["DisruptionTarget"]["message"] == message
    assert conditions["Ready"] | {"lastTransitionTime": ""} == {
        "type": "Ready",
        "status": "False",
        "reason": "PodFailed",
        "lastTransitionTime": "",
    }
    assert conditions["PodScheduled"]["status"] == "True"
    assert node.patches == len(node.cluster.logged("pod_status_published")) == 1


def test_pod_that_exceeded_its_own_storage_limit_has_no_disruption_target(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.run({**EVICTED, "reason": "pod-over-storage-limit"})
    assert node.status["reason"] == "Evicted"
    assert [each["type"] for each in node.status["conditions"]] == ["Ready", "ContainersReady"]


@pytest.mark.parametrize(
    "event",
    [{**STOPPED, "outcome": "failed"}, {**STOPPED, "outcome": ""}, {**EVICTED, "event": "eviction_failed"}],
)
def test_pod_that_may_run_is_not_published(tmp_path: Path, event: dict[str, Any]) -> None:
    node = Node(tmp_path)
    node.run(event)
    assert node.patches == 0


def test_pod_is_not_published_before_the_runtime_reports_the_exit_of_its_containers(tmp_path: Path) -> None:
    node = Node(tmp_path)

    async def script() -> None:
        await asyncio.sleep(5)
        node.watched()
        node.add(EVICTED)
        for containers in ((replace(EXITED, state=ContainerState.RUNNING),), None):
            node.runtime.containers = containers
            await asyncio.sleep(20)
            assert node.patches == 0
        node.runtime.containers = (EXITED,)

    node.cluster.run(60, script)
    assert node.patches == 1


def test_pod_is_not_published_while_the_watch_is_not_current(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.run(EVICTED, current=False)
    assert node.patches == 0


def test_new_pod_of_the_same_name_is_not_published(tmp_path: Path) -> None:
    node = Node(tmp_path, pod("web", "uid-of-the-replacement"))
    node.run(EVICTED)
    assert node.patches == 0
    assert node.status["phase"] == "Running"


def test_new_pod_of_the_same_name_that_the_watch_does_not_show_yet_is_refused_by_its_uid(tmp_path: Path) -> None:
    node = Node(tmp_path)

    async def script() -> None:
        await asyncio.sleep(5)
        node.watched()
        node.cluster.server.pods.delete("uid-web")
        node.cluster.server.pods.put(pod("web", "uid-of-the-replacement"))
        node.add(EVICTED)
        await asyncio.sleep(10)
        node.watched()

    node.cluster.run(60, script)
    assert node.patches >= 1
    assert node.status == pod("web")["status"]


@pytest.mark.parametrize("status", [401, 403, 409, 429, 500, 503])
def test_refused_patch_is_repeated(tmp_path: Path, status: int) -> None:
    node = Node(tmp_path)

    async def script() -> None:
        await asyncio.sleep(5)
        node.watched()
        node.cluster.status_api.refusals = {"/pods/web/status": [status, status]}
        node.add(EVICTED)

    node.cluster.run(90, script)
    assert node.patches == 1
    assert node.status["phase"] == "Failed"
    failures = [each for each in node.cluster.logged("api_request_failed") if each["part"] == "pod status"]
    assert len(failures) == 1


@pytest.mark.parametrize("status", [404, 422])
def test_patch_that_can_never_succeed_is_not_repeated(tmp_path: Path, status: int) -> None:
    node = Node(tmp_path)
    node.cluster.status_api.refusals = {"/pods/web/status": [status] * 9}
    node.run(EVICTED, seconds=120)
    assert len(node.cluster.status_api.refusals["/pods/web/status"]) == 8
    assert len(node.cluster.logged("pod_status_dropped")) == (status == 422)


def test_refused_pod_does_not_delay_other_pods(tmp_path: Path) -> None:
    node = Node(tmp_path, pod("web"), pod("other"))
    node.cluster.server.pods.denied["web"] = "denied by a webhook"
    node.run(EVICTED, {**EVICTED, "pod_name": "other", "pod_uid": "uid-other"})
    phases = {name: each["status"]["phase"] for name, each in node.cluster.server.pods.pods.items()}
    assert phases == {"uid-web": "Running", "uid-other": "Failed"}


@pytest.mark.parametrize("status", [401, 403, 409, 422, 429, 503])
def test_next_pod_waits_after_a_refusal_that_does_not_concern_one_pod_only(tmp_path: Path, status: int) -> None:
    names = ("web", "one", "two", "three", "four")
    node = Node(tmp_path, *map(pod, names))
    node.cluster.status_api.refusals = {f"/pods/{name}/status": [status] for name in names}
    node.run(*({**EVICTED, "pod_name": name, "pod_uid": f"uid-{name}"} for name in names))
    sent = [(at_s, path.split("/")[-2]) for at_s, path in node.cluster.status_api.sent if "/pods/" in path][:5]
    assert tuple(name for _, name in sent) == names
    gaps = [round(later - earlier, 3) for (earlier, _), (later, _) in pairwise(sent)]
    assert gaps == ([0.0] * 4 if status in {409, 422} else [0.2, 0.4, 0.8, 1.6])


def test_status_is_published_after_an_outage(tmp_path: Path) -> None:
    node = Node(tmp_path)

    async def script() -> None:
        await asyncio.sleep(5)
        node.cluster.status_api.down = node.cluster.lease_api.down = True
        node.watched()
        node.add(EVICTED)
        await asyncio.sleep(60)
        assert node.status["phase"] == "Running"
        node.cluster.status_api.down = node.cluster.lease_api.down = False

    node.cluster.run(100, script)
    assert node.status["phase"] == "Failed"


def test_lost_answer_is_followed_by_no_further_change_once_the_watch_shows_the_phase(tmp_path: Path) -> None:
    node = Node(tmp_path)

    async def script() -> None:
        await asyncio.sleep(5)
        node.watched()
        node.cluster.status_api.lost = 1
        node.add(EVICTED)
        while node.status["phase"] == "Running":  # noqa: ASYNC110 - the fake API server sets no asyncio.Event
            await asyncio.sleep(0.05)
        node.watched()

    node.cluster.run(60, script)
    assert node.patches == 1


def past_eviction(outcome: str = "done", message: str = MESSAGE, victim: str = "uid-web") -> PastPass:
    action = PastAction("pod", "uid-web", "default/web", (), outcome, "", "ranked", "sentence")
    made = PastPass("p", START - timedelta(hours=1), 2.0, "eviction", "pods", "", False, "complete", actions=(action,))
    return replace(made, eviction=json.dumps({"victim": victim, "message": message}) if message else "")


def past_stop(boot_id: str, kind: StopKind, outcome: PodOutcome | None = None) -> NodeStop:
    stopped = StoppedPod("uid-web", "default", "web", outcome=outcome)
    end = StopEnd.UNKNOWN if kind is StopKind.UNCLEAN else StopEnd.COMPLETE
    return NodeStop(boot_id, kind, START - timedelta(hours=1), end=end, pods=(stopped,))


@pytest.mark.parametrize(
    ("recorded", "expected"),
    [
        (past_eviction(), ("Failed", "Evicted", MESSAGE)),
        (past_eviction(message=""), ("Failed", "Evicted", "sentence")),
        (past_eviction(victim="uid-of-another-pod"), ("Failed", "Evicted", "sentence")),
        (past_eviction("failed"), ("Running", None, None)),
        (past_eviction("dry-run"), ("Running", None, None)),
        (
            past_stop("earlier", StopKind.SIGNAL, PodOutcome.STOPPED),
            ("Failed", "Terminated", "Pod was terminated in response to imminent node shutdown."),
        ),
        (
            past_stop("earlier", StopKind.UNIT_STOP, PodOutcome.FAILED),
            ("Failed", "Terminated", "Pod was terminated in response to imminent node shutdown."),
        ),
        (
            past_stop("earlier", StopKind.UNCLEAN),
            ("Failed", "NodeStopped", "The containers of the pod ended with an unclean stop of the node."),
        ),
        (past_stop("this", StopKind.UNIT_STOP, PodOutcome.FAILED), ("Running", None, None)),
    ],
)
def test_pod_that_ended_before_the_start_is_published_from_the_history(
    tmp_path: Path, recorded: PastPass | NodeStop, expected: tuple[str, str | None, str | None]
) -> None:
    node, history = Node(tmp_path), History(tmp_path)
    if isinstance(recorded, PastPass):
        history.add(recorded, RETENTION)
    else:
        boot_id = userspace_id() if recorded.boot_id == "this" else recorded.boot_id
        history.add_stop(replace(recorded, boot_id=boot_id), RETENTION, START)
    node.run()
    assert (node.status["phase"], node.status.get("reason"), node.status.get("message")) == expected


def test_pod_of_an_outage_is_published_after_a_restart_of_the_agent_and_only_once(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.run(EVICTED, current=False)
    History(tmp_path).add(past_eviction(), RETENTION)
    node.restart()
    node.run()
    assert (node.status["reason"], node.patches) == ("Evicted", 1)
    node.restart()
    node.run()
    assert node.patches == 1


def test_unclean_stop_that_is_recorded_after_the_start_is_published(tmp_path: Path) -> None:
    node = Node(tmp_path)

    async def script() -> None:
        await asyncio.sleep(5)
        node.watched()
        History(tmp_path).add_stop(past_stop("earlier", StopKind.UNCLEAN), RETENTION, START)
        node.add({"event": "unclean_stop"})

    node.cluster.run(30, script)
    assert node.status["reason"] == "NodeStopped"


def test_pod_that_was_started_again_after_its_end_is_not_published(tmp_path: Path) -> None:
    node = Node(tmp_path)
    History(tmp_path).add(past_eviction(), RETENTION)
    node.runtime.containers = (replace(EXITED, created_at=START),)
    node.run()
    assert node.patches == 0
    assert "created later" in node.cluster.logged("pod_status_dropped")[0]["why"]


def test_nothing_is_published_for_a_node_that_is_out_of_service(tmp_path: Path) -> None:
    node = Node(tmp_path)

    async def script() -> None:
        await asyncio.sleep(5)
        node.watched()
        taint = {"key": "node.kubernetes.io/out-of-service", "value": "nodeshutdown", "effect": "NoExecute"}
        node.cluster.server.node["spec"]["taints"].append(taint)
        node.add(EVICTED)
        await asyncio.sleep(60)
        assert node.patches == 0
        node.cluster.server.node["spec"]["taints"].remove(taint)

    node.cluster.run(90, script)
    assert node.status["phase"] == "Failed"


def test_kubelet_that_starts_before_the_patch_prevents_it(tmp_path: Path) -> None:
    node = Node(tmp_path)

    async def script() -> None:
        await asyncio.sleep(5)
        node.watched()
        node.cluster.refusal = "a kubelet manages this node"
        node.add(EVICTED)

    assert node.cluster.run(60, script) is SessionEnd.REFUSED
    assert node.patches == 0


async def test_status_is_published_over_tls_with_the_printed_rights_and_never_beside_a_kubelet(
    authority: Authority, tmp_path: Path
) -> None:
    api = ApiServer(*SETTINGS)
    api.pods.put(pod("web"))
    with serving_api(api, partial(authority.server_context, "server")) as url:
        section = dict.fromkeys(SETTINGS, True)
        settings = settings_with(authority, url, tmp_path, section, {"role": "standalone"})
        settings = replace(settings, state_directory=tmp_path)
        for double, published in ((KubeletDouble(KUBELET), False), (KubeletDouble(), True)):
            context = context_of(settings, stream := io.StringIO())
            context.roles = RoleWatch(double.clock, reader=double)
            agent: Any = Agent()
            context.agent = agent
            clock = context.clock
            context.watched_pods.address = "API server"
            context.watched_pods.state = watch.after_list(
                watch.WatchState(),
                [PodSpec("uid-web", "default", "web", phase="Running")],
                "1",
                requested_s=clock.monotonic_s(),
                now_s=clock.monotonic_s(),
                now=clock.now(),
            )
            async with running(context, RegistrationTask(context)):
                await until(lambda: "node_registered" in stream.getvalue() or "loop_disabled" in stream.getvalue())
                context.logger.warning(**EVICTED)
                if published:
                    await until(lambda: "pod_status_published" in stream.getvalue())
            assert bool(api.seen("PATCH", "/pods/web/status")) is published
    (patch,) = api.seen("PATCH", "/pods/web/status")
    assert patch.content_type == "application/strategic-merge-patch+json"
    assert patch.body["metadata"] == {"uid": "uid-web"}
