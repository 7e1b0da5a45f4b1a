"""Pod log tree of a simulated node, written as small real files."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime
    from pathlib import Path

    from tests.sim.node import SimNode
    from tests.sim.workload import SimContainer, SimSandbox

_LINES: Final = 20
_LINK_NAME_BYTES: Final = 255
_ROTATIONS: Final = (("20260228-031500.gz", 9.0), ("20260301-031500", 2.0))  # suffix of the log name, age in hours


def write_logs(
    node: SimNode, root: Path, *, former_pods: Sequence[tuple[SimSandbox, Sequence[SimContainer]]] = ()
) -> None:
    """Write ``root/pods`` and ``root/containers`` in the layout of the kubelet and the runtime.

    Each container has a current log and a symbolic link to that log; a restarted container also has rotated logs.
    ``former_pods`` are absent from the runtime: their log directories have no sandbox and their links are dangling.
    After the call the log paths of the node refer to these files. Modification times follow the node's clock.

    Source: kubelet ``BuildPodLogsDirectory`` and ``logSymlink``.
    """
    pods, links = root / "pods", root / "containers"
    pods.mkdir(parents=True, exist_ok=True)
    links.mkdir(parents=True, exist_ok=True)
    node.pod_log_root = str(pods)
    for container in node.containers.values():
        _write_container(node.sandboxes[container.sandbox_id], container, pods, links, node.now)
    for sandbox, containers in former_pods:
        for container in containers:
            _write_container(sandbox, container, pods, links, node.now)
        for container in containers[:1]:
            _log_file(pods, sandbox, container).unlink()
    for sandbox in [*node.sandboxes.values(), *(sandbox for sandbox, _ in former_pods)]:
        directory = pods / sandbox.log_directory_name
        directory.mkdir(exist_ok=True)
        _date(directory, sandbox.created_at)


def _write_container(sandbox: SimSandbox, container: SimContainer, pods: Path, links: Path, now: datetime) -> None:
    log = _log_file(pods, sandbox, container)
    log.parent.mkdir(parents=True, exist_ok=True)
    ended = container.finished_at or now
    line = f"{container.created_at.isoformat()} stdout F {container.name} attempt {container.attempt} running\n"
    log.write_text(line * _LINES)
    _date(log, ended)
    if container.running and container.attempt:
        for suffix, hours in _ROTATIONS:
            rotated = log.with_name(f"{log.name}.{suffix}")
            rotated.write_text(line * _LINES)
            _date(rotated, now - timedelta(hours=hours))
    name = f"{sandbox.name}_{sandbox.namespace}_{container.name}-{container.id}"
    link = links / f"{name[: _LINK_NAME_BYTES - len('.log')]}.log"
    link.unlink(missing_ok=True)
    link.symlink_to(log)
    _date(link, container.created_at)
    _date(log.parent, ended)


def _log_file(pods: Path, sandbox: SimSandbox, container: SimContainer) -> Path:
    return pods / sandbox.log_directory_name / container.name / f"{container.attempt}.log"


def _date(path: Path, at: datetime) -> None:
    os.utime(path, (at.timestamp(), at.timestamp()), follow_symlinks=False)
