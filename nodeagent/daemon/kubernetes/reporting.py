"""Log entries and loop status of the node's registration; a cause is a state that lasts until a request succeeds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nodeagent.daemon.kubernetes import NAME
from nodeagent.errors import ApiServerRefusedError
from nodeagent.plan.kubernetes.heartbeat import retry_delay_s

if TYPE_CHECKING:
    from nodeagent.daemon.passes import LoopStatuses
    from nodeagent.errors import ApiServerError
    from nodeagent.plan.kubernetes.registration import RegistrationPlan
    from nodeagent.telemetry.logging import StateLog

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
