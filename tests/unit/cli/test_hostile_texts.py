"""Property of every command that prints foreign text: one escaped line per object for any text of a tenant."""

from __future__ import annotations

import os
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import HealthCheck, example, given, settings, strategies as st

from nodeagent.cli import control_client
from nodeagent.gc.hold_file import HoldFile
from nodeagent.model.clock import TRUSTED
from nodeagent.model.node import ALL_IMAGES, Hold
from nodeagent.model.runtime import ContainerState
from nodeagent.store.history import History, PastAction, PastPass, Retention
from nodeagent.text import display_width, escape
from tests.sim.clock import SimClock
from tests.sim.content import Layer
from tests.sim.node import PAUSE, SimNode
from tests.support.terminal import in_pipe, on_terminal
from tests.unit.cli.served import served_in_thread

if TYPE_CHECKING:
    from tests.unit.control_node import Node

_OLD_S: Final = 30 * 86_400.0
_HOSTILE: Final = (
    *("\x1b[2J", "\x9b31m", "\x00", "\n", "\r", "\t", "\x7f", "\x85", "\u2028", "\u2029", "\u202e", "\u2066", "\u200b"),
    *("\ufeff", "\u00ad", "\u3164", "\ufe0f", "\U000e0041", "[bold]", "[/]", ":skull:", "{0}", "%s", "\\x1b", "'", '"'),
    *("\u4f60\u597d", "e\u0301", "\u1112\u1161\u11ab", "\U0001f600", " ", "  ", "-", ",", "/", "@", ":"),
)
TEXTS: Final = st.lists(
    st.one_of(st.sampled_from(_HOSTILE), st.text(st.characters(exclude_categories=["Cs"]), max_size=4)),
    min_size=1,
    max_size=6,
).map("".join)
"""Texts that a protobuf string can contain: any characters except surrogates."""

LINES: Final = {
    "images": 4,
    "images -o wide": 4,
    "containers": 3,
    "containers -o wide": 3,
    "pods": 2,
    "pods -o wide": 2,
    "hold list": 2,
    "history": 2,
    "history -o wide": 2,
}
"""Expected number of output lines of each command: a heading and one line per object."""
COMMANDS: Final = (
    *LINES,
    *("images --tree", "images -o name", "containers -o name", "pods -o name"),
    *("gc all --dry-run --kept", "gc all --dry-run --kept -o wide", "gc leaks --dry-run --kept --minimum-age 0s"),
    *("evict --dry-run", "shutdown --dry-run", "history --details", "history --details -o wide"),
    *("status", "top --once"),
)


def node_of(root: Path, tag: str, name: str, label: str) -> SimNode:
    """Return a node with the given texts as references, names, namespaces, UIDs, labels and annotations."""
    node = SimNode(clock=SimClock(datetime.now(UTC)), root_path=str(root))
    node.add_image(PAUSE, layers=[Layer("pause", 4096)], pinned=True, age_s=_OLD_S)
    used, unused = (f"registry.example/{kind}{tag}" for kind in ("used", "unused"))
    node.add_image(used, f"registry.example/other{tag}", layers=[Layer("base", 1 << 20)], age_s=_OLD_S)
    node.add_image(unused, layers=[Layer("base", 1 << 20), Layer("unused", 1 << 20)], age_s=_OLD_S)
    labels = {label: label, "io.kubernetes.container.name": name}
    pod = node.add_pod(
        name, namespace=label, uid=f"uid{name}", age_s=_OLD_S, labels={label: label}, annotations={label: label}
    )
    node.add_container(pod, name, used, age_s=_OLD_S, labels=labels, annotations={label: label})
    node.add_container(
        pod, name, used, state=ContainerState.EXITED, age_s=_OLD_S, ended_s=_OLD_S / 2, labels=labels, attempt=1
    )
    node.fill_to(95)
    return node


def write_records(node: Node, text: str) -> None:
    """Record a pass with ``text`` in every text field, and place an image hold."""
    action = PastAction("image", text, text, (text,), "failed", text, "least-recently-used", text, 1, 0.1)
    past = PastPass(
        id="20260301T120000Z-0a1b2c",
        started_at=datetime.now(UTC),
        duration_s=1.0,
        trigger="interval",
        scope="images",
        plan_id="",
        dry_run=False,
        result="shortfall",
        detail=text,
        predicted_bytes=0,
        freed_bytes=1,
        percent_before=9,
        percent_after=8,
        actions=(action,),
    )
    directory = node.context.settings.state_directory
    History(directory).add(past, Retention(timedelta(days=30), 1 << 24))
    now = datetime.now(UTC)
    HoldFile(directory).add(Hold("", ALL_IMAGES, text, text, now, now + timedelta(hours=2)), TRUSTED)


def write_log_directory(pods: Path, text: str) -> None:
    name = os.fsencode(text.replace("/", "_").replace("\0", "_"))[:200] + b"\xff\x1b"
    path = os.fsencode(pods) + b"/" + name
    os.makedirs(path)  # noqa: PTH103 - the path is bytes
    os.utime(path, (0, 0))


def assert_harmless(text: str) -> list[str]:
    lines = text.split("\n")
    assert [each for each in lines if escape(each) != each] == []
    return lines[:-1]


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@example("[bold]\x1b]0;t\x07", "n\nnodeagent: ok\u202e", "\u2028\u200b\ufe0f")
@example(" ", "-", ",")
@example("a", "a", "\0/")
@given(TEXTS, TEXTS, TEXTS)
def test_any_foreign_text_is_escaped_with_one_line_per_object(tag: str, name: str, label: str) -> None:
    with tempfile.TemporaryDirectory(prefix="h") as directory, pytest.MonkeyPatch.context() as patch:
        root = Path(directory) / "node"
        root.mkdir()
        patch.setenv("NO_COLOR", "1")
        patch.delenv("COLUMNS", raising=False)
        write_log_directory(root / "pods", label)
        with served_in_thread(root, node_of(root, tag, name, label)) as node:
            write_records(node, label)
            for command in COMMANDS:
                check(command, node)
            patch.setattr("os.geteuid", lambda: 0)
            patch.setattr(control_client, "find_socket", lambda _: str(node.path))
            for command in LINES:
                check(command, node, through_daemon=True)


def check(command: str, node: Node, *, through_daemon: bool = False) -> None:
    config = () if through_daemon else ("--config", str(node.config))
    for columns in (None, 80):
        ended = in_pipe(*command.split(), *config) if columns is None else on_terminal(80, *command.split(), *config)
        assert ended.code in (0, 1, 3), (command, ended.err)
        lines = assert_harmless(ended.out)
        assert_harmless(ended.err)
        assert "Traceback" not in ended.err
        is_stacked = columns is not None and any(line.startswith("  ") for line in lines)
        if command in LINES and not is_stacked:
            omitted = columns is not None and lines[-1].startswith("all: ")
            summed = columns is not None and command.startswith("history")
            assert len(lines) == LINES[command] + omitted + summed, (command, ended.out)
            assert columns is None or all(display_width(line) <= columns for line in lines)
