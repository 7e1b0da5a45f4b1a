"""Base class of tasks that run sessions with the API server; a reload ends a session and starts the next."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from nodeagent.cluster import NAME
from nodeagent.cluster.plan.heartbeat import retry_delay_s
from nodeagent.errors import ApiServerError, ApiServerRefusedError
from nodeagent.loops.passes import LoopStatuses, wait_for_any

if TYPE_CHECKING:
    import asyncio

    from nodeagent.cluster.plan.registration import LabelPlan, RegistrationPlan
    from nodeagent.daemon.context import DaemonContext
    from nodeagent.kube.api_client import ApiClient, NodeApi
    from nodeagent.settings.settings import Settings
    from nodeagent.telemetry.logging import StateLog

POLL_S: Final = 10.0
CHANGE_POLL_S: Final = 1.0


class SessionTask:
    """Runs sessions while the function of the task is configured, across reloads.

    Attributes:
        name: name of the task in logs and in the status.
        poll_s: interval in seconds at which the settings are read while the function is not configured.
    """

    name: ClassVar[str]
    poll_s: ClassVar[float] = POLL_S

    def __init__(self, context: DaemonContext) -> None:
        """Create the task; the API client is imported with the first session, since most daemons run none."""
        self._context = context
        self._logger = context.logger.bind(task=self.name)
        self._ran = False

    async def run(self, stop: asyncio.Event) -> None:
        """Run sessions until stopped."""
        while not stop.is_set():
            settings = self._context.settings
            if off := self._off_because(settings):
                if self._ran:
                    self._switch_off(off)
                await wait_for_any(self.poll_s, stop)
                continue
            self._ran = True
            try:
                await self._run_session(settings, stop)
            except Exception:  # an unexpected error must not end the daemon's other tasks
                self._logger.exception("pass_crashed", loop=self.name)
                await wait_for_any(POLL_S, stop)

    def _off_because(self, settings: Settings) -> str:
        """Return the reason for not running a session with these settings; empty if sessions may run."""
        raise NotImplementedError

    def _switch_off(self, because: str) -> None:
        """Report the task as disabled; called at each poll after a session."""
        self._context.loop_statuses.disabled(self.name, because)

    async def _run_session(self, settings: Settings, stop: asyncio.Event) -> None:
        """Run one session until stopped, or until other settings are in force."""
        raise NotImplementedError

    def _not_written(self, *, enabled: bool, settings: Settings) -> str:
        """Return the reason for not writing to the API server; empty if writes are enabled."""
        if not enabled or settings.kubernetes.access is None:
            return "not enabled"
        return "dry run: the API server is not written to" if self._context.dry_run else ""

    def _continues(self, settings: Settings, stop: asyncio.Event) -> bool:
        """Return whether a session with these settings continues."""
        return not stop.is_set() and self._context.settings is settings

    async def _wait(self, wait_s: float, settings: Settings, stop: asyncio.Event) -> None:
        """Wait for ``wait_s`` seconds, or until the session ends."""
        ends_s = self._context.clock.monotonic_s() + wait_s
        while self._continues(settings, stop) and (left_s := ends_s - self._context.clock.monotonic_s()) > 0:
            await wait_for_any(min(left_s, CHANGE_POLL_S), stop)


def open_api(settings: Settings) -> tuple[ApiClient, str]:
    """Return a client of the API server, which the caller closes, and the name of this node.

    Raises:
        ValueError: no API server is configured.
        NodeAgentError: the name of the node cannot be read.
    """
    # imported here, since a daemon without sessions does not need h11, ssl and the API objects
    from nodeagent.host.node import node_name  # noqa: PLC0415
    from nodeagent.kube.api_client import ApiClient  # noqa: PLC0415
    from nodeagent.kube.api_credentials import ApiCredentials  # noqa: PLC0415

    access = settings.kubernetes.access
    if access is None:
        raise ValueError("no API server is configured")
    return ApiClient(access, ApiCredentials(access)), node_name(settings.kubelet.node_name)


def open_node_api(settings: Settings) -> NodeApi:
    """Return a client for the Node object of this node; the caller closes the client.

    Raises:
        ValueError: no API server is configured.
        NodeAgentError: the name of the node cannot be read.
    """
    from nodeagent.kube.api_client import NodeApi  # noqa: PLC0415 - as above

    return NodeApi(*open_api(settings))


_LASTING: Final = frozenset({401, 403, 422})
"""HTTP statuses of refusals that a retry alone does not resolve."""
OF_A_START: Final = frozenset({401, 403})
"""HTTP statuses that a starting API server also returns until it has read its rules and service accounts."""
START_FAILURES: Final = 8
"""Number of consecutive failures (about half a minute) after which a 401 or 403 refusal counts as lasting."""
_LASTING_RETRY_S: Final = 60.0
_SLACK_S: Final = 60.0


class RegistrationReporter:
    """Reports failures, recoveries and refusals; counts consecutive failures for the back-off."""

    def __init__(self, states: StateLog, statuses: LoopStatuses, name: str = NAME) -> None:
        """Create a reporter; ``name`` is the name of the task in the loop status."""
        self._name = name
        self._states = states
        self._logger = states.logger
        self._statuses = statuses
        self._failures: dict[str, int] = {}

    def failed(self, part: str, error: ApiServerError) -> float:
        """Record a failed request of a part, such as ``lease``; return the seconds until the next attempt."""
        failures = self._failures[part] = self._failures.get(part, 0) + 1
        text = str(error)
        fields = {"part": part, "error": text, "hint": "nodeagent doctor"}
        self._states.log_once("api_request_failed", fields, about=[part], state=text)
        self._statuses.ended(self._name, "failed", detail=text, failed=True)
        if not isinstance(error, ApiServerRefusedError):
            return retry_delay_s(failures)
        delay_s = retry_delay_s(failures, error.retry_after_s)
        lasting = error.status in _LASTING and (error.status not in OF_A_START or failures > START_FAILURES)
        return max(delay_s, _LASTING_RETRY_S) if lasting else delay_s

    def succeeded(self, part: str, detail: str = "") -> None:
        """Record a successful request of a part, with its result for display."""
        self._failures.pop(part, None)
        self._statuses.ended(self._name, "succeeded", detail=detail)
        if self._states.end("api_request_failed", part):
            self._logger.info("api_request_recovered", part=part)

    def registered(self, plan: RegistrationPlan, name: str) -> None:
        """Log the registration of the node."""
        self._states.end("node_not_registered")
        self._logger.info(
            "node_registered", node=name, verdict=plan.verdict.value, because=plan.reason, kept=list(plan.kept)
        )

    def cordon_changed(self, name: str, *, is_cordoned: bool) -> None:
        """Log the cordon of the node for a shutdown, or its end."""
        self._logger.info("node_cordoned" if is_cordoned else "node_uncordoned", node=name)

    def labels_changed(self, plan: LabelPlan, name: str) -> None:
        """Log the changed labels of the node, and the kept ones with another value than configured."""
        self._logger.info("node_labels_changed", node=name, labels=list(plan.changed), kept=list(plan.kept))

    def refused(self, plan: RegistrationPlan, name: str) -> None:
        """Log the reason for which the node is not registered."""
        fields = {"node": name, "verdict": plan.verdict.value, "because": plan.reason}
        self._states.log_once("node_not_registered", fields, state=plan.reason)
        self._statuses.ended(self._name, plan.verdict.value, detail=plan.reason, failed=True)

    def ended(self, because: str, *, expected: bool) -> None:
        """Log the end of the heartbeats; as a warning unless ``expected``, such as after a reload or a role change."""
        (self._logger.info if expected else self._logger.warning)("node_heartbeat_ended", because=because)

    def waiting(self, wait_s: float) -> None:
        """Record that the next request starts in ``wait_s`` seconds."""
        self._statuses.waiting(self._name, wait_s, _SLACK_S)
