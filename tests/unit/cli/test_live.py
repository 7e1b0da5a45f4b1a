"""Live views on a terminal: keys, changes of the size, an absent daemon, and the restored terminal at every end."""

from __future__ import annotations

import os
import signal
import tempfile
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from nodeagent.cli import live
from nodeagent.cli.display import Display, Line
from nodeagent.cli.live import Scrolled, keys_of
from nodeagent.cli.terminal import SafeConsole, text_of
from nodeagent.text import escape
from tests.support.crowded import crowded_node
from tests.support.terminal import Session
from tests.unit.cli.served import served_in_thread

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

LEFT = "\x1b[?1049l"
Q = "q quit"


@pytest.fixture(scope="module")
def environment() -> Iterator[Mapping[str, str]]:
    with (
        tempfile.TemporaryDirectory(prefix="l", dir="/tmp") as name,
        served_in_thread(Path(name), crowded_node(Path(name), datetime.now(UTC))) as node,
    ):
        yield {"NODEAGENT_CONTROL__SOCKET": str(node.path)}


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("\x1b[A\x1b[B", ["up", "down"]),
        ("\x1bOA", ["up"]),
        ("jk", ["down", "up"]),
        ("\x1b[5~\x1b[6~", ["page-up", "page-down"]),
        ("\x1b", ["back"]),
        ("\rq", ["enter", "q"]),
        ("\x1b[1;5Cm", ["m"]),
    ],
)
def test_keys_of_a_terminal(text: str, keys: list[str]) -> None:
    assert keys_of(text) == keys


def test_lines_beyond_the_screen_are_counted_and_scrolled_to() -> None:
    def shown() -> list[str]:
        return [line.text for line in scrolled.lines(None, 80, 4)]

    scrolled: Scrolled[Any] = Scrolled(lambda *_: [Line(f"{number}") for number in range(9)])
    assert shown() == ["0", "1", "2", "and 6 more lines"]
    for key, first in (("down", "1"), ("page-down", "4"), ("end", "5"), ("down", "5"), ("up", "4"), ("home", "0")):
        scrolled.press(key, None)
        assert shown()[0] == first, key


def test_markup_and_control_characters_in_names_are_inert() -> None:
    console = SafeConsole(width=80)
    with console.capture() as captured:
        console.print(text_of([Line("[red]x[/red] :skull: "), Line("a\x1b[31m\u202eb", "bold")]))
    assert escape(captured.get().replace("\n", "")) == captured.get().replace("\n", "")
    assert "[red]x[/red] :skull:" in captured.get()


@pytest.mark.parametrize(("term", "has_screen"), [("xterm", True), ("dumb", False), ("unknown", False), ("", False)])
def test_live_view_requires_a_terminal_that_can_be_overwritten(
    monkeypatch: pytest.MonkeyPatch, term: str, has_screen: bool
) -> None:
    monkeypatch.setenv("TERM", term)
    assert Display(80).has_screen is has_screen
    assert not Display(None).has_screen


def test_top_is_sorted_selected_explained_and_resized_by_keys(environment: Mapping[str, str]) -> None:
    with Session("top", "--every", "1", environment=environment) as session:
        lines = session.shown(Q)
        assert len(lines) <= 24
        assert session.mode() != session.mode_before
        session.press("\x1b[B")
        session.shown(">2")
        session.press("m")
        session.shown("pods by memory")
        session.press("\r")
        assert "  rank           2 of 2" in "\n".join(session.shown("verdict"))
        session.press("q")
        session.shown(Q)
        session.press("?")
        session.shown("explain the selected pod")
        session.press("\x1b")
        session.shown(Q)
        session.resize(120, 30)
        assert any("QOS" in line for line in session.shown("PRIORITY"))
        session.press("q")
        assert session.wait() == 0
        assert session.mode() == session.mode_before
        assert session.received.endswith(LEFT)


