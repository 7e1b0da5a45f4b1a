"""Boot and identity of the node."""

from __future__ import annotations

import socket
from datetime import UTC, datetime
from pathlib import Path

from nodeagent.errors import ObservationError

_ROOT = Path("/")


def boot_id(root: Path = _ROOT) -> str:
    """Return the id of this boot; empty if the kernel does not report it.

    Source: ``/proc/sys/kernel/random/boot_id``.
    """
    try:
        return (root / "proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def booted_at(root: Path = _ROOT) -> datetime | None:
    """Return the wall time of the boot; ``None`` if unknown. Source: proc(5), ``btime`` of ``/proc/stat``.

    Raises:
        ObservationError: ``btime`` is not a number.
    """
    try:
        text = (root / "proc/stat").read_text()
    except OSError:
        return None
    for line in text.splitlines():
        key, _, value = line.partition(" ")
        if key == "btime":
            if not value.strip().isdecimal():
                raise ObservationError(f"{root / 'proc/stat'}: btime is {value.strip()!r}, not a number of seconds")
            return datetime.fromtimestamp(int(value), UTC)
    return None


def node_identity(root: Path = _ROOT) -> str:
    """Return a name that is unique to this node: host name and, if available, digest of the machine id.

    The machine id itself is confidential. Source: machine-id(5).
    """
    name = socket.gethostname()
    try:
        machine = (root / "etc/machine-id").read_text().strip()
    except OSError:
        machine = ""
    if not machine:
        return name
    import hashlib  # noqa: PLC0415 - loads OpenSSL, which a boot id does not need

    return f"{name}/{hashlib.sha256(f'nodeagent {machine}'.encode()).hexdigest()[:12]}"


def node_name(configured: str = "") -> str:
    """Return the name of the Node object: the configured name, else the host name, in lower case.

    Source: kubelet ``GetHostname``.
    """
    return (configured or socket.gethostname()).strip().lower()
