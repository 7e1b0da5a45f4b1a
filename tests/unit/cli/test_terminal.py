"""Escaping of arbitrary text in names by every function that prints to the terminal."""

from __future__ import annotations

import ast
import re
import sys
import threading
from contextlib import suppress
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from rich.console import Group
from rich.table import Column, Table
from rich.text import Text
from rich.tree import Tree

import nodeagent.cli
from nodeagent.cli import display
from nodeagent.cli.display import say, warn
from nodeagent.cli.exit_codes import guarded
from nodeagent.cli.gc import plan_lines
from nodeagent.cli.terminal import SafeConsole
from nodeagent.errors import ConfigError, NodeAgentError
from nodeagent.model.decision import Decision, ItemKind, Plan, Reason, ReasonCode, Verdict
from nodeagent.text import escape, escape_lines

ANYTHING = st.text(st.characters(), max_size=30)
STYLE = re.compile(r"\x1b\[[0-9;]*m")
HOSTILE = "[/x][bold]\x1b[31m:skull:\n\u202e\x9b\udcff"
UNSAFE = {"rich.text", "rich.markup", "rich.console.Console"}
WRITERS = {"sys.stdout.write", "sys.stderr.write", "print", "typer.echo"}


def printed(*renderables: object, width: int = 4000, **options: object) -> str:
    console = SafeConsole(width=width)
    with console.capture() as capture:
        for each in renderables:
            console.print(each, **options)  # type: ignore[arg-type]
    return capture.get()


@given(ANYTHING, ANYTHING, st.sampled_from([None, 80, 200]))
def test_any_text_in_a_plan_is_escaped(name: str, why: str, columns: int | None) -> None:
    reason = Reason(ReasonCode.NOT_A_POD_LOG_DIRECTORY, {"detail": why})
    decisions = tuple(
        Decision(kind, name, name, verdict, reason, 1)
        for kind in (ItemKind.IMAGE, ItemKind.CONTAINER)
        for verdict in (Verdict.REMOVE, Verdict.KEEP)
    )
    plan = Plan("logs", datetime(2026, 1, 1, tzinfo=UTC), decisions, warnings=(why,), blocked=why)
    lines = [line.text for kept in (True, False) for line in plan_lines(plan, columns, show_kept=kept, wide=kept)]
    assert [escape(line) for line in lines] == lines
    assert any(escape(why).strip() in line for line in lines)


@given(ANYTHING, st.integers(10, 60))
def test_any_text_is_escaped_in_every_renderable(text: str, width: int) -> None:
    tree = Tree(text)
    tree.add(Text(text))
    table = Table("a", "b")
    table.add_row(text, Text(text))
    line = Text("x")
    line.append(text, style="red")
    shown = printed(text, tree, table, line, Group(text, line), width=width, style="bold")
    assert escape_lines(shown) == shown


def test_markup_emoji_codes_and_newlines_in_data_are_not_interpreted() -> None:
    assert printed(HOSTILE) == r"[/x][bold]\x1b[31m:skull:\n\u202e\u009b\xff" + "\n"
    assert printed(HOSTILE, markup=True) == printed(HOSTILE)


def test_terminal_gets_only_control_sequences_of_the_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    shown = printed(Text(HOSTILE, style="red"))
    assert "\x1b[31m[/x]" in shown
    plain = STYLE.sub("", shown)
    assert escape_lines(plain) == plain


def test_wide_escape_is_wrapped_and_not_truncated() -> None:
    table = Table(Column("name", overflow="fold"), box=None)
    table.add_row("\x1b" * 20)
    shown = printed(table, width=30)
    assert shown.count(r"x1b") + shown.count("x1\n") >= 18
    assert "".join(shown.split()).count("x1b") == 20


