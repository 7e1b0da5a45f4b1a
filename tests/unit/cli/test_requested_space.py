"""``nodeagent gc --free`` and ``--to``, ``--no-dry-run``, and the interruption of a removal, on a simulated node."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import pytest

from nodeagent.api.client import ControlClient
from nodeagent.cli import control_client
from nodeagent.gc.plan.policy import SpaceGoal
from nodeagent.model.runtime import ContainerState, FsObservation
from nodeagent.record import replace
from tests.sim.content import Layer
from tests.sim.filesystem import SimFilesystem
from tests.sim.node import SimNode
from tests.sim.store import RefusedError
from tests.unit.cli.test_exit_codes import become_member
from tests.unit.control_node import Node, say, serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path

MIB: Final = 1 << 20
USED: Final = "registry.example/used:v1"
IMAGES: Final = tuple(f"registry.example/old:v{number}" for number in range(4))
"""Unused images of 1,000 MiB each, in order of use."""


@asynccontextmanager
async def serve(path: Path, patch: pytest.MonkeyPatch, head: str = "") -> AsyncIterator[Node]:
    """Serve a node with a filesystem of 10,000 MiB, half of it used: four unused images and a dead container."""
    sim = SimNode(root_path=str(path), capacity_bytes=10_000 * MIB)
    sim.add_image(USED, layers=[Layer(USED, MIB)], age_s=86_400)
    sim.add_container(sim.add_pod("web"), "app", USED, age_s=3600)
    for number, name in enumerate(IMAGES):
        sim.add_image(name, layers=[Layer(name, 1000 * MIB, compressed_bytes=1)], age_s=86_400 * (10 - number))
    sim.fill_to(50)
    async with serving(path, sim=sim, clock=sim.clock, head=head) as node:
        patch.setattr("nodeagent.gc.agent.SystemClock", lambda: sim.clock)
        patch.setattr("nodeagent.gc.agent_parts.SystemClock", lambda: sim.clock)
        patch.setattr("nodeagent.gc.agent_parts.read_filesystem", SimFilesystem(sim).read_filesystem)
        patch.setattr("nodeagent.gc.pass_state.SETTLE_WITHIN_S", 0.0)
        patch.setattr(control_client, "find_socket", lambda config: node.path if config is None else config)
        for each in ("add_signal_handler", "remove_signal_handler"):  # signal handlers require the main thread
            patch.setattr(f"asyncio.SelectorEventLoop.{each}", lambda *_: None)
        patch.setenv("COLUMNS", "200")
        yield node


@pytest.fixture
async def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Node]:
    async with serve(tmp_path, monkeypatch) as served:
        yield served


def left(node: Node) -> list[str]:
    """Return the unused images that are still on the node."""
    return [name for name in IMAGES if node.sim.resolve_image(name) is not None]


def words(node: Node, *more: str) -> tuple[str, ...]:
    return ("gc", *more, "--config", str(node.config))


@pytest.mark.parametrize(
    ("goal", "removed", "code"),
    [
        (("--free", "1k"), 1, 0),
        (("--free", "1000Mi"), 1, 0),
        (("--free", "1000.5Mi"), 2, 0),
        (("--free", "4000Mi"), 4, 0),
        (("--free", "4001Mi"), 4, 3),
        (("--free", "9Ei"), 4, 3),
        (("--to", "50%"), 0, 0),
        (("--to", "99"), 0, 0),
        (("--to", "49%"), 1, 0),
        (("--to", "40 %"), 1, 0),
        (("--to", "39"), 2, 0),
        (("--to", "0%"), 4, 3),
    ],
)
async def test_least_recently_used_images_are_removed_until_the_requested_space_is_free_and_no_image_more(
    node: Node, goal: tuple[str, str], removed: int, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    for mode in ("--dry-run", "--yes"):
        ended, out, err = await say(capsys, *words(node, *goal, mode))
        assert ended == code, (out, err)
    assert left(node) == list(IMAGES[removed:])


async def test_dead_containers_are_removed_for_a_request_only_until_it_is_met(
    node: Node, capsys: pytest.CaptureFixture[str]
) -> None:
    pod = next(iter(node.sim.sandboxes.values()))
    for number in range(4):
        node.sim.add_container(
            pod, "old", USED, state=ContainerState.EXITED, attempt=number, age_s=9000 - number, writable_bytes=MIB
        )
    before = set(node.sim.containers)
    await say(capsys, *words(node, "--to", "60%", "--yes"))
    assert set(node.sim.containers) == before
    code, out, err = await say(capsys, *words(node, "--free", "2Mi", "--dry-run", "-o", "json"))
    assert code == 0, err
    decisions = [each for plan in json.loads(out)["plans"] for each in plan["decisions"]]
    removed = [each for each in decisions if each["verdict"] == "remove"]
    assert [each["kind"] for each in removed] == ["container", "container"]
    assert [each["reason"]["code"] for each in decisions if each["kind"] == "image"].count("enough-freed") == 4


@pytest.mark.parametrize("capacity_bytes", [100, 101, 10_000 * MIB, 10_737_418_243])
def test_requested_usage_is_the_displayed_usage_once_it_is_reached(capacity_bytes: int) -> None:
    for percent in range(100):
        observed = FsObservation("/", 1, capacity_bytes, 0, 0, 0, datetime(2026, 1, 1, tzinfo=UTC))
        wanted = SpaceGoal(used_percent=percent).available_bytes(observed)
        used = [replace(observed, available_bytes=each).used_percent for each in (wanted, wanted - 1)]
        assert used == [percent, percent + 1]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("--free", ""), "--free: '' is not a size"),
        (("--to", ""), "--to: '' is not a usage"),
        (("--free", "", "--to", "40%"), "--free, --to: give one of them"),
        (("--free", "0"), "--free: must be more than 0 bytes"),
        (("--free", "100"), "--free: 100 has no unit: write 100Mi or 100Gi"),
        (("--free", " +1.5 "), "--free: 1.5 has no unit: write 1.5Mi or 1.5Gi"),
        (("--free", "10 potatoes"), "--free: '10 potatoes' is not a size"),
        (("--to", "100%"), "--to: '100%' is not a usage"),
        (("--to", "-1"), "--to: '-1' is not a usage"),
        (("--to", "70.5"), "--to: '70.5' is not a usage"),
        (("--to", "9" * 5000), "is not a usage"),
        (("--free", "1Gi", "--to", "70%"), "--free, --to: give one of them"),
    ],
)
async def test_invalid_request_is_a_usage_error_and_removes_nothing(
    node: Node, given: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = await say(capsys, *words(node, *given, "--yes"))
    assert (code, out, message in err, left(node)) == (2, "", True, list(IMAGES)), err


async def test_request_for_space_by_a_member_is_refused_as_it_requires_root(
    node: Node, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    become_member(node, monkeypatch)
    for mode in ("--dry-run", "--yes"):
        code, _, err = await say(capsys, "gc", "--free", "1Mi", mode)
        assert (code, "requires root" in err, left(node)) == (2, True, list(IMAGES)), err


@pytest.mark.parametrize("route", ["directly", "as a member"])
async def test_dry_run_of_the_configuration_is_overridden_for_one_pass_only(
    tmp_path: Path, route: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serve(tmp_path, monkeypatch, "dry_run = true\n") as node:
        node.sim.fill_to(90)
        given: tuple[str, ...] = ("gc", "images")
        if route == "as a member":
            become_member(node, monkeypatch)
        else:
            given += ("--config", str(node.config))
        for _ in range(2):
            code, _, err = await say(capsys, *given, "--yes")
            assert (code, left(node)) == (0, list(IMAGES)), err
        questions: list[str] = []
        monkeypatch.setattr("sys.stdin.isatty", lambda: True)

        def confirm(question: str) -> bool:
            questions.append(question)
            return True

        monkeypatch.setattr("nodeagent.cli.gc.confirm", confirm)
        code, _, err = await say(capsys, *given)
        assert (questions, "--no-dry-run removes once" in err) == ([], True)
        code, _, err = await say(capsys, *given, "--no-dry-run")
        assert (code, left(node), len(questions)) == (0, list(IMAGES[1:]), 1), err
        node.sim.fill_to(95)
        await say(capsys, *given, "--yes")
        assert left(node) == list(IMAGES[1:])


async def test_data_written_during_a_requested_pass_costs_no_further_image(
    node: Node, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    remove = type(node.sim).remove_image

    def with_growth(sim: Any, reference: str) -> None:
        remove(sim, reference)
        sim.fill_to(50)

    monkeypatch.setattr(type(node.sim), "remove_image", with_growth)
    monkeypatch.setenv("NODEAGENT_IMAGE_GC__REMOVAL", "cri")
    code, out, err = await say(capsys, *words(node, "--free", "500Mi", "--yes"))
    assert (code, left(node)) == (3, list(IMAGES[1:])), err
    assert "500 MiB short of" in out


async def test_image_that_cannot_be_removed_is_replaced_by_the_next_one(
    node: Node, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    remove = type(node.sim).remove_image

    def failing(sim: Any, reference: str) -> None:
        if sim.resolve_image(reference) is not None and sim.resolve_image(reference) == sim.resolve_image(IMAGES[0]):
            raise RefusedError("INTERNAL", "busy")
        remove(sim, reference)

    monkeypatch.setattr(type(node.sim), "remove_image", failing)
    monkeypatch.setenv("NODEAGENT_IMAGE_GC__REMOVAL", "cri")
    code, _, err = await say(capsys, *words(node, "--free", "500Mi", "--yes"))
    assert (code, left(node)) == (3, [IMAGES[0], *IMAGES[2:]]), err


async def test_interrupted_removal_reports_the_items_that_were_not_attempted_and_exits_with_130(
    node: Node, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    handlers: list[Callable[[], Any]] = []
    monkeypatch.setattr("asyncio.SelectorEventLoop.add_signal_handler", lambda *given: handlers.append(given[2]))
    remove = type(node.sim).remove_image

    def interrupted(sim: Any, reference: str) -> None:
        remove(sim, reference)
        asyncio.get_running_loop()
        for handler in handlers:
            handler()

    monkeypatch.setattr(type(node.sim), "remove_image", interrupted)
    monkeypatch.setenv("NODEAGENT_IMAGE_GC__REMOVAL", "cri")
    code, out, err = await say(capsys, *words(node, "--free", "4000Mi", "--yes"))
    assert (code, left(node)) == (130, list(IMAGES[1:])), err
    assert out.count("not-attempted") >= len(IMAGES) - 1
    assert "cancelled: stopped between two items" in out


async def test_interrupted_command_of_a_member_states_what_was_removed_and_exits_with_130(
    node: Node, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    become_member(node, monkeypatch)
    node.sim.fill_to(99)
    stream = ControlClient.stream

    def interrupted(*given: Any) -> Iterator[str]:
        yield next(iter(stream(*given)))
        raise KeyboardInterrupt

    monkeypatch.setattr(ControlClient, "stream", interrupted)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("nodeagent.cli.gc.confirm", lambda _: True)
    code, _, err = await say(capsys, "gc", "images")
    assert (code, "interrupted: removed 1 of " in err) == (130, True), err
    async with node.context.pass_lock.take():  # the daemon ends the pass before its next item
        assert left(node)
