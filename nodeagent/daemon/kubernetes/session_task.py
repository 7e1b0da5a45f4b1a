"""Base class of tasks that run sessions with the API server; a reload ends a session and starts the next."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from nodeagent.daemon.loops import wait_for_any

if TYPE_CHECKING:
    import asyncio

    from nodeagent.config.settings import Settings
    from nodeagent.daemon.context import DaemonContext
    from nodeagent.kube.node_api import NodeApi

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


def open_node_api(settings: Settings) -> NodeApi:
    """Return a client for the Node object of this node; the caller closes the client.

    Raises:
        ValueError: no API server is configured.
        NodeAgentError: the name of the node cannot be read.
    """
    # imported here, since a daemon without sessions does not need h11, ssl and the API objects
    from nodeagent.host.node import node_name  # noqa: PLC0415
    from nodeagent.kube.api_client import ApiClient  # noqa: PLC0415
    from nodeagent.kube.api_credentials import ApiCredentials  # noqa: PLC0415
    from nodeagent.kube.node_api import NodeApi  # noqa: PLC0415

    access = settings.kubernetes.access
    if access is None:
        raise ValueError("no API server is configured")
    return NodeApi(ApiClient(access, ApiCredentials(access)), node_name(settings.kubelet.node_name))