@given(ANYTHING)
def test_lines_of_output_and_warnings_are_escaped(text: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        written: list[str] = []
        patch.setattr("sys.stdout.write", written.append, raising=False)
        patch.setattr("sys.stderr.write", written.append, raising=False)
        say(text)
        warn(text)
    assert written == [escape(text) + "\n"] * 2


@pytest.mark.parametrize(
    ("error", "code", "shown"),
    [
        (NodeAgentError(HOSTILE), 1, r"[/x][bold]\x1b[31m:skull:\n\u202e\u009b\xff"),
        (ConfigError("one\ntwo\x1b"), 2, "one\ntwo\\x1b"),
        (ZeroDivisionError("\x1b"), 1, "ZeroDivisionError: \\x1b"),
    ],
)
def test_errors_are_escaped(error: Exception, code: int, shown: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended, guarded():
        raise error
    message = capsys.readouterr().err
    assert (ended.value.code, shown in message) == (code, True)
    assert escape_lines(message) == message


def test_unsafe_classes_of_rich_are_imported_in_one_module() -> None:
    directory = Path(nodeagent.cli.__file__).parent
    found = set()
    for path in directory.parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("rich"):
                names = {node.module, *(f"{node.module}.{each.name}" for each in node.names)}
                if names & UNSAFE and not _is_type_import(path, node):
                    found.add(path.relative_to(directory).as_posix())
    assert found == {"terminal.py"}


def _is_type_import(path: Path, node: ast.ImportFrom) -> bool:
    blocks = [each for each in ast.walk(ast.parse(path.read_text())) if isinstance(each, ast.If)]
    types = [each for each in blocks if isinstance(each.test, ast.Name) and each.test.id == "TYPE_CHECKING"]
    return any(each.lineno < node.lineno <= (each.end_lineno or 0) for each in types)


def test_formatted_lines_are_written_by_escaping_functions() -> None:
    exempt = {"display.py", "exit_codes.py", "install.py", "main.py", "help.py", "start.py"}
    found = set()
    for path in Path(nodeagent.cli.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in WRITERS:
                values = [each for argument in node.args for each in ast.walk(argument)]
                if any(isinstance(each, ast.JoinedStr | ast.BinOp) for each in values) and path.name not in exempt:
                    found.add(f"{path.name}:{node.lineno}")
    assert found == set()


class _Terminal(StringIO):
    def __init__(self, *, is_terminal: bool) -> None:
        super().__init__()
        self._is_terminal = is_terminal
        self.written = threading.Event()

    def isatty(self) -> bool:
        return self._is_terminal

    def flush(self) -> None:
        self.written.set()


def test_long_work_is_shown_on_a_terminal_and_cleared_at_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(display, "_WORKING_AFTER_S", 0.0)
    monkeypatch.setattr(sys, "stdout", _Terminal(is_terminal=True))
    terminal = _Terminal(is_terminal=True)
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with suppress(KeyboardInterrupt), display.working():
        assert terminal.written.wait(60)
        raise KeyboardInterrupt
    assert terminal.getvalue().startswith("working")
    assert terminal.getvalue().endswith("\r\x1b[K")


@pytest.mark.parametrize(
    ("out", "err", "term", "after_s"),
    [(False, True, "xterm", 0.0), (True, False, "xterm", 0.0), (True, True, "dumb", 0.0), (True, True, "xterm", 60.0)],
    ids=["output in a pipe", "errors in a file", "dumb terminal", "short work"],
)
def test_work_is_not_shown(monkeypatch: pytest.MonkeyPatch, out: bool, err: bool, term: str, after_s: float) -> None:
    monkeypatch.setattr(display, "_WORKING_AFTER_S", after_s)
    streams = {"stdout": _Terminal(is_terminal=out), "stderr": _Terminal(is_terminal=err)}
    for name, stream in streams.items():
        monkeypatch.setattr(sys, name, stream)
    monkeypatch.setenv("TERM", term)
    with display.working():
        pass
    assert [each.getvalue() for each in streams.values()] == ["", ""]
