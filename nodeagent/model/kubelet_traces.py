"""Traces of a kubelet on this node, and the resulting role."""

from __future__ import annotations

from enum import StrEnum

from nodeagent.record import Record


class Role(StrEnum):
    """Whether a kubelet manages this node's pods, or the agent alone."""

    BESIDE_KUBELET = "beside-kubelet"
    STANDALONE = "standalone"


class RoleBasis(StrEnum):
    """Type of evidence behind a role decision."""

    CONFIGURED = "configured"
    LIVE_KUBELET = "live-kubelet"
    KUBELET_FILES = "kubelet-files"
    RECENT_KUBELET = "recent-kubelet"
    UNREADABLE = "unreadable"
    NO_TRACE = "no-trace"


class KubeletProcess(Record):
    """One process that runs a kubelet.

    Attributes:
        name: command name, such as ``kubelet`` or ``k3s-server``.
    """

    pid: int
    name: str


class KubeletTraces(Record):
    """One reading of all traces of a kubelet.

    Attributes:
        processes: processes of this PID namespace that run a kubelet, by PID.
        ports: local TCP ports of the kubelet with a listener of an unknown process, ascending; no trace.
        files: absolute paths of a kubelet's state and configuration files.
        unreadable: traces that could not be read, each with its path and cause.
    """

    processes: tuple[KubeletProcess, ...] = ()
    ports: tuple[int, ...] = ()
    files: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = ()


class RoleDecision(Record):
    """The role of the agent on this node.

    Attributes:
        reason: evidence, for display.
        trace: the strongest trace of a kubelet; empty without a trace.
        warning: contradiction between the configured role and the traces; empty without a contradiction.
    """

    role: Role
    basis: RoleBasis
    reason: str
    trace: str = ""
    warning: str = ""


class LastTrace(Record):
    """The most recent trace of a kubelet.

    Attributes:
        trace: the trace, for display.
        absent_since_s: monotonic time of the first complete reading without the trace; ``None`` while the trace exists.
    """

    trace: str
    absent_since_s: float | None = None


class RoleMemory(Record):
    """Most recent traces of a kubelet in earlier readings, for the hysteresis of the role.

    Attributes:
        live: trace of a running kubelet; ``None`` without a trace in the hysteresis period.
        files: trace in state or configuration files; ``None`` without a trace in the hysteresis period.
    """

    live: LastTrace | None = None
    files: LastTrace | None = None
