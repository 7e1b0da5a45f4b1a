"""What can go wrong, as types a caller can act on.

Foreign exceptions (grpc, ``OSError``, sqlite) are translated where they enter, so that loops and commands
only ever meet these.
"""

from __future__ import annotations


class NodeAgentError(Exception):
    """Base of every error this project raises on purpose; its text is fit for an operator."""


class UsageError(NodeAgentError):
    """A command was given something it cannot take; nothing was started."""


class ConfigError(NodeAgentError):
    """The configuration cannot be used. Nothing was started or changed.

    The text names file, key, value and the allowed form, one line per fault.
    """


class ObservationError(NodeAgentError):
    """A reading is missing, malformed or contradictory. The text names the path or call and what was found."""


class StoreError(NodeAgentError):
    """The state directory or database cannot be used."""


class PassBusyError(NodeAgentError):
    """Another process is acting on this node right now; nothing was touched."""


class RuntimeUnavailableError(NodeAgentError):
    """No socket or no connection to the container runtime: the pass ends, to be retried with back-off."""


class RuntimeRequestError(NodeAgentError):
    """One call to the container runtime failed; the pass goes on with the next item.

    Attributes:
        method: the RPC's name, such as ``RemoveImage``.
        target: the id or reference it was about, empty when it was about none.
        status: the gRPC status name, such as ``FAILED_PRECONDITION``.
        detail: what the runtime said.
    """

    def __init__(self, method: str, target: str, status: str, detail: str) -> None:
        self.method = method
        self.target = target
        self.status = status
        self.detail = detail
        about = f" for {target}" if target else ""
        super().__init__(f"{method}{about} failed: {status}: {detail}")


class RuntimeNotFoundError(RuntimeRequestError):
    """The target is already gone: for a removal, that is success."""


class RuntimeTimeoutError(RuntimeRequestError):
    """No answer before the deadline, so the effect is unknown: re-read before trying again."""


class RuntimeUnsupportedError(RuntimeRequestError):
    """The server does not know the call (gRPC UNIMPLEMENTED): an older runtime, or another one."""


class InhibitorError(NodeAgentError):
    """logind refused, left, or could not be set up: shutdown protection is off until that is mended."""


class InstallError(NodeAgentError):
    """The agent could not be installed or removed. The text says what could not be done; what was done stays."""
