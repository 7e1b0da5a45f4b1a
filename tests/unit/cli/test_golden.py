"""Outputs of commands on terminals of 80, 120 and 200 columns and in a pipe, compared with stored outputs.

``NODEAGENT_TEST_UPDATE_GOLDEN=1`` replaces the stored outputs; review the difference before a commit.
The node has names as long as in a production cluster; outputs have no colour.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from unittest import mock

import pytest
import yaml

from nodeagent.api.common import Document, decode, encode
from nodeagent.cli import control_client
from nodeagent.cli.du import breakdown_lines
from nodeagent.cli.evict import eviction_lines
from nodeagent.cli.pressure import pressure_view, wide_view
from nodeagent.cli.shutdown import shutdown_lines
from nodeagent.cli.status import status_view
from nodeagent.cli.top import top_view
from nodeagent.daemon.documents import Status, Top
from nodeagent.eviction.documents import EvictionPreview, Pressure
from nodeagent.gc.documents.passes import DiskUsageDocument
from nodeagent.record import replace
from nodeagent.shutdown.documents import ShutdownPlanDocument
from nodeagent.store.history import History, PastAction, PastPass, Retention
from nodeagent.text import display_width, escape
from nodeagent.units import SystemClock
from tests.support.crowded import PROXY, REPORT, TAGGED, crowded_node
from tests.support.terminal import Shown, in_pipe, on_terminal
from tests.unit.cli.served import served_in_thread
from tests.unit.control_node import MEMBER, ROOT, STRANGER, Node

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from nodeagent.cli.display import Line

GOLDEN: Final = Path(__file__).parents[2] / "data" / "golden"
WIDTHS: Final = (80, 120, 200, None)
LISTS: Final = {
    "images": 7,
    "images-wide": 7,
    "containers": 8,
    "containers-wide": 8,
    "pods": 4,
    "hold list": 3,
}
"""Expected number of output lines of each command: a heading and one line per object."""
COMMANDS: Final = {
    **{name: (*name.removesuffix("-wide").split(), *(["-o", "wide"] if "wide" in name else [])) for name in LISTS},
    "images-tree": ("images", "--tree"),
    "images-group": ("images", "--group"),
    "images-name": ("images", "-o", "name"),
    "images-quiet": ("images", "-q"),
    "images-removed": ("images", "--filter", "verdict!=remove", "--filter", "name=*payments*", "--sort-by", "-size"),
    "containers-dead": ("containers", "--filter", "state=exited", "--no-headers"),
    "history": ("history", "--all"),
    "history-wide": ("history", "--all", "-o", "wide"),
    "history-details": ("history", "--limit", "2", "--details"),
    "explain-image": ("explain", REPORT),
    "explain-container": ("explain", "payments-production/payments-api-7d9f8b6c5d-x2x9z/payments-api"),
    "gc leaks": ("gc", "leaks", "--dry-run"),
    "gc all": ("gc", "all", "--dry-run"),
    "gc images": ("gc", "images", "--dry-run", "--kept", "--high", "2", "--low", "1", "--minimum-age", "0s"),
    "gc images-wide": ("gc", "images", "--dry-run", "--high", "2", "--low", "1", "--minimum-age", "0s", "-o", "wide"),
}
WITH_LONG_NAMES: Final = ("images-name", "explain-image")
"""Commands that print complete names, also beyond the width of the terminal."""
VOLATILE: Final[tuple[tuple[re.Pattern[str], str], ...]] = (
    (re.compile(r"unix:///\S+/cri\.sock"), "unix:///run/containerd/containerd.sock"),
    (re.compile(r"/tmp/g\S+"), "/var/lib/containerd"),
)
"""Patterns of text that depends on the machine, and its replacement."""


NOW: Final = datetime(2026, 3, 4, 12, 0, 0, tzinfo=UTC)
"""Time of the node and of the commands, which no duration of the tests changes."""
BOOTED_S: Final = 86_400.0
RETENTION: Final = Retention(timedelta(days=3650), 1 << 24)
PASS: Final = PastPass(
    id="",
    started_at=NOW - timedelta(days=3, minutes=30),
    duration_s=12.5,
    trigger="interval",
    scope="images",
    plan_id="",
    dry_run=False,
    result="complete",
    detail="",
    predicted_bytes=5 << 30,
    freed_bytes=5_300_000_000,
    percent_before=91,
    percent_after=79,
    actions=tuple(
        PastAction(
            "image",
            f"sha256:{number:064x}",
            f"{TAGGED}:2026.01.{number:02}-1200-{number:02}ab34cd",
            (),
            "failed" if number == 3 else "done",
            "image is in use by a container created since" if number == 3 else "",
            "least-recently-used",
            "least recently used; imagefs is 91% full, target 80%",
            number << 28,
            0.2,
        )
        for number in range(1, 5)
    ),
)
PASSES: Final = (
    PASS,
    replace(PASS, trigger="eviction", scope="pods", actions=(), result="nothing-to-do", freed_bytes=None),
    replace(
        PASS,
        scope="containers",
        dry_run=True,
        freed_bytes=None,
        actions=tuple(replace(each, outcome="dry-run") for each in PASS.actions),
    ),
    replace(PASS, result="shortfall", detail="21.4 GiB short of the low threshold: 12 in-use-by-container, 3 pinned"),
)


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with (
        mock.patch.object(SystemClock, "now", return_value=NOW),
        mock.patch.object(SystemClock, "monotonic_s", return_value=BOOTED_S),
        # The path has a constant length, so that columns have constant widths.
        tempfile.TemporaryDirectory(prefix="g", dir="/tmp") as name,
        served_in_thread(Path(name), crowded_node(Path(name), NOW)) as served,
    ):
        directory = Path(name) / "state"
        for number, past in enumerate(PASSES):
            started_at = past.started_at + timedelta(minutes=5 * number)
            identity = f"{started_at:%Y%m%dT%H%M%SZ}-0a1b2c"
            History(directory).add(replace(past, id=identity, started_at=started_at), RETENTION)
        for image, why in ((f"{TAGGED}:*", "rollback of the settlement migration until Thursday"), ("--all", "audit")):
            assert (
                in_pipe("hold", "add", image, "--for", "3d59m", "--why", why, "--config", str(served.config)).code == 0
            )
        yield served


@pytest.fixture(autouse=True)
def _as_root(node: Node) -> None:
    node.peer[0] = ROOT


@pytest.fixture(autouse=True)
def _plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.delenv("COLUMNS", raising=False)


def shown(columns: int | None, *arguments: str) -> Shown:
    return in_pipe(*arguments) if columns is None else on_terminal(columns, *arguments)


def compare(name: str, columns: int | None, text: str) -> None:
    """Compare an output with the stored output, or replace the stored output."""
    for pattern, replacement in VOLATILE:
        text = pattern.sub(replacement, text)
    path = GOLDEN / f"{name.replace(' ', '-')}-{columns or 'pipe'}.txt"
    if os.environ.get("NODEAGENT_TEST_UPDATE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text(), f"{path} differs; NODEAGENT_TEST_UPDATE_GOLDEN=1 replaces it"


@pytest.mark.parametrize("columns", WIDTHS)
@pytest.mark.parametrize("name", COMMANDS)
def test_output_is_the_stored_one(node: Node, name: str, columns: int | None) -> None:
    ended = shown(columns, *COMMANDS[name], "--config", str(node.config))
    assert (ended.code in (0, 3), ended.err) == (True, "")
    lines = ended.out.splitlines()
    assert [escape(line) for line in lines] == lines
    is_stacked = name in LISTS and any(line.startswith("  ") for line in lines)  # a row with whole names above it
    fitted = [line for line in lines if not (is_stacked and columns and max(map(len, line.split())) > columns // 2)]
    assert columns is None or name in WITH_LONG_NAMES or max(map(display_width, fitted)) <= columns
    if name in LISTS:
        rows = [line for line in lines if not line.startswith((" ", "all: "))]
        assert len(rows) == LISTS[name] or is_stacked
    compare(name, columns, ended.out)


@pytest.mark.parametrize("name", sorted(LISTS))
def test_member_and_root_get_the_same_output_from_the_daemon_as_root_from_the_node(
    node: Node, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_client, "find_socket", lambda _: str(node.path))
    for peer, uid in ((ROOT, 0), (MEMBER, 4711)):
        node.peer[0] = peer
        monkeypatch.setattr("os.geteuid", lambda uid=uid: uid)
        ended = shown(80, *COMMANDS[name])
        assert (ended.code, ended.err) == (0, "")
        compare(name, 80, ended.out)


@pytest.mark.parametrize("name", [*sorted(LISTS), "history", "gc all"])
def test_stranger_gets_one_line_on_standard_error(node: Node, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_client, "find_socket", lambda _: str(node.path))
    monkeypatch.setattr("os.geteuid", lambda: 4712)
    node.peer[0] = STRANGER
    ended = shown(80, *COMMANDS[name])
    assert (ended.code, ended.out, ended.err.count("\n")) == (1, "", 1)
    compare(f"stranger-{name}", None, ended.err)


def test_every_reference_is_found_in_a_pipe(node: Node) -> None:
    lines = in_pipe("images", "--config", str(node.config)).out.splitlines()
    for day in range(1, 21):
        reference = f"{TAGGED}:2026.02.{day:02}-1200-{day:02}ab34cd"
        assert len([line for line in lines if reference in line]) == 1


@pytest.mark.parametrize(
    "command",
    [
        *("images", "images --tree", "images --filter verdict=keep --sort-by -size", "containers", "pods", "hold list"),
        *(
            "history --all",
            "history 20260301T114500Z",
            "gc all --dry-run",
            "gc leaks --dry-run",
            "status",
            "top --once",
        ),
        *("report", "pressure", "evict --dry-run", "shutdown --dry-run", "version", f"explain {PROXY}"),
    ],
)
def test_json_has_exactly_the_fields_of_its_published_schema(node: Node, command: str) -> None:
    ended = in_pipe(*command.split(), "-o", "json", "--config", str(node.config))
    assert ended.out, ended.err
    printed = json.loads(ended.out)
    (kind,) = [each for each in documents(Document) if each.__struct_config__.tag == printed["schema"]]
    assert json.loads(encode(decode(ended.out, kind))) == printed
    assert '"sentence"' not in ended.out or command.startswith("history"), "only history documents have sentences"
    in_yaml = in_pipe(*command.split(), "-o", "yaml", "--config", str(node.config)).out
    assert yaml.safe_load(in_yaml)["schema"] == printed["schema"]


def documents(kind: type[Document]) -> Iterator[type[Document]]:
    """Yield all direct and indirect subclasses of a document class."""
    for each in kind.__subclasses__():
        yield from (each, *documents(each))


def test_colours_are_on_a_terminal_only(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "xterm")
    arguments = ("containers", "--config", str(node.config))
    coloured = on_terminal(120, *arguments).out
    assert "\x1b[31m" in coloured
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == (GOLDEN / "containers-120.txt").read_text()
    assert "\x1b" not in in_pipe(*arguments).out


DOCUMENTS: Final = GOLDEN.with_name("documents")


def usage_lines(document: DiskUsageDocument, columns: int | None) -> Iterable[Line]:
    """Return the output lines of a usage breakdown, with the largest items of every part."""
    return breakdown_lines(document.to_model(), columns, details=True)


def inode_lines(document: DiskUsageDocument, columns: int | None) -> Iterable[Line]:
    """Return the output lines of the inodes of a usage breakdown."""
    return breakdown_lines(document.to_model(), columns, details=False, inodes=True)


SCREENS: Final[dict[str, tuple[type[Document], Callable[[Any, int | None], Iterable[Line]]]]] = {
    "status": (Status, status_view),
    "top": (Top, top_view),
    "pressure": (Pressure, pressure_view),
    "pressure-wide": (Pressure, wide_view),
    "du": (DiskUsageDocument, usage_lines),
    "du-inodes": (DiskUsageDocument, inode_lines),
    "evict": (EvictionPreview, eviction_lines),
    "shutdown": (ShutdownPlanDocument, shutdown_lines),
}


@pytest.mark.parametrize("columns", WIDTHS)
@pytest.mark.parametrize("name", SCREENS)
def test_screen_of_a_document_is_the_stored_one(name: str, columns: int | None) -> None:
    kind, view = SCREENS[name]
    lines = view(decode((DOCUMENTS / f"{name.partition('-')[0]}.json").read_text(), kind), columns)
    parts = [part.text for line in lines for part in (line.wrapped(columns) if columns else [line])]
    assert columns is None or max(map(display_width, parts)) <= columns
    compare(name, columns, "\n".join((*parts, "")))
