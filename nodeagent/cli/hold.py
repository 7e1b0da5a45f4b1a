"""``nodeagent hold``: keep images for a while."""

from __future__ import annotations

import getpass
import os
import sys
from datetime import timedelta
from typing import TYPE_CHECKING

from nodeagent.api import documents as document
from nodeagent.cli.control_answers import by_agent
from nodeagent.cli.control_answers import hold as told_hold
from nodeagent.cli.control_answers import holds as told_holds
from nodeagent.cli.control_client import request_for
from nodeagent.cli.output import say
from nodeagent.cli.session import load_settings
from nodeagent.clock import SystemClock
from nodeagent.errors import UsageError
from nodeagent.model import ALL_IMAGES, LONGEST_HOLD_S, Hold
from nodeagent.plan.gc.image_protection import parse_rule
from nodeagent.store import HoldFile
from nodeagent.text import encodable
from nodeagent.units import format_duration, parse_duration_s

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from nodeagent.api.documents import Json


def add(config: Path | None, *, image: str | None, every: bool, duration: str, why: str, form: str) -> None:
    """Place a hold.

    Raises:
        UsageError: not exactly one of an image and ``--all``, or the time is no duration of at most a year.
        StoreError: it cannot be written.
    """
    if (image is None) == (not every):
        raise UsageError("name an image, a pattern or a digest, or give --all; not both")
    for given in (image or "", why):
        if encodable(given) != given:
            raise UsageError(f"not UTF-8 text: {given}; nothing was done")
    if image is not None:
        try:
            parse_rule(image)
        except ValueError as error:
            raise UsageError(str(error)) from error
    try:
        seconds = parse_duration_s(duration)
    except ValueError as error:
        raise UsageError(f"--for: {error}") from error
    if not 0 < seconds <= LONGEST_HOLD_S:
        raise UsageError(
            f"--for {duration}: must be more than 0 and at most 365d; protect.images keeps images for good"
        )
    now = SystemClock().now()
    with by_agent(config, {}) as agent:
        if agent is not None:
            request = request_for("AddHold", image=image or "", seconds=seconds, why=why)
            told = agent.ask("AddHold", request)
            _print_placed(told_hold(told), told, form)
            return
    hold = Hold("", ALL_IMAGES if image is None else image, why, _who(), now, now + timedelta(seconds=seconds))
    placed = HoldFile(load_settings(config, {}).state_directory).add(hold)
    _print_placed(placed, {"schema": "nodeagent/hold/v1", **document.hold(placed, now)}, form)


def show(config: Path | None, form: str) -> None:
    """Print every hold that has not run out.

    Raises:
        StoreError: the holds cannot be read.
    """
    now = SystemClock().now()
    with by_agent(config, {}) as agent:
        told = agent.ask("Holds") if agent is not None else None
    if told is not None:
        holds = list(told_holds(told))
    else:
        holds = [each for each in HoldFile(load_settings(config, {}).state_directory).read() if each.until > now]
    if form != "table":
        sys.stdout.write(document.dumps(document.holds(holds, now), form))
        return
    from nodeagent.cli import render  # noqa: PLC0415 - tables are only for people

    if not holds:
        render.make_console().print("no holds")
        return
    table = render.table("hold", "images", "by", "for another", "why", wrap=("images", "why"))
    for each in holds:
        left = format_duration((each.until - now).total_seconds())
        table.add_row(each.id, _what(each), each.by, left, each.why)
    render.make_console().print(table)


def remove(config: Path | None, hold_id: str) -> None:
    """Take a hold back.

    Raises:
        UsageError: there is no such hold.
        StoreError: it cannot be written.
    """
    with by_agent(config, {}) as agent:
        if agent is not None:
            taken = told_hold(agent.ask("RemoveHold", request_for("RemoveHold", id=hold_id)))
            say(f"hold {taken.id} on {_what(taken)} is taken back")
            return
    gone = HoldFile(load_settings(config, {}).state_directory).remove(hold_id)
    if gone is None:
        raise UsageError(f"there is no hold {hold_id}; 'nodeagent hold list' shows them")
    say(f"hold {gone.id} on {_what(gone)} is taken back")


def _print_placed(placed: Hold, shown: Mapping[str, Json], form: str) -> None:
    if form != "table":
        sys.stdout.write(document.dumps(shown, form))
        return
    say(f"hold {placed.id} on {_what(placed)} until {document.time_text(placed.until)}")


def _what(hold: Hold) -> str:
    return "all images" if hold.image == ALL_IMAGES else hold.image


def _who() -> str:
    """Return who asks: the user behind sudo, else the user."""
    try:
        return os.environ.get("SUDO_USER") or getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())
