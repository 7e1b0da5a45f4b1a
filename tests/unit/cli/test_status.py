"""Alignment of usage bars in ``nodeagent status``."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

from nodeagent.cli.status import gauges

if TYPE_CHECKING:
    from nodeagent.daemon.documents import Status


def signal(name: str, *, met: bool = False) -> SimpleNamespace:
    thresholds = [SimpleNamespace(met=met, text=f"{name}<15%")]
    return SimpleNamespace(signal=name, available=100, capacity=200, thresholds=thresholds, mountpoint="")


def test_bars_of_long_and_short_names_begin_in_one_column() -> None:
    filesystem = SimpleNamespace(
        name="imagefs", path="/", used_percent=50, high_percent=85, low_percent=80, capacity_bytes=2, available_bytes=1
    )
    signals = [signal("memory.available"), signal("containerfs.available", met=True), signal("nodefs.available")]
    status = cast("Status", SimpleNamespace(filesystems=[filesystem], signals=signals, conditions=[], unrelieved=()))
    lines = [line.text for line in gauges(status, 120) if "█" in line.text]
    assert [line.split()[0] for line in lines] == ["imagefs", "memory.available", "containerfs.available"]
    assert len({line.index("█") for line in lines}) == 1
