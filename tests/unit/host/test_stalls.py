"""Stall averages of the kernel, and the wait for an idle disk."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from nodeagent.errors import ObservationError
from nodeagent.host import stalls

if TYPE_CHECKING:
    from pathlib import Path

TEXT = "some avg10={} avg60=1.00 avg300=0.50 total=12\nfull avg10=0.10 avg60=0.00 avg300=0.00 total=3\n"


def write(root: Path, average: str) -> None:
    (root / "proc/pressure").mkdir(parents=True, exist_ok=True)
    (root / "proc/pressure/io").write_text(TEXT.format(average))


def test_averages_are_those_of_ten_seconds(tmp_path: Path) -> None:
    write(tmp_path, "9.25")
    assert stalls.read_stall_averages(tmp_path / "proc/pressure/io") == {"some": 9.25, "full": 0.1}
    assert stalls.read_stall_averages(tmp_path / "absent") == {}
    write(tmp_path, "many")
    with pytest.raises(ObservationError, match="has no avg10"):
        stalls.read_stall_averages(tmp_path / "proc/pressure/io")


@pytest.mark.parametrize("average", ["0.00", "9.99", "many", None])
async def test_work_on_an_idle_disk_or_without_averages_does_not_wait(tmp_path: Path, average: str | None) -> None:
    if average is not None:
        write(tmp_path, average)
    assert await stalls.IdleDisk(asyncio.Event(), tmp_path).wait() == ""


async def test_work_is_postponed_while_the_disk_remains_busy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stalls, "_POLL_S", 0.01)
    monkeypatch.setattr(stalls, "_WITHIN_S", 0.02)
    write(tmp_path, "35.50")
    expected = "postponed: tasks waited for a disk in 35.5% of the last 10s, limit 10%"
    assert await stalls.IdleDisk(asyncio.Event(), tmp_path).wait() == expected


async def test_waits_of_a_pass_have_a_limit_in_total(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stalls, "_POLL_S", 0.01)
    monkeypatch.setattr(stalls, "_WITHIN_S", 0.05)
    busy = [True, True, False] * 5  # idle within the limit before each removal
    monkeypatch.setattr(stalls, "read_stall_averages", lambda _: {"some": 50.0 if busy.pop(0) else 0.0})
    disk = stalls.IdleDisk(asyncio.Event(), tmp_path)
    assert [(await disk.wait())[:9] for _ in range(5)] == ["", "", "postponed", "", "postponed"]


async def test_stop_request_ends_the_wait(tmp_path: Path) -> None:
    write(tmp_path, "35.50")
    stop = asyncio.Event()
    wait = asyncio.create_task(stalls.IdleDisk(stop, tmp_path).wait())
    await asyncio.sleep(0)
    stop.set()
    assert await asyncio.wait_for(wait, 1) == "pass stopped"
