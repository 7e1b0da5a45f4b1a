"""``nodeagent hold``: protect images from removal for a period, list the holds, and remove them."""

from __future__ import annotations

import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from nodeagent.api.client import user_name
from nodeagent.api.common import encode
from nodeagent.api.requests import TEXT_FORM, is_text
from nodeagent.cli.control_client import daemon_of
from nodeagent.cli.display import say, warn
from nodeagent.cli.listing import HOLDS, ListOptions
from nodeagent.cli.lists import ListRequest
from nodeagent.cli.options import Source, duration_s
from nodeagent.cli.reading import ask, load_settings, read
from nodeagent.errors import NodeAgentError, UsageError
from nodeagent.gc.documents.holds import HoldDocument, HoldList
from nodeagent.gc.documents.lists import Images
from nodeagent.gc.hold_file import HoldFile
from nodeagent.gc.plan.image_protection import images_named, labels_named, parse_rule
from nodeagent.gc.plan.image_users import ImageIndex
from nodeagent.model.node import ALL_IMAGES, LONGEST_HOLD_S, Hold
from nodeagent.model.runtime import Image
from nodeagent.units import SystemClock, format_local_time

if TYPE_CHECKING:
    from nodeagent.gc.agent import Agent
    from nodeagent.model.clock import ClockTrust
    from nodeagent.store.clock_record import ClockReading


def add(config: Path | None, *, image: str | None, every: bool, duration: str, why: str, form: str) -> None:
    """Place a hold on an image, or on all images, and print the hold.

    Raises:
        UsageError: an image and ``--all`` are both set or both absent, a value is invalid, or the duration is longer
            than a year.
        StoreError: the hold file cannot be written.
    """
    if (image is None) == (not every):
        raise UsageError("name an image, a pattern or a digest, or add --all; not both")
    for option, given in (("IMAGE", image or ""), ("--why", why)):
        if not is_text(given):
            raise UsageError(f"{option}: {TEXT_FORM}; no hold was placed")
    if image is not None:
        try:
            parse_rule(image)
        except ValueError as error:
            raise UsageError(str(error)) from error
    seconds = duration_s("--for", duration)
    if not 0 < seconds <= LONGEST_HOLD_S:
        raise UsageError(
            f"--for {duration}: must be more than 0 and at most 365d; protect.images protects images permanently"
        )
    if (agent := daemon_of(config)) is not None:
        by = _user() if os.geteuid() == 0 else ""
        request = {"image": image or "", "seconds": seconds, "why": why, "by": by}
        _print_placed(agent.call("AddHold", HoldDocument, request), form, config)
        return
    directory, at, clock = _node_clock(config)
    until = at.wall + timedelta(seconds=seconds)
    named = ALL_IMAGES if image is None else image
    hold = Hold("", named, why, _user(), at.wall, until, at.boot_id, at.boottime_s)
    _print_placed(HoldDocument.of(HoldFile(directory).add(hold, clock), at.wall, clock), form, config)


def remove(config: Path | None, hold_id: str) -> None:
    """Remove a hold by its id.

    Raises:
        UsageError: the id is empty, or no hold has this id.
        StoreError: the hold file cannot be written.
    """
    if not hold_id.strip():
        raise UsageError("HOLD is empty: add the id of a hold, see 'nodeagent hold list'")
    if (agent := daemon_of(config)) is not None:
        _print_removed(agent.call("RemoveHold", HoldDocument, {"id": hold_id}))
        return
    removed = HoldFile(load_settings(config, {}).state_directory).remove(hold_id)
    if removed is None:
        raise UsageError(f"no hold {hold_id}; 'nodeagent hold list' lists all")
    _print_removed(HoldDocument.of(removed, SystemClock().now()))


def _print_placed(hold: HoldDocument, form: str, config: Path | None) -> None:
    if form != "table":
        sys.stdout.write(encode(hold, form))
    else:
        say(f"hold {hold.id} on {hold.target} until {format_local_time(hold.until)}")
    sys.stdout.flush()
    if hold.image is not None and not labels_named([hold.image]):  # lists of images have no labels
        _note_unmatched(hold.image, config)


def _note_unmatched(image: str, config: Path | None) -> None:
    """Print a note if no image on this node matches a hold, as with a misspelt name."""
    try:
        document = read("Images", Images, {}, Source(config), _list_images)
    except NodeAgentError:  # the hold is placed; without an image list only the note is omitted
        return
    images = [Image(each.id, each.repo_tags, each.repo_digests) for each in document.images]
    if not images_named((image,), images, ImageIndex(images)):
        warn(f"note: no image on this node matches {image}; the hold applies to matching images pulled later")


async def _list_images(agent: Agent) -> Images:
    from nodeagent.gc.documents.readings import list_images  # noqa: PLC0415 - not needed if the daemon responds

    return await list_images(agent)


def _print_removed(hold: HoldDocument) -> None:
    say(f"removed hold {hold.id} on {hold.target}")


def _user() -> str:
    """Return the name of the user who called sudo, otherwise of the user of this process; the uid without a name."""
    return os.environ.get("SUDO_USER") or user_name()


def list_holds(config: Path | None, options: ListOptions, *, direct: bool) -> None:
    """Print the active holds; with ``direct`` or without a daemon they are read from the state directory.

    Raises:
        UsageError: a list option is invalid.
        StoreError: the hold file cannot be read.
    """
    request = ListRequest.of(HOLDS, options)

    def read_list() -> HoldList:
        return ask("Holds", HoldList, {}, Source(config, {}, direct)) or _read_holds(config)

    if options.watch_s is None:
        request.print(read_list(), empty="no holds", now=SystemClock().now())
    else:
        request.watch(read_list(), read_list, empty="no holds", now_of=lambda _: SystemClock().now())


def _read_holds(config: Path | None) -> HoldList:
    directory, at, clock = _node_clock(config)
    return HoldList.of(HoldFile(directory).read(), at.wall, clock)


def _node_clock(config: Path | None) -> tuple[Path, ClockReading, ClockTrust]:
    """Return the state directory, the current readings of the clocks, and the trust in the wall clock."""
    from nodeagent.loops.clock_reading import read_clocks, stored_trust  # noqa: PLC0415 - not needed if the daemon responds

    directory = load_settings(config, {}).state_directory
    at = read_clocks(SystemClock())
    return directory, at, stored_trust(directory, at)
