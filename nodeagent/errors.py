"""Error types of the agent.

Foreign exceptions (grpc, ``OSError``, sqlite) are translated at the call that raises them; loops and commands handle
only these types.
"""

from __future__ import annotations


class NodeAgentError(Exception):
    """Base of all expected errors; the text is for operators."""


class UsageError(NodeAgentError):
    """Invalid command arguments or request; nothing was started."""


class ConfigError(NodeAgentError):
    """Invalid or unreadable configuration; nothing was started or changed.

    The text contains file, key, value and allowed form, one line per error.
    """


class ObservationError(NodeAgentError):
    """A reading is missing, malformed or contradictory; the text contains the path or call and the value."""


class StoreError(NodeAgentError):
    """The state directory or a database is unreadable, unwritable or corrupt."""


class PassBusyError(NodeAgentError):
    """Another process holds the pass lock or the lock of the daemon; nothing was changed."""


class RuntimeUnavailableError(NodeAgentError):
    """No socket or no connection to the container runtime; the pass is retried with backoff."""


class RuntimeRequestError(NodeAgentError):
    """One call to the container runtime failed; the pass continues with the next item.

    Attributes:
        method: name of the RPC, such as ``RemoveImage``.
        target: id or reference in the request; empty for a request without a target.
        status: gRPC status name, such as ``FAILED_PRECONDITION``.
        detail: error text of the runtime.
    """

    def __init__(self, method: str, target: str, status: str, detail: str) -> None:
        self.method = method
        self.target = target
        self.status = status
        self.detail = detail
        about = f" for {target}" if target else ""
        super().__init__(f"{method}{about} failed: {status}: {detail}")


class RuntimeNotFoundError(RuntimeRequestError):
    """The target does not exist; success for a removal."""


class RuntimeTimeoutError(RuntimeRequestError):
    """Deadline exceeded with an unknown effect; re-read the target before a retry."""


class RuntimeUnsupportedError(RuntimeRequestError):
    """The runtime does not implement the call (gRPC UNIMPLEMENTED): an older or different runtime."""


class ApiServerError(NodeAgentError):
    """A request to the Kubernetes API server failed; local functions are not affected."""


class ApiServerUnavailableError(ApiServerError):
    """No connection, no trusted certificate, no usable credentials, or no complete answer in time."""


class ForeignNodeError(ApiServerError):
    """The Node object does not exist, or is not proven to be of this machine."""


class ApiServerRefusedError(ApiServerError):
    """The API server refused a request.

    Attributes:
        status: HTTP status, such as 409.
        reason: reason of the ``Status`` object, such as ``Conflict``; empty if not stated by the server.
        retry_after_s: seconds after which the server accepts another attempt; ``None`` if not stated by the server.
        kind: resource in the ``Status`` object, such as ``pods``; empty if not stated by the server.
        causes: reasons of the causes in the ``Status`` object, such as ``DisruptionBudget``.
    """

    def __init__(  # noqa: PLR0913 - parts of one answer
        self,
        text: str,
        status: int,
        reason: str = "",
        retry_after_s: float | None = None,
        *,
        kind: str = "",
        causes: tuple[str, ...] = (),
    ) -> None:
        self.status = status
        self.reason = reason
        self.retry_after_s = retry_after_s
        self.kind = kind
        self.causes = causes
        super().__init__(text)


class InhibitorError(NodeAgentError):
    """logind is unavailable or refused the inhibitor lock; graceful shutdown is not protected."""


class InstallError(NodeAgentError):
    """Installation or removal failed; the text contains the failed step, completed steps are kept."""
