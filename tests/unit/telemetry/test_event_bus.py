"""Event bus: delivery of log events to subscribers, independent of the log level."""

from __future__ import annotations

import asyncio
import io
import json
from typing import TYPE_CHECKING

import pytest

from nodeagent.errors import UsageError
from nodeagent.telemetry import logging as event_bus, logging as log

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


@pytest.fixture
def stream() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def received() -> Iterator[list[Mapping[str, object]]]:
    events: list[Mapping[str, object]] = []
    subscriber = events.append
    event_bus.subscribe(subscriber)
    yield events
    event_bus.unsubscribe(subscriber)


@pytest.mark.parametrize("form", ["json", "console"])
@pytest.mark.parametrize("level", ["debug", "info", "warning", "error"])
def test_subscriber_receives_events_below_the_log_level(
    level: str, form: str, stream: io.StringIO, received: list[Mapping[str, object]]
) -> None:
    logger = log.configure(form, level, stream)
    logger.info("removal", id="a")
    logger.warning("pass_warning", warning="w")
    logger.error("pass_failed", error="e")
    assert [(each["event"], each["level"]) for each in received] == [
        ("removal", "info"),
        ("pass_warning", "warning"),
        ("pass_failed", "error"),
    ]
    assert len(stream.getvalue().splitlines()) == {"debug": 3, "info": 3, "warning": 2, "error": 1}[level]


def test_subscriber_receives_debug_events_only_at_debug_level(
    stream: io.StringIO, received: list[Mapping[str, object]]
) -> None:
    log.configure("json", "info", stream).debug("decision")
    assert received == []
    log.configure("json", "debug", stream).debug("decision")
    assert [each["event"] for each in received] == ["decision"]


def test_exception_is_delivered_with_its_traceback(stream: io.StringIO, received: list[Mapping[str, object]]) -> None:
    logger = log.configure("json", "error", stream)
    try:
        int("odd")
    except ValueError:
        logger.exception("pass_crashed")
    assert "ValueError: invalid literal" in str(received[0]["exception"])
    assert "exc_info" not in received[0]
    assert "ValueError: invalid literal" in json.loads(stream.getvalue())["exception"]


def test_subscriber_that_raises_is_unsubscribed_and_the_event_is_logged(
    stream: io.StringIO, received: list[Mapping[str, object]]
) -> None:
    calls = []

    def broken(event: Mapping[str, object]) -> None:
        calls.append(event)
        raise ValueError

    event_bus.subscribe(broken)
    logger = log.configure("json", "info", stream)
    logger.info("one")
    logger.info("two")
    assert len(calls) == 1
    assert len(received) == len(stream.getvalue().splitlines()) == 2


def test_subscribers_above_the_limit_are_rejected() -> None:
    subscriptions = [event_bus.Subscription() for _ in range(event_bus.MAX_SUBSCRIBERS)]
    for each in subscriptions:
        each.__enter__()
    try:
        with pytest.raises(UsageError, match="limit of 64"):
            event_bus.Subscription().__enter__()
    finally:
        for each in subscriptions:
            each.__exit__(None, None, None)


async def test_subscription_returns_events_in_order(stream: io.StringIO) -> None:
    logger = log.configure("json", "info", stream)
    logger.info("before")
    with event_bus.Subscription() as subscription:
        waiting = asyncio.ensure_future(subscription.next())
        await asyncio.sleep(0)
        logger.info("one")
        logger.info("two")
        assert (await waiting)["event"] == "one"
        assert (await subscription.next())["event"] == "two"
        assert subscription.missed == 0


async def test_full_subscription_drops_the_oldest_events(stream: io.StringIO) -> None:
    logger = log.configure("json", "info", stream)
    with event_bus.Subscription(size=2) as subscription:
        for number in range(5):
            logger.info("event", number=number)
        assert subscription.missed == 3
        assert [(await subscription.next())["number"] for _ in range(2)] == [3, 4]
