"""Event loop of a command: errors of callbacks are logged, except uses of a closed event loop."""

from __future__ import annotations

import asyncio
import logging

import pytest

from nodeagent.cli.reading import run_async


async def fail_in_callback(error: Exception) -> str:
    """Raise an error in a callback of the event loop; return after the callback."""

    def fail() -> None:
        raise error

    asyncio.get_running_loop().call_soon(fail)
    await asyncio.sleep(0)
    return "result"


@pytest.mark.parametrize(
    ("error", "reported"),
    [(RuntimeError("Event loop is closed"), False), (RuntimeError("another one"), True), (ValueError("x"), True)],
)
def test_fault_of_a_callback_is_reported_unless_its_loop_is_closed(
    error: Exception, reported: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR, logger="asyncio"):
        assert run_async(fail_in_callback(error)) == "result"

    assert any("Exception in callback" in each.message for each in caplog.records) is reported
