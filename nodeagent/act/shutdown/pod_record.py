"""Progress of pods in a shutdown: the state of each container, and the record of each pod."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from nodeagent.model import PodOutcome
from nodeagent.model.node_stop import SentTerm, StoppedPod
from nodeagent.plan.shutdown.outcome import ContainerEnd, exit_note, pod_outcome
from nodeagent.record import Record

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Collection

    from nodeagent.model import Container, ShutdownPod


class Stopper(Protocol):
    """Stops containers and sandboxes.

    The methods raise errors of the runtime; a container or sandbox that was not found counts as stopped.
    """

    async def version(self) -> object:
        """Answer once earlier requests have arrived."""

    async def stop_container(self, container_id: str, timeout_s: int) -> None:
        """Send TERM to a container, and KILL after ``timeout_s`` seconds; returns once it has stopped."""

    async def container_status(self, container_id: str) -> Container:
        """Return a container with its exit code; raises RuntimeNotFoundError for an absent one."""

    async def stop_sandbox(self, sandbox_id: str) -> None:
        """Stop a sandbox with its containers."""


class Processes(Protocol):
    """The processes of containers, independent of the runtime."""

    on_change: Callable[[], None]

    async def locate(self, container_ids: Collection[str], /) -> bool:
        """Find the processes of containers; return whether the others have none."""

    def watch(self, container_ids: Collection[str], /) -> None:
        """Call ``on_change`` when one of the located containers has ended."""

    def is_located(self, container_id: str, /) -> bool:
        """Return whether the processes of a container were found, ended or not."""

    def is_populated(self, container_id: str, /) -> bool | None:
        """Return whether a container has processes; ``None`` if not located."""

    def terminate(self, container_id: str, /) -> bool:
        """Send TERM to the main process of a container; return whether it was signalled."""

    def kill(self, container_id: str, /) -> bool:
        """Send KILL to all processes of a container; return whether one was signalled."""

    def has_stopped_shim(self, container_id: str, /) -> bool:
        """Return whether the runtime's shim of a container is stopped."""

    def has_pending_term(self, container_id: str, /) -> bool:
        """Return whether TERM was sent to the main process of a container, which has not received it yet."""

    def is_delayed(self, container_id: str, /) -> bool:
        """Return whether the main process of a container waits for a CPU, for memory or for a disk."""

    def cpu_us(self, container_id: str, /) -> int | None:
        """Return the CPU time of a container in microseconds; ``None`` if unknown."""


class NoProcesses:
    """No container is located; the runtime alone is used."""

    def __init__(self) -> None:
        self.on_change: Callable[[], None] = lambda: None

    async def locate(self, _container_ids: Collection[str], /) -> bool:
        """Return False: no container is watched."""
        return False

    def watch(self, _container_ids: Collection[str], /) -> None:
        """Watch none."""

    def is_located(self, _container_id: str, /) -> bool:
        """Return false."""
        return False

    def is_populated(self, _container_id: str, /) -> bool | None:
        """Return ``None``."""
        return None

    def terminate(self, _container_id: str, /) -> bool:
        """Signal nothing."""
        return False

    def kill(self, _container_id: str, /) -> bool:
        """Signal nothing."""
        return False

    def has_stopped_shim(self, _container_id: str, /) -> bool:
        """Return false."""
        return False

    def has_pending_term(self, _container_id: str, /) -> bool:
        """Return false."""
        return False

    def is_delayed(self, _container_id: str, /) -> bool:
        """Return false."""
        return False

    def cpu_us(self, _container_id: str, /) -> int | None:
        """Return ``None``."""
        return None


class RunningPod(Record):
    """A pod with running containers or a ready sandbox.

    Attributes:
        pod: the pod, with its running containers only.
        sandbox_ids: ids of its ready sandboxes.
    """

    pod: ShutdownPod
    sandbox_ids: tuple[str, ...] = ()


