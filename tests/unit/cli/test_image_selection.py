"""``nodeagent gc images --only``: preview, confirmation and removal of selected images, with and without a daemon."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Final

import msgspec
import pytest

from nodeagent.api import requests as api
from nodeagent.cli import control_client
from tests.sim.content import Layer
from tests.sim.filesystem import SimFilesystem
from tests.sim.node import SimNode
from tests.unit.cli.test_exit_codes import become_member
from tests.unit.control_node import Node, say, serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

OLD: Final = tuple(f"registry.example/old:v{number}" for number in range(3))
USED: Final = "registry.example/used:v1"
YOUNG: Final = "registry.example/young:v1"
NEW: Final = "registry.example/old:new"
ALL: Final = {*OLD, USED, YOUNG}
SELECTION: Final = ("--only", OLD[1], "--only", "registry.example/used:*", "--only", "*/young")


@pytest.fixture
async def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Node]:
    """Yield a node above its high threshold, with unused images, an image in use and a young image."""
    sim = SimNode(root_path=str(tmp_path), capacity_bytes=1 << 30)
    for name in (*OLD, USED, YOUNG):
        sim.add_image(name, layers=[Layer(name, 1 << 20)], age_s=1 if name == YOUNG else 86_400)
    sim.add_container(sim.add_pod("web"), "app", USED, age_s=3600)
    sim.fill_to(95)
    monkeypatch.setattr("nodeagent.gc.agent.SystemClock", lambda: sim.clock)
    monkeypatch.setattr("nodeagent.gc.agent_parts.SystemClock", lambda: sim.clock)
    monkeypatch.setattr("nodeagent.gc.agent_parts.read_filesystem", SimFilesystem(sim).read_filesystem)
    monkeypatch.setattr("nodeagent.gc.pass_state.SETTLE_WITHIN_S", 0.0)
    for each in ("add_signal_handler", "remove_signal_handler"):  # signal handlers require the main thread
        monkeypatch.setattr(f"asyncio.SelectorEventLoop.{each}", lambda *_: None)
    monkeypatch.setenv("COLUMNS", "200")
    async with serving(tmp_path, sim=sim, clock=sim.clock) as served:
        monkeypatch.setattr(control_client, "find_socket", lambda config: served.path if config is None else config)
        yield served


def names(node: Node) -> set[str]:
    """Return the names of the images on the node."""
    return {name for name in (*ALL, NEW) if node.sim.resolve_image(name) is not None}


def words(node: Node, *more: str) -> tuple[str, ...]:
    return ("gc", "images", *more, "--config", str(node.config))


async def test_dry_run_lists_the_removals_and_the_kept_images_of_the_selection(
    node: Node, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = await say(capsys, *words(node, *SELECTION, "--dry-run"))
    assert (code, names(node)) == (0, ALL), err
    assert "Removes 1 of 5 images" in out
    kept = {line.split()[2]: line.split()[-1] for line in out.splitlines() if line.startswith("keep")}
    assert kept == {USED: "in-use-by-container", YOUNG: "too-young"}
    assert "2 not-in-plan" in out
    code, out, _ = await say(capsys, *words(node, *SELECTION, "--dry-run", "-o", "json"))
    (plan,) = json.loads(out)["plans"]
    assert {each["name"] for each in plan["decisions"] if each["reason"]["code"] == "not-in-plan"} == {OLD[0], OLD[2]}


@pytest.mark.parametrize("form", ["table", "json"])
async def test_yes_removes_only_unused_selected_images_above_the_high_threshold(
    node: Node, form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = await say(capsys, *words(node, *SELECTION, "--yes", "-o", form))
    assert (code, names(node)) == (0, ALL - {OLD[1]}), err
    if form == "json":
        assert [each["name"] for each in json.loads(out)["results"]] == [OLD[1]]
    else:
        assert "in-use-by-container" in out
        assert "too-young" in out


@pytest.mark.parametrize("answer", [True, False])
async def test_selected_images_are_removed_only_after_confirmation(
    node: Node, answer: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    node.sim.fill_to(50)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("nodeagent.cli.gc.confirm", lambda question: answer and question.startswith("Remove 1 image ("))
    code, _, err = await say(capsys, *words(node, *SELECTION))
    assert (code, names(node)) == (0, ALL - {OLD[1]} if answer else ALL), err


async def test_image_pulled_during_the_confirmation_is_kept(
    node: Node, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def confirm(_: str) -> bool:
        node.sim.add_image(NEW, layers=[Layer("new", 1 << 20)], age_s=86_400)
        return True

    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("nodeagent.cli.gc.confirm", confirm)
    code, _, err = await say(capsys, *words(node, "--only", "*/old:*"))
    assert (code, names(node)) == (0, {USED, YOUNG, NEW}), err


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("registry.example/old:v9", "no image on this node matches registry.example/old:v9; nothing was removed"),
        ("registry.example/other*", "no image on this node matches"),
        ("", "the name of an image is empty; nothing was removed"),
        ("x" * 5000, "--only: at most 4096 characters"),
    ],
    ids=["name", "wildcard", "empty", "long"],
)
async def test_pattern_without_a_match_is_a_usage_error_and_removes_nothing(
    node: Node, pattern: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for selection in (("--only", "*", "--only", pattern), ("--only", pattern)):
        for mode in ("--dry-run", "--yes"):
            code, out, err = await say(capsys, *words(node, *selection, mode))
            assert (code, out, message in err) == (2, "", True), err
            assert names(node) == ALL


@pytest.mark.usefixtures("node")
async def test_daemon_without_the_field_refuses_a_preview(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    older = [(each.name, each.type, each.default) for each in msgspec.structs.fields(api.PlanRequest)]
    known = [each for each in older if each[0] != "only"]
    monkeypatch.setitem(api.REQUESTS, "Plan", msgspec.defstruct("Plan", known, forbid_unknown_fields=True))
    code, _, err = await say(capsys, "gc", "images", "--only", OLD[0], "--dry-run")
    assert (code, "unknown field `only`" in err) == (2, True), err


async def test_member_may_preview_a_selection_but_not_remove_it(
    node: Node, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    become_member(node, monkeypatch)
    code, out, err = await say(capsys, "gc", "images", "--only", OLD[0], "--dry-run")
    assert (code, "Removes 1 of 5 images" in out) == (0, True), err
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("nodeagent.cli.gc.confirm", lambda _: True)
    for given in ((), ("--yes",)):
        code, _, err = await say(capsys, "gc", "images", "--only", OLD[0], *given)
        assert (code, "requires root" in err, names(node)) == (2, True, ALL), err


@pytest.mark.parametrize("form", ["table", "json"])
@pytest.mark.parametrize(
    ("named", "code", "removed", "kept"),
    [
        ((OLD[1],), 0, {OLD[1]}, {}),
        ((OLD[1], OLD[2]), 0, {OLD[1], OLD[2]}, {}),
        ((OLD[1], USED), 3, {OLD[1]}, {USED: "in use by 1 container"}),
        ((USED, YOUNG), 1, set(), {USED: "in use by 1 container", YOUNG: "less than the minimum age"}),
    ],
    ids=["one", "two", "one-of-two", "none"],
)
async def test_rmi_removes_unused_images_and_states_the_reason_of_each_kept_one(
    node: Node,
    capsys: pytest.CaptureFixture[str],
    *,
    named: tuple[str, ...],
    code: int,
    removed: set[str],
    kept: dict[str, str],
    form: str,
) -> None:
    node.sim.fill_to(50)
    given = ("rmi", *named, "--config", str(node.config), "-o", form)
    for mode, left in (("--dry-run", ALL), ("--yes", ALL - removed)):
        ended, _, err = await say(capsys, *given, mode)
        assert (ended, names(node)) == (code, left), err
        refused = {line.split()[1]: line for line in err.splitlines() if " is kept: " in line}
        assert refused.keys() == kept.keys()
        assert all(words in refused[name] for name, words in kept.items()), err


async def test_rmi_that_the_user_declines_removes_nothing_and_fails(
    node: Node, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("nodeagent.cli.gc.confirm", lambda _: False)
    code, _, err = await say(capsys, "rmi", OLD[1], "--config", str(node.config))
    assert (code, "nothing was removed" in err, names(node)) == (1, True, ALL)


async def test_rmi_with_a_configured_dry_run_removes_nothing_and_fails(
    node: Node, capsys: pytest.CaptureFixture[str]
) -> None:
    node.config.write_text(f"dry_run = true\n{node.config.read_text()}")
    code, _, err = await say(capsys, "rmi", OLD[1], "--yes", "--config", str(node.config))
    assert (code, "dry_run = true" in err, names(node)) == (1, True, ALL), err
    code, _, err = await say(capsys, "rmi", OLD[1], "--yes", "--no-dry-run", "--config", str(node.config))
    assert (code, names(node)) == (0, ALL - {OLD[1]}), err


async def test_rmi_of_a_protected_image_keeps_it(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    node.config.write_text(f'{node.config.read_text()}\n[protect]\nimages = ["{OLD[1]}"]\n')
    code, _, err = await say(capsys, "rmi", OLD[1], "--yes", "--config", str(node.config))
    assert (code, f"{OLD[1]} is kept: protected" in err, names(node)) == (1, True, ALL), err


async def test_rmi_by_one_of_two_names_states_the_other_name(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    both = ("registry.example/both:a", "registry.example/both:b")
    node.sim.add_image(*both, layers=[Layer("both", 1 << 20)], age_s=86_400)
    for mode in ("--dry-run", "--yes"):
        code, out, err = await say(capsys, "rmi", both[1], mode, "--config", str(node.config))
        assert (code, node.sim.resolve_image(both[0]) is None) == (0, mode == "--yes"), err
        assert f"{both[0]} is removed with its other names: {both[1]}\n" in out


async def test_rmi_finds_short_names_and_beginnings_of_ids(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    config = ("--yes", "--config", str(node.config))
    hub = "docker.io/library/tool:latest"
    node.sim.add_image(hub, layers=[Layer(hub, 1 << 20)], age_s=86_400)
    assert (await say(capsys, "rmi", "tool", *config))[0] == 0
    assert node.sim.resolve_image(hub) is None
    image = node.sim.resolve_image(OLD[0])
    assert image is not None
    assert (await say(capsys, "rmi", image.removeprefix("sha256:")[:12], *config))[0] == 0
    assert names(node) == ALL - {OLD[0]}


async def test_removed_image_is_explained_by_its_history_with_local_times(
    node: Node, capsys: pytest.CaptureFixture[str]
) -> None:
    node.config.write_text(f'{node.config.read_text()}\n[image_gc]\nundo_window = "1h"\n')
    assert (await say(capsys, "rmi", OLD[1], "--yes", "--config", str(node.config)))[0] == 0
    code, out, err = await say(capsys, "explain", "old:v1", "--config", str(node.config))
    assert code == 0, err
    first, second = out.splitlines()
    assert first == "old:v1: no longer on this node; in the history:"
    assert re.search(r"; undo possible until \d{4}-\d\d-\d\d \d\d:\d\d:\d\d [A-Z]+$", second), second


async def test_unknown_name_with_the_end_of_a_known_one_is_an_error_with_the_known_one(
    node: Node, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = await say(capsys, "rmi", "old:v1", "--yes", "--config", str(node.config))
    assert (code, out, names(node)) == (2, "", ALL)
    assert f"no image on this node matches old:v1; nothing was removed; did you mean {OLD[1]}?" in err


async def test_minimum_gain_does_not_keep_selected_images(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    node.config.write_text(f'{node.config.read_text()}\n[image_gc]\nminimum_gain = "1Gi"\n')
    code, _, err = await say(capsys, "rmi", OLD[1], "--yes", "--config", str(node.config))
    assert (code, names(node)) == (0, ALL - {OLD[1]}), err


async def test_rmi_has_no_option_that_weakens_a_keep_rule(capsys: pytest.CaptureFixture[str]) -> None:
    for option in ("--force", "-f", "--minimum-age=0s", "--high=1"):
        code, _, err = await say(capsys, "rmi", OLD[1], option, "--yes")
        assert (code, "No such option" in err) == (2, True), err


@pytest.mark.parametrize("dry_run", [True, False])
async def test_text_on_the_undo_window_names_a_pass_that_frees_the_space(
    node: Node, dry_run: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    node.config.write_text(
        f'dry_run = {str(dry_run).lower()}\n{node.config.read_text()}\n[image_gc]\nundo_window = "1h"\n'
    )
    given = ("--no-dry-run",) if dry_run else ()
    code, out, err = await say(capsys, "rmi", OLD[1], "--yes", *given, "--config", str(node.config))
    assert code == 0, err
    first, second = (line for line in out.splitlines() if line.startswith("Undo until ") or "after that frees" in line)
    assert re.fullmatch(r"Undo until .*: nodeagent gc undo \S+", first)
    assert second.startswith("The first pass without dry_run after that frees ") is dry_run, out
    assert max(map(len, (first, second))) < 120
    assert f"nodeagent gc images --yes{' --no-dry-run' if dry_run else ''}\n" in out