@pytest.mark.parametrize(
    ("words", "key", "code"),
    [("top", "\x03", 130), ("status -w", "\x03", 130), ("images -w", "q", 0), ("pods -w", "q", 0)],
)
def test_view_ends_by_a_key_with_the_terminal_restored(
    environment: Mapping[str, str], words: str, key: str, code: int
) -> None:
    with Session(*words.split(), environment=environment) as session:
        session.shown(Q)
        session.press(key)
        assert session.wait() == code
        assert session.mode() == session.mode_before
        assert LEFT in session.received


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGQUIT, signal.SIGHUP])
def test_terminal_is_restored_before_a_signal_ends_the_view(environment: Mapping[str, str], number: int) -> None:
    with Session("pressure", "-w", environment=environment) as session:
        session.shown(Q)
        os.kill(session.pid, number)
        assert session.wait() == 128 + number
        assert session.mode() == session.mode_before
        assert LEFT in session.received


def test_view_of_a_terminal_of_any_size_continues(environment: Mapping[str, str]) -> None:
    with Session("top", environment=environment, columns=1, rows=1) as session:
        for columns, rows in ((1, 1), (2, 2), (20, 5), (300, 1), (1, 99)):
            session.received = ""
            session.resize(columns, rows)
            session.receive_until("\x1b[H")
        session.resize(80, 24)
        session.shown(Q)
        session.press("q")
        assert session.wait() == 0


def test_stopped_view_leaves_the_terminal_and_is_drawn_again(environment: Mapping[str, str]) -> None:
    with Session("top", environment=environment) as session:
        session.shown(Q)
        session.press("\x1a")
        os.waitid(os.P_PID, session.pid, os.WSTOPPED | os.WNOWAIT)
        assert session.mode() == session.mode_before
        session.receive_until(LEFT)
        session.received = ""
        os.kill(session.pid, signal.SIGCONT)
        session.shown(Q)
        assert session.mode() != session.mode_before
        session.press("q")
        assert session.wait() == 0


def test_view_of_a_locale_without_drawn_characters_is_ascii(environment: Mapping[str, str]) -> None:
    ascii_only = {"PYTHONIOENCODING": "ascii", "NO_COLOR": "1"}
    with Session("top", environment={**environment, **ascii_only}) as session:
        assert any("#" in line and "]" in line for line in session.shown(Q))
        session.press("q")
        assert session.wait() == 0
        assert session.received.isascii()


def test_daemon_that_ends_during_the_view_is_stated_and_asked_again() -> None:
    with tempfile.TemporaryDirectory(prefix="l", dir="/tmp") as name, ExitStack() as stack:
        with served_in_thread(Path(name), crowded_node(Path(name), datetime.now(UTC))) as node:
            changes = {"NODEAGENT_CONTROL__SOCKET": str(node.path)}
            session = stack.enter_context(Session("top", "--every", "0.5", environment=changes))
            session.shown(Q)
        session.shown("trying again")
        assert any("pods in eviction order" in line for line in session.shown(Q))
        session.press("q")
        assert session.wait() == 0
        assert "Traceback" not in session.received


def test_age_of_the_document_is_stated_during_a_long_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, drawn = 0.0, dict[float, str]()

    class Terminal:
        def wait(self, within_s: float) -> None:
            nonlocal now_s
            now_s += within_s

        def keys(self) -> list[str]:
            return ["q"] if now_s > 9 else []

        def size(self) -> tuple[int, int]:
            return 80, 3

        def draw(self, lines: list[Line]) -> None:
            drawn[now_s] = lines[-2].text

    class Unanswered:
        def start(self, *_: object) -> None:
            pass

        def finished(self) -> tuple[()]:
            return ()

    monkeypatch.setattr("time.monotonic", lambda: now_s)
    view: Any = live._View(None, Any, 2.0, Scrolled(lambda *_: ()), Terminal(), Unanswered())  # type: ignore[arg-type]  # noqa: SLF001
    view.run()
    assert drawn[7] == ""
    assert drawn[8] == "8s old, waiting for an answer"


def test_dumb_terminal_gets_the_output_once(environment: Mapping[str, str]) -> None:
    with Session("top", environment={**environment, "TERM": "dumb"}) as session:
        assert session.wait() == 0
        assert "pods in eviction order" in session.received
        assert "\x1b" not in session.received
