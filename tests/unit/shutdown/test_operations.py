"""Recorded shutdown operations, and records of a soft reboot, which keeps the boot id."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from nodeagent.model.stops import NodeStop, StopEnd, StopKind
from nodeagent.record import replace
from tests.unit.shutdown.inhibitor_node import BOOT, Place, daemon_on, ready


@pytest.mark.parametrize(
    ("announced", "recorded"),
    [
        ("poweroff", "poweroff"),
        ("reboot", "reboot"),
        ("halt", "halt"),
        ("kexec", "kexec"),
        ("soft-reboot", "soft-reboot"),
        ("", ""),
        ("\x1b[31mother", ""),
    ],
)
async def test_operation_of_a_shutdown_is_recorded(place: Place, announced: str, recorded: str) -> None:
    place.pod("web")
    async with daemon_on(place) as daemon:
        await ready(daemon)
        place.login1.request_shutdown(announced)
        await place.login1.until(lambda: place.login1.executed == 1)
        await daemon.until("shutdown_finished")
        assert daemon.events("shutdown_started")[0]["operation"] == recorded
    assert place.last().operation == recorded
    assert [each.operation for each in place.history.read_stops()] == [recorded]


async def test_complete_shutdown_before_a_soft_reboot_remains_complete(place: Place) -> None:
    complete = NodeStop(BOOT, StopKind.SIGNAL, datetime(2026, 1, 10, tzinfo=UTC), 1.0, 1500, StopEnd.COMPLETE)
    place.files.write_stop(complete)
    place.boot_id = f"{BOOT}+1"
    async with daemon_on(place) as daemon:
        await ready(daemon)
        await daemon.until(lambda: place.files.read_boot() is not None)
    assert place.last() == complete


async def test_shutdown_that_was_interrupted_by_a_soft_reboot_is_incomplete(place: Place) -> None:
    stop = NodeStop(BOOT, StopKind.SIGNAL, datetime(2026, 1, 10, tzinfo=UTC), 1.0, 1500)
    place.files.write_stop(stop)
    place.boot_id = f"{BOOT}+1"
    async with daemon_on(place) as daemon:
        await daemon.until("shutdown_incomplete")
    assert place.last() == replace(stop, end=StopEnd.INCOMPLETE)
