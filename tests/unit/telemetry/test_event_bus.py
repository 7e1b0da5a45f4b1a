"""Listening to the agent's events: always, at once, and never in the way of logging."""

from __future__ import annotations

import asyncio
import io
import json
from typing import TYPE_CHECKING

import pytest

from nodeagent.errors import UsageError
from nodeagent.telemetry import event_bus as taps
from nodeagent.telemetry import logging as log

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


@pytest.fixture
def stream() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def heard() -> Iterator[list[Mapping[str, object]]]:
    found: list[Mapping[str, object]] = []
    tap = found.append
    taps.subscribe(tap)
    yield found
    taps.unsubscribe(tap)


@pytest.mark.parametrize("form", ["json", "console"])
@pytest.mark.parametrize("level", ["debug", "info", "warning", "error"])
def test_a_tap_hears_what_the_level_keeps_out_of_the_log(
    level: str, form: str, stream: io.StringIO, heard: list[Mapping[str, object]]
) -> None:
    logger = log.configure(form, level, stream)
    logger.info("removal", id="a")
    logger.warning("pass_warning", warning="w")
    logger.error("pass_failed", error="e")
    assert [(each["event"], each["level"]) for each in heard] == [
        ("removal", "info"),
        ("pass_warning", "warning"),
        ("pass_failed", "error"),
    ]
    assert len(stream.getvalue().splitlines()) == {"debug": 3, "info": 3, "warning": 2, "error": 1}[level]


def test_a_tap_hears_debug_only_where_it_is_logged(stream: io.StringIO, heard: list[Mapping[str, object]]) -> None:
    log.configure("json", "info", stream).debug("decision")
    assert heard == []
    log.configure("json", "debug", stream).debug("decision")
    assert [each["event"] for each in heard] == ["decision"]


def test_a_bug_is_told_with_its_trace(stream: io.StringIO, heard: list[Mapping[str, object]]) -> None:
    logger = log.configure("json", "error", stream)
    try:
        int("odd")
    except ValueError:
        logger.exception("pass_crashed")
    assert "ValueError: invalid literal" in str(heard[0]["exception"])
    assert "exc_info" not in heard[0]
    assert "ValueError: invalid literal" in json.loads(stream.getvalue())["exception"]


def test_a_tap_that_raises_is_taken_off_and_the_event_is_logged(
    stream: io.StringIO, heard: list[Mapping[str, object]]
) -> None:
    calls = []

    def broken(event: Mapping[str, object]) -> None:
        calls.append(event)
        raise ValueError

    taps.subscribe(broken)
    logger = log.configure("json", "info", stream)
    logger.info("one")
    logger.info("two")
    assert len(calls) == 1
    assert len(heard) == len(stream.getvalue().splitlines()) == 2


def test_there_is_a_limit() -> None:
    tails = [taps.Subscription() for _ in range(taps.MOST)]
    for each in tails:
        each.__enter__()
    try:
        with pytest.raises(UsageError, match="64 times"):
            taps.Subscription().__enter__()
    finally:
        for each in tails:
            each.__exit__(None, None, None)


async def test_a_tail_gives_events_as_they_come(stream: io.StringIO) -> None:
    logger = log.configure("json", "info", stream)
    logger.info("before")
    with taps.Subscription() as tail:
        waiting = asyncio.ensure_future(tail.next())
        await asyncio.sleep(0)
        logger.info("one")
        logger.info("two")
        assert (await waiting)["event"] == "one"
        assert (await tail.next())["event"] == "two"
        assert tail.missed == 0


async def test_a_slow_reader_loses_the_oldest(stream: io.StringIO) -> None:
    logger = log.configure("json", "info", stream)
    with taps.Subscription(size=2) as tail:
        for number in range(5):
            logger.info("event", number=number)
        assert tail.missed == 3
        assert [(await tail.next())["number"] for _ in range(2)] == [3, 4]