@dataclass(slots=True)
class ContainerStop:
    """One container with a stop request.

    Attributes:
        requested: whether a stop request to the runtime is pending.
        signalled_at_ms: delivery of TERM, confirmed by the runtime or sent directly; ``None`` before.
        direct: whether TERM was sent directly.
        answered: whether the runtime reported its end.
        ended_at_ms: its end, in milliseconds since the shutdown began; ``None`` before.
        end_inferred: whether its processes were not seen to end, so that the runtime's time of the end is used.
        observed: whether its processes were seen, also by an earlier process of the agent.
        killed: whether KILL was sent while it had processes; ``None`` if an earlier process of the agent may have.
        kill_due_ms: first time at which KILL was due; ``None`` before.
        killed_unhandled: whether KILL was sent while TERM was pending in its main process.
        cpu_us: CPU time in microseconds before the stop request; ``None`` if unknown.
        call: the pending stop request.
        problem: last failure.
    """

    id: str
    signalled_at_ms: int | None = None
    requested: bool = False
    direct: bool = False
    answered: bool = False
    ended_at_ms: int | None = None
    end_inferred: bool = False
    observed: bool = False
    killed: bool | None = False
    kill_due_ms: int | None = None
    killed_unhandled: bool = False
    exit_code: int | None = None
    cpu_us: int | None = None
    call: asyncio.Task[None] | None = None
    killer: asyncio.Task[None] | None = None
    problem: str = ""

    @property
    def end(self) -> ContainerEnd:
        """Its end, as input of the outcome."""
        return ContainerEnd(self.ended_at_ms is not None, self.killed, self.exit_code)


@dataclass(slots=True)
class PodRecord:
    """One pod with a stop request.

    Attributes:
        own_grace_ms: its termination grace period; ``None`` where not known.
        phase: position of its phase.
        readings: number of pending readings of exit codes.
        is_final: whether ``outcome`` is final.
        is_overdue: whether it had processes at the end of the run.
    """

    pod: ShutdownPod
    why: str
    phase: int
    phase_name: str
    requested_at_ms: int
    own_grace_ms: int | None = None
    containers: dict[str, ContainerStop] = field(default_factory=dict)
    outcome: PodOutcome = PodOutcome.STOPPING
    took_ms: int | None = None
    readings: int = 0
    is_final: bool = False
    is_overdue: bool = False
    detail: str = ""

    @property
    def running(self) -> list[ContainerStop]:
        """Its containers that have not ended."""
        return [each for each in self.containers.values() if each.ended_at_ms is None]

    @property
    def signalled_at_ms(self) -> int | None:
        """Delivery of TERM to the last of its containers; ``None`` while one is unconfirmed."""
        times = [each.signalled_at_ms for each in self.containers.values() if each.ended_at_ms is None]
        known = [each for each in times if each is not None]
        return max(known) if known and len(known) == len(times) else None

    @property
    def known_outcome(self) -> PodOutcome:
        """Its outcome; before its exit codes are known, the outcome that the usual exit codes have."""
        if self.is_final or self.took_ms is None:
            return self.outcome
        return pod_outcome([each.end for each in self.containers.values()])

    def end(self, now_ms: int) -> None:
        """Record the end of its processes."""
        ended_ms = max((each.ended_at_ms or 0 for each in self.containers.values()), default=now_ms)
        self.took_ms = max(0, ended_ms - self.requested_at_ms)

    def exceed_time(self, problem: str) -> None:
        """Count as failed from the end of the run on, until its processes end."""
        self.outcome, self.is_overdue = PodOutcome.FAILED, True
        for each in self.running:
            each.problem = each.problem or problem

    def conclude(self) -> None:
        """Set the final outcome from the ends of its containers."""
        ends = [each.end for each in self.containers.values()]
        self.outcome, self.is_final = pod_outcome(ends), True
        self.detail = exit_note(ends)
        if self.outcome is PodOutcome.FAILED:
            self.took_ms = None
            problems = [each.problem for each in self.running if each.problem]
            self.detail = "; ".join(dict.fromkeys(["still running", *problems]))
            return
        killed = [each for each in self.containers.values() if each.killed]
        notes = [
            "ended after the granted time" if self.is_overdue else "",
            "killed without a confirmed TERM" if any(each.signalled_at_ms is None for each in killed) else "",
            "killed while TERM was pending" if any(each.killed_unhandled for each in killed) else "",
            self.detail,
        ]
        self.detail = "; ".join(filter(None, notes))

    @property
    def stopped(self) -> StoppedPod:
        """The pod in the form of the records."""
        pod = self.pod
        terms = {
            each.id: SentTerm(each.signalled_at_ms, each.direct)
            for each in self.containers.values()
            if each.signalled_at_ms is not None
        }
        return StoppedPod(
            uid=pod.uid,
            namespace=pod.namespace,
            name=pod.name,
            phase=self.phase_name,
            why=self.why,
            outcome=self.outcome,
            requested_at_ms=self.requested_at_ms,
            took_ms=self.took_ms,
            detail=self.detail,
            container_ids=tuple(self.containers),
            terms=terms,
            observed=bool(self.containers) and all(each.observed for each in self.containers.values()),
            kill_sent=any(each.killed for each in self.containers.values()),
        )
