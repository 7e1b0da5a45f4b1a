"""Filesystems of the runtime, the pods and the agent: one entry for each filesystem, with all its roles."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nodeagent.daemon import node_filesystems
from nodeagent.daemon.node_filesystems import Place, places, read_places
from nodeagent.errors import ObservationError
from nodeagent.eviction.kernel_signals import SignalPaths
from nodeagent.model.pressure import FilesystemRole as Role
from nodeagent.model.runtime import FsObservation
from nodeagent.record import replace
from nodeagent.settings.loading import checked
from nodeagent.settings.settings import Origin
from tests.support.manual_clock import ManualClock
from tests.unit.builders import image_filesystem

if TYPE_CHECKING:
    from nodeagent.units import Clock

NOW = datetime(2026, 1, 10, tzinfo=UTC)
SETTINGS = replace(checked(Origin()), pod_log_root=Path("/logs"), state_directory=Path("/state"))
PATHS = SignalPaths("/node", "/images", "/images")
VOLUMES = "/var/lib/kubelet/pods"


@pytest.mark.parametrize(
    ("devices", "found"),
    [
        pytest.param(
            {"/images": 1, "/node": 1, "/logs": 1, "/state": 1, "/run/c": 2},
            [
                "imagefs = nodefs: imagefs, nodefs, containerfs, pod-logs, agent-state",
                "runtime-state: runtime-state",
            ],
            id="single",
        ),
        pytest.param(
            {"/images": 1, "/node": 2, "/logs": 3, VOLUMES: 4, "/run/c": 5, "/state": 2},
            [
                "imagefs: imagefs, containerfs",
                "nodefs: nodefs, agent-state",
                "pod-logs: pod-logs",
                "pod-volumes: pod-volumes",
                "runtime-state: runtime-state",
            ],
            id="each-on-its-own",
        ),
        pytest.param(
            {"/images": 1, "/native": 2, "/node": 2, "/state": 1},
            ["imagefs: imagefs, containerfs, agent-state", "imagefs native = nodefs: imagefs, nodefs"],
            id="additional-image-filesystem-on-nodefs",
        ),
        pytest.param(
            {"/node": 1}, ["imagefs: imagefs", "nodefs: nodefs", "containerfs: containerfs"], id="missing-directories"
        ),
    ],
)
def test_filesystem_is_listed_once_with_all_its_roles(
    monkeypatch: pytest.MonkeyPatch, devices: dict[str, int], found: list[str]
) -> None:
    def read(path: str, clock: Clock) -> FsObservation:
        if path not in devices:
            raise ObservationError(f"{path} does not exist") from FileNotFoundError(path)
        return FsObservation(path, devices[path], 100, 50, 10, 5, clock.now())

    monkeypatch.setattr(node_filesystems, "read_filesystem", read)
    others = [image_filesystem("/native", 50, "native")] if "/native" in devices else []
    wanted = places(SETTINGS, PATHS, others, "/run/c")
    listed = read_places(wanted, ManualClock(NOW))
    assert [f"{each.name}: {', '.join(each.roles)}" for each in listed] == found
    assert {each.path for each in listed if each.problem} == {PATHS.imagefs, PATHS.containerfs} - {*devices}


def test_unreadable_directory_is_listed_with_the_cause_and_missing_one_is_omitted(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    listed = read_places(
        [
            Place(Role.POD_LOGS, str(tmp_path / "file" / "logs")),
            Place(Role.AGENT_STATE, str(tmp_path / "missing")),
            Place(Role.NODEFS, str(tmp_path)),
            Place(Role.RUNTIME_STATE, str(tmp_path)),
        ],
        ManualClock(NOW),
    )
    assert [(each.roles, bool(each.problem)) for each in listed] == [
        ((Role.POD_LOGS,), True),
        ((Role.NODEFS, Role.RUNTIME_STATE), False),
    ]
    assert "Not a directory" in listed[0].problem
