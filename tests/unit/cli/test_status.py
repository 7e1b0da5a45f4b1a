"""Usage bars of ``nodeagent status``, and its statements on filesystems."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

from msgspec import structs

from nodeagent.cli.status import gauges
from nodeagent.daemon.documents import FilesystemStatus

if TYPE_CHECKING:
    from nodeagent.daemon.documents import Status


def signal(name: str, *, met: bool = False) -> SimpleNamespace:
    thresholds = [SimpleNamespace(met=met, text=f"{name}<15%")]
    return SimpleNamespace(
        signal=name, available=100, capacity=200, thresholds=thresholds, mountpoint="", limited_by=""
    )


IMAGEFS = FilesystemStatus(
    name="imagefs = nodefs",
    roles=("imagefs", "nodefs", "agent-state"),
    path="/var/lib/x",
    high_percent=85,
    low_percent=80,
    capacity_bytes=2,
    available_bytes=1,
    used_percent=50,
    inodes=1000,
    inodes_free=601,
)
FULL = "/run/x (runtime-state): 0.0% of bytes available; if it is full: no pod starts"
RUN = FilesystemStatus(
    name="runtime-state",
    roles=("runtime-state",),
    path="/run/x",
    high_percent=None,
    low_percent=None,
    capacity_bytes=2,
    available_bytes=0,
    used_percent=100,
    inodes=0,
    inodes_free=0,
    nearly_full=FULL,
)


def shown(*filesystems: FilesystemStatus, conditions: tuple[str, ...] = (), columns: int = 120) -> list[str]:
    status = SimpleNamespace(filesystems=filesystems, signals=(), conditions=conditions, unrelieved=())
    return [line.text.rstrip() for line in gauges(cast("Status", status), columns)]


def test_nearly_full_filesystem_is_stated_in_place_of_no_pressure() -> None:
    assert shown(IMAGEFS)[-1] == "no pressure"
    assert shown(IMAGEFS, RUN)[-1] == FULL
    assert "no pressure" not in shown(IMAGEFS, RUN)
    assert shown(IMAGEFS, RUN, conditions=("DiskPressure",))[-2:] == ["DiskPressure", FULL]


def test_filesystem_line_has_inodes_and_further_roles_if_wide() -> None:
    assert shown(IMAGEFS)[0].endswith(" 1 B of 2 B, inodes 40% (high 85%, low 80%) /var/lib/x (agent-state)")
    assert shown(RUN)[0].endswith("100% 2 B of 2 B /run/x")
    assert shown(IMAGEFS, columns=80)[0].endswith(" 1 B of 2 B (high 85%, low 80%)")
    scarce = structs.replace(IMAGEFS, inodes_free=0)
    assert shown(scarce, columns=80)[0].endswith(" 1 B of 2 B, inodes 100% (high 85%, low 80%)")


def test_bars_of_long_and_short_names_begin_in_one_column() -> None:
    signals = [signal("memory.available"), signal("containerfs.available", met=True), signal("nodefs.available")]
    status = cast("Status", SimpleNamespace(filesystems=[IMAGEFS], signals=signals, conditions=[], unrelieved=()))
    lines = [line.text for line in gauges(status, 120) if "█" in line.text]
    assert [line.split()[0] for line in lines] == ["imagefs", "memory.available", "containerfs.available"]
    assert len({line.index("█") for line in lines}) == 1
