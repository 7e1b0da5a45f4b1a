"""Command lines matched without the parser, compared with the result of the parser."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.cli import grammar, quick
from nodeagent.cli import main as command_line
from nodeagent.cli.quick_parser import GRAMMAR, match, read_grammar

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

WORDS = ["x", "1", "0", "20", "-5", "2.5", "json", "table", "wide", "a=b", "24h", "", "-", "--", "ä", "\x1b"]
IMPLEMENTATIONS = {
    "containers": ["nodeagent.cli.lists.list_containers"],
    "du": ["nodeagent.cli.du.show"],
    "evict": ["nodeagent.cli.evict.preview"],
    "explain": ["nodeagent.cli.explain.show"],
    "gc all": ["nodeagent.cli.gc.collect"],
    "gc containers": ["nodeagent.cli.gc.collect"],
    "gc images": ["nodeagent.cli.gc.collect"],
    "gc leaks": ["nodeagent.cli.leaks.collect_leaks"],
    "history": ["nodeagent.cli.history.show_history"],
    "hold list": ["nodeagent.cli.hold_list.show"],
    "images": ["nodeagent.cli.lists.list_images", "nodeagent.cli.image_tree.image_tree"],
    "pause": ["nodeagent.cli.control.pause"],
    "pods": ["nodeagent.cli.lists.list_pods"],
    "pressure": ["nodeagent.cli.pressure.show"],
    "resume": ["nodeagent.cli.control.resume"],
    "shutdown": ["nodeagent.cli.shutdown.rehearse"],
    "shutdown status": ["nodeagent.cli.shutdown.status"],
    "status": ["nodeagent.cli.status.show_status"],
    "top": ["nodeagent.cli.status.show_top"],
    "version": ["nodeagent.cli.version.show_version"],
}
"""Functions that implement each command."""


NEEDED = {name: ["--dry-run"] for name in ("gc all", "gc containers", "gc images", "evict", "shutdown")}
_SETTINGS = {
    option
    for name in ("gc all",)
    for option, each in read_grammar()[name]["options"].items()
    if each["name"].startswith(("image_gc_", "container_gc_"))
}
LEFT_TO_THE_PARSER = {
    **dict.fromkeys(("gc all", "gc containers", "gc images"), _SETTINGS),
    "gc leaks": {"-y", "--yes"},
}
"""Options that need the parser, since the command removes items or overrides settings."""


@pytest.fixture(scope="module")
def calls() -> Iterator[list[Any]]:
    """Replace the implementations of all commands; yield the list of their recorded calls."""
    made: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        for name in {each for names in IMPLEMENTATIONS.values() for each in names}:
            patch.setattr(name, lambda *args, _name=name, **options: made.append((_name, args, options)))
        patch.setattr("sys.stdout.isatty", lambda: True)
        yield made


def test_stored_grammar_is_that_of_the_command_tree() -> None:
    assert Path(GRAMMAR).read_text() == grammar.rendered()


def test_every_command_has_its_implementation_in_this_test() -> None:
    assert IMPLEMENTATIONS.keys() == quick.COMMANDS.keys()


def lines(commands: Mapping[str, Any]) -> st.SearchStrategy[list[str]]:
    """Return a strategy for command lines with options and values, most of them valid."""

    def of_command(name: str) -> st.SearchStrategy[list[str]]:
        options = commands[name]["options"]
        known = st.sampled_from(sorted(options)) if options else st.just("--output")
        value = st.sampled_from([*WORDS, "yaml", "name"])
        valid = st.builds(lambda option: _valid(option, options.get(option, {})), known)
        pair = st.one_of(
            valid,
            valid,
            valid,
            st.tuples(known, value),
            known.map(lambda each: (each,)),
            value.map(lambda each: (each,)),
        )
        joined = st.builds(lambda option, text: (f"{option}={text}",), known, value)
        tail = st.lists(st.one_of(pair, pair, joined), max_size=4)
        return tail.map(lambda parts: [*name.split(), *(word for part in parts for word in part)])

    return st.sampled_from(sorted(commands)).flatmap(of_command)


def _valid(option: str, parameter: Mapping[str, Any]) -> tuple[str, ...]:
    match parameter.get("kind"):
        case "flag":
            return (option,)
        case "choice":
            return (option, parameter["choices"][-1])
        case "int":
            return (option, "7")
        case _:
            return (option, "5")


@given(words=lines(read_grammar()))
def test_matched_command_line_calls_what_the_parser_calls(calls: list[Any], words: list[str]) -> None:
    del calls[:]
    matched = quick.run(words)
    quickly = list(calls)
    if not matched:
        assert quickly == []
        return
    del calls[:]
    _parse(words)
    assert quickly == calls
    assert len(calls) == 1


def _parse(words: Sequence[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["nodeagent", *words])
        with pytest.raises(SystemExit) as ended:
            command_line.main()
    assert ended.value.code in (0, None), words


@pytest.mark.parametrize("name", sorted(IMPLEMENTATIONS))
def test_every_option_is_matched_alone(calls: list[Any], name: str) -> None:
    command = read_grammar()[name]
    for option, parameter in command["options"].items():
        if parameter["name"] in quick.PARSED_OPTIONS:
            continue
        if option in LEFT_TO_THE_PARSER.get(name, ()):
            continue
        del calls[:]
        needed = [] if option in ("-n", "--dry-run", "-s", "--simulate") else NEEDED.get(name, [])
        words = [*name.split(), *needed, *_valid(option, parameter), *("item" for _ in command["arguments"])]
        assert quick.run(words), option
        assert len(calls) == 1


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["nothing"],
        ["hold"],
        ["hold", "add"],
        ["images", "extra"],
        ["history", "x", "y"],
        ["gc", "all"],
        ["gc", "all", "--yes"],
        ["gc", "images", "--dry-run", "--high", "5"],
        ["gc", "leaks", "--yes"],
        ["evict"],
        ["shutdown"],
        ["images", "--help"],
        ["images", "-h"],
        ["images", "--outp", "json"],
        ["images", "-ojson"],
        ["images", "-o=json"],
        ["images", "-o"],
        ["images", "-o", "xml"],
        ["images", "-o", "json", "-o", "yaml"],
        ["images", "--tree", "--tree"],
        ["images", "--tree=yes"],
        ["images", "--output="],
        ["images", "--"],
        ["images", "--config", "/x"],
        ["images", "--endpoint", "unix:///x"],
        ["history", "--limit", "0"],
        ["history", "--limit", "1.0"],
        ["history", "--limit", "9" * 40],
        ["history", "--limit", "\u0663"],
        ["history", "--since", "\udcff"],
        ["status", "--every", "1e3"],
        ["status", "--every", "nan"],
        ["--config", "images"],
    ],
    ids=ascii,
)
def test_other_command_line_is_left_to_the_parser(calls: list[Any], words: list[str]) -> None:
    del calls[:]
    assert (quick.run(words), calls) == (False, [])


def test_completion_is_left_to_the_parser(calls: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_NODEAGENT_COMPLETE", "complete_bash")
    del calls[:]
    assert (quick.run(["images"]), calls) == (False, [])


def test_defaults_are_those_of_the_command() -> None:
    found = match(["history"], read_grammar())
    assert found is not None
    assert (found[0], found[1]["limit"], found[1]["output"]) == ("history", 20, "table")
