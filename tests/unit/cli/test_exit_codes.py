"""Exit codes of a pass and of its dry run: run by a command, by the daemon, or from a saved plan."""

from __future__ import annotations

import itertools
import json
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from nodeagent.cli import control_client
from nodeagent.cli.du import byte_rows
from nodeagent.cli.exit_codes import ExitCode, guarded, pass_exit_code
from nodeagent.daemon.supervisor import supervise
from nodeagent.errors import (
    PassBusyError,
    RuntimeRequestError,
    RuntimeTimeoutError,
    RuntimeUnavailableError,
    UsageError,
)
from nodeagent.gc.executor import Outcome, PassEnd
from nodeagent.gc.plan.breakdown import Breakdown, Member, Share, UsageCategory
from nodeagent.model.runtime import ContainerState, FsObservation
from nodeagent.record import replace
from nodeagent.settings.loading import checked
from nodeagent.settings.settings import Origin
from tests.sim.content import Layer
from tests.sim.disk import GIB
from tests.sim.filesystem import SimFilesystem
from tests.support.manual_clock import MIDNIGHT
from tests.unit.control_node import IMAGE, MEMBER, Node, say, serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

MIB = 1 << 20


@pytest.mark.parametrize(
    ("end", "outcomes", "code"),
    [
        (PassEnd.COMPLETE, [], 0),
        (PassEnd.NOTHING_TO_DO, [], 0),
        (PassEnd.COMPLETE, [Outcome.DONE, Outcome.CHANGED], 0),
        (PassEnd.COMPLETE, [Outcome.DONE, Outcome.FAILED], 3),
        (PassEnd.COMPLETE, [Outcome.FAILED], 1),
        (PassEnd.SHORTFALL, [], 3),
        (PassEnd.SHORTFALL, [Outcome.FAILED], 1),
        (PassEnd.CANCELLED, [Outcome.DONE], 3),
        (PassEnd.REFUSED, [], 1),
        (PassEnd.RUNTIME_LOST, [Outcome.DONE], 4),
    ],
)
def test_exit_code_follows_from_end_and_outcomes(end: PassEnd, outcomes: list[Outcome], code: int) -> None:
    assert pass_exit_code(end, outcomes) is ExitCode(code)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RuntimeUnavailableError("no socket"), 4),
        (RuntimeTimeoutError("Version", "", "DEADLINE_EXCEEDED", "no answer"), 4),
        (PassBusyError("another pass"), 5),
        (RuntimeRequestError("Version", "", "INTERNAL", "broken"), 1),
    ],
)
def test_error_has_its_exit_code(error: Exception, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught, guarded():
        raise error
    assert (caught.value.code, capsys.readouterr().err) == (code, f"nodeagent: {error}\n")


@pytest.fixture
def _in_berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as variables:
        variables.setenv("TZ", "Europe/Berlin")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("_in_berlin")
def test_times_in_an_error_are_local(capsys: pytest.CaptureFixture[str]) -> None:
    for error in (UsageError("expired at 2026-03-01T12:00:00.000Z"), PassBusyError("until 2026-03-01T12:00:00Z")):
        with pytest.raises(SystemExit), guarded():
            raise error
    expected = "nodeagent: expired at 2026-03-01 13:00:00 CET\nnodeagent: until 2026-03-01 13:00:00 CET\n"
    assert capsys.readouterr().err == expected


@pytest.mark.usefixtures("_in_berlin")
def test_expiry_of_a_lease_in_du_is_local() -> None:
    lease = Member("pull-1", GIB, detail="until 2026-03-01T12:00:00.000Z")
    filesystem = FsObservation("/", 1, 2 * GIB, GIB, 0, 0, MIDNIGHT)
    shares = (Share(UsageCategory.LEASED, GIB, members=(lease,)),)
    rows = byte_rows(Breakdown(filesystem, shares, exact=True))
    assert [each.name for each in rows if each.is_item] == ["pull-1 (until 2026-03-01 13:00:00 CET)"]


@dataclass(frozen=True)
class Case:
    """Images of a node with a 40 GiB filesystem, and the expected result of an image GC pass."""

    used_percent: int
    unused_mib: tuple[int, ...]
    code: int
    removes: int
    end: str
    protect: bool = False


CASES = {
    "below the high threshold": Case(70, (2048, 2048), 0, 0, "nothing-to-do"),
    "target reachable": Case(90, (2048, 2048, 2048), 0, 2, "complete"),
    "target reachable exactly": Case(90, (4096,), 0, 1, "complete"),
    "target reachable in part": Case(90, (1024,), 3, 1, "shortfall"),
    "only images in use": Case(90, (), 3, 0, "shortfall"),
    "only protected images": Case(90, (2048, 2048), 3, 0, "shortfall", protect=True),
}


@pytest.fixture(params=CASES)
async def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


@asynccontextmanager
async def filled(tmp_path: Path, case: Case, head: str = "") -> AsyncIterator[Node]:
    """Serve the node of a case, with one running container and no dead containers; yield the node."""
    protect = 'protect.images = ["*"]\n' if case.protect else ""
    async with serving(tmp_path, head=head + protect) as node:
        for container in list(node.sim.containers.values()):
            node.sim.remove_container(container.id)
        pod = next(iter(node.sim.sandboxes.values()))
        node.sim.add_container(pod, "app", IMAGE, state=ContainerState.RUNNING, age_s=3600)
        for number, size_mib in enumerate(case.unused_mib):
            layers = [Layer(f"own-{number}", size_mib * MIB)]
            node.sim.add_image(f"registry.example/old:v{number}", layers=layers, age_s=90 * 86_400)
        node.sim.capacity_bytes = 40 * GIB
        node.sim.fill_to(case.used_percent)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("nodeagent.gc.agent_parts.read_filesystem", SimFilesystem(node.sim).read_filesystem)
            patch.setattr(control_client, "find_socket", lambda config: node.path if config is None else config)
            for each in ("add_signal_handler", "remove_signal_handler"):  # signal handlers require the main thread
                patch.setattr(f"asyncio.SelectorEventLoop.{each}", lambda *_: None)
            patch.setenv("COLUMNS", "200")
            yield node


@pytest.fixture
async def node(tmp_path: Path, case: Case) -> AsyncIterator[Node]:
    async with filled(tmp_path, case) as node:
        yield node


def route_options(route: str, node: Node) -> tuple[str, ...]:
    return ("--config", str(node.config)) if route == "directly" else ()


def become_member(node: Node, patch: pytest.MonkeyPatch) -> None:
    """Run all commands as an unprivileged member of the control group with write access."""
    node.peer[0] = MEMBER
    patch.setattr("os.geteuid", lambda: 4711)
    settings = node.context.settings
    node.context.settings = replace(settings, control=replace(settings.control, group_may_act=True))


ROUTES = ("directly", "as a member")


@pytest.fixture(params=ROUTES)
async def route(request: pytest.FixtureRequest, node: Node, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "as a member":
        become_member(node, monkeypatch)
    return str(request.param)


def read(form: str, text: str) -> Any:
    return json.loads(text) if form == "json" else yaml.safe_load(text)


@pytest.mark.parametrize(
    "scope_and_form", list(itertools.product(("images", "all"), ("table", "json", "yaml"))), ids="-".join
)
async def test_dry_run_exits_with_the_code_of_its_run(
    node: Node, case: Case, route: str, scope_and_form: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    scope, form = scope_and_form
    words = ("gc", scope, "--output", form, *route_options(route, node))
    before = dict(node.sim.images)
    dry, shown, _ = await say(capsys, *words, "--dry-run")
    assert node.sim.images == before
    run, out, err = await say(capsys, *words, "--yes")
    assert (dry, run) == (case.code, case.code), err
    assert len(before) - len(node.sim.images) == case.removes
    if form == "table":
        assert ("CATEGORY" in out) == (case.code == 3), "the usage breakdown is printed only for a shortfall"
        return
    assert read(form, shown)["schema"] == "nodeagent/preview/v1"
    report = read(form, out)
    assert report["end"] == case.end
    assert ("breakdown" in report) == (case.code == 3)


@pytest.mark.parametrize("form", ["table", "json"])
async def test_container_gc_exits_with_0_regardless_of_imagefs_usage(
    node: Node, route: str, form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pod = next(iter(node.sim.sandboxes.values()))
    node.sim.add_container(pod, "app", IMAGE, state=ContainerState.EXITED, age_s=3600)
    words = ("gc", "containers", "--output", form, *route_options(route, node))
    assert (await say(capsys, *words, "--dry-run"))[0] == 0
    assert len(node.sim.containers) == 2
    assert (await say(capsys, *words, "--yes"))[0] == 0
    assert len(node.sim.containers) == 1


async def test_pass_with_a_shortfall_is_in_the_history(
    node: Node, case: Case, route: str, capsys: pytest.CaptureFixture[str]
) -> None:
    await say(capsys, "gc", "images", "--dry-run", *route_options(route, node))
    history = ("history", "--output", "json", *route_options(route, node))
    assert json.loads((await say(capsys, *history))[1])["passes"] == []
    await say(capsys, "gc", "images", "--yes", *route_options(route, node))
    passes = json.loads((await say(capsys, *history))[1])["passes"]
    if case.end == "nothing-to-do":
        assert passes == []
        return
    assert [(each["end"], len(each["actions"])) for each in passes] == [(case.end, case.removes)]
    assert ("above the low threshold" in passes[0]["end_detail"]) == (case.code == 3)


async def test_pass_without_removals_needs_no_confirmation(
    node: Node, case: Case, route: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("nodeagent.cli.gc.confirm", lambda text: text.startswith(f"Remove {case.removes} image"))
    code, out, err = await say(capsys, "gc", "images", *route_options(route, node))
    assert (code, "CATEGORY" in out) == (case.code, case.code == 3), err


@pytest.mark.parametrize("route", ROUTES)
async def test_configured_dry_run_exits_with_the_predicted_code(
    tmp_path: Path, case: Case, route: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with filled(tmp_path, case, "dry_run = true\n") as node:
        if route == "as a member":
            become_member(node, monkeypatch)
        before = dict(node.sim.images)
        code, _, err = await say(capsys, "gc", "images", "--yes", *route_options(route, node))
    assert (code, node.sim.images) == (case.code, before), err


@pytest.mark.parametrize("dry_run", [True, False], ids=["dry", "real"])
async def test_one_pass_of_the_daemon_exits_with_the_same_code_as_its_dry_run(
    node: Node, case: Case, dry_run: bool
) -> None:
    settings = checked(Origin(node.config, (), dry_run))
    end = await supervise(settings, node.context.logger, once=True)
    assert pass_exit_code(end) == case.code
    assert sum(each["planned"] for each in node.logged("pass_finished")) == case.removes


async def test_dry_run_of_a_saved_plan_exits_with_the_code_of_applying_it(
    node: Node, case: Case, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved, config = str(tmp_path / "plan.json"), ("--config", str(node.config))
    assert (await say(capsys, "plan", "--scope", "images", "--out", saved, *config))[0] == 0
    before = dict(node.sim.images)
    dry = (await say(capsys, "apply", saved, "--dry-run", *config))[0]
    assert node.sim.images == before
    code, _, err = await say(capsys, "apply", saved, "--yes", *config)
    assert (dry, code) == (case.code, case.code), err
    assert len(before) - len(node.sim.images) == case.removes
