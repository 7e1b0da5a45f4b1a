"""Boot and identity of the node."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Final

_ROOT: Final = Path("/")


def boot_id(root: Path = _ROOT) -> str:
    """Return the id of this boot; empty if the kernel does not report it.

    psutil offers only the time of the boot, which changes when the clock is set.

    Source: ``/proc/sys/kernel/random/boot_id``.
    """
    try:
        return (root / "proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def node_identity() -> str:
    """Return a name that is unique to this node: host name and, if available, digest of the machine id.

    The machine id itself is confidential. Source: machine-id(5).
    """
    name = socket.gethostname()
    try:
        machine = Path("/etc/machine-id").read_text().strip()
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
