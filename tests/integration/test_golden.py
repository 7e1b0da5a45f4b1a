"""Tests of the output of every command on a real containerd against stored outputs, by role and terminal width.

Outputs to a pipe are also compared. ``NODEAGENT_TEST_UPDATE_GOLDEN=1`` replaces the stored outputs in
``tests/data/golden/node``; review the difference before the commit. Equal outputs are stored once. Times, ids, paths
and readings of the machine are replaced by placeholders.
"""

from __future__ import annotations

import grp
import json
import os
import shutil
import tempfile
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
import typer

from nodeagent.api.common import Document, decode, encode, encode_line
from nodeagent.cli.main import app
from nodeagent.text import display_width, escape
from nodeagent.units import SystemClock
from tests.support import reclaim
from tests.support.command_worker import CommandWorker, Role, has_detected, is_idle, is_measured, running_daemon
from tests.support.golden import joined, normalised, stored_form
from tests.support.modules import import_all
from tests.support.node_reports import fleet
from tests.support.production_node import IMAGEFS, REPORTS, TAGS, ProductionNode, fill, write_config

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.integration.conftest import ContainerdFactory
    from tests.support.terminal import Shown

pytestmark = [pytest.mark.real, pytest.mark.containerd("host")]

GOLDEN: Final = Path(__file__).parents[1] / "data" / "golden" / "node"
WIDTHS: Final = (80, 120, 200, None)
AHEAD_S: Final = 50.5 * 3600
"""Seconds by which the commands' clock is ahead, so that all ages are in the middle of an hour."""
POD: Final = "payments-production/payments-api-7d9f8b6c5d-x2x9z"
LISTS: Final = ("images", "containers", "pods", "history", "hold list")
COMMANDS: Final[dict[str, tuple[str, ...]]] = {
    "status": (),
    "hold add": (REPORTS[0], "--for", "3d30m", "--why", "rollback of the settlement migration"),
    **{f"{name}{form and f' {form}'}": ("-o", form) if form else () for name in LISTS for form in ("", "wide")},
    "images tree": ("--tree",),
    "images name": ("-o", "name"),
    "images filter": ("--filter", "name=*payments*", "--sort-by", "-size", "--no-headers"),
    "history details": ("--details", "--limit", "2"),
    "history pass": ("{pass}",),
    "hold remove": ("{hold}",),
    "explain image": (REPORTS[-1],),
    "explain removed image": (REPORTS[1],),
    "explain sandbox image": ("registry.test/pause:3.9",),
    "explain container": (f"{POD}/payments-api",),
    "explain pod": ("batch/monthly-report-aggregation-28934400-qw7tz",),
    "explain nothing": ("",),
    "explain unknown": ("nosuch",),
    "du": (),
    "du details": ("--details",),
    "top": ("--once",),
    "events": (),
    "report merge": ("--merge", "{directory}/reports.jsonl"),
    "pressure": (),
    "trend": (),
    "node describe": (),
    "gc images": ("--dry-run",),
    "gc images kept": ("--dry-run", "--kept"),
    "gc images wide": ("--dry-run", "-o", "wide"),
    "gc images high": ("--dry-run", "--high", "70"),
    "gc images unconfirmed": (),
    "rmi": ("registry.test/pause:3.9", "--dry-run"),
    "gc free": ("--free", "20Mi", "--dry-run"),
    "gc to": ("--to", "70%", "--dry-run"),
    "gc containers": ("--dry-run",),
    "gc all": ("--dry-run",),
    "gc all yes": ("--yes",),
    "gc leaks": ("--dry-run", "--kept"),
    "gc undo": (),
    "gc undo list": ("--list",),
    "plan": ("--scope", "all", "--out", "{directory}/plan.json", "--force"),
    "plan of images": ("--scope", "images", "--out", "{directory}/images.json", "--force"),
    "plan of more images": ("--scope", "images", "--low", "70", "--out", "{directory}/more.json", "--force"),
    "plan diff": ("{directory}/images.json", "{directory}/more.json"),
    "apply": ("{directory}/plan.json", "--dry-run"),
    "evict": ("--dry-run",),
    "evict simulated": ("--simulate", "memory.available=1Ki"),
    "shutdown": ("--dry-run",),
    "shutdown without an option": (),
    "shutdown status": (),
    "shutdown at-stop": (),
    "doctor": ("-o", "wide"),
    "pause": ("--for", "59m59s", "--why", "maintenance of the registry"),
    "status paused": (),
    "trigger paused": ("images",),
    "resume": (),
    "resume again": (),
    "trigger": ("images", "--wait"),
    "trigger unknown": ("nosuch",),
    "reload": (),
    "reload preview": ("--dry-run",),
    "version": (),
    "config check": (),
    "config show": (),
    "config show key": ("image_gc.low_threshold_percent",),
    "config show effective": ("--effective",),
    "config import": ("{directory}/kubelet.yaml",),
    "config reference": ("image_gc.settle",),
    "config default": ("--dry-run",),
    "help": ("gc",),
    "run": ("--once",),
    "install": ("--root", "{directory}/root"),
    "uninstall": ("--root", "{directory}/root"),
    "completion": ("bash",),
    "manifest rbac": ("--watch-pods", "--node", "node-1"),
    "manifest daemonset": ("--image", "registry.test/nodeagent:1"),
    "manifest static-pod": ("--image", "registry.test/nodeagent:1"),
}
"""Arguments of each command by the name of its output, which starts with the command; they run in this order."""
DOCUMENTS: Final = (
    *("status", "images", "images tree", "containers", "pods", "explain image", "explain pod", "du", "top", "pressure"),
    *("history", "history details", "rmi", "gc free", "gc images", "gc containers", "gc all", "gc leaks", "evict"),
    *("gc undo list", "shutdown", "shutdown status", "doctor", "reload preview", "version", "config show effective"),
    *("plan diff", "apply", "hold add", "hold list", "report merge", "trend"),
)
"""Commands that are run by root and checked against the schema of their JSON output."""
ONCE: Final = {
    *("events", "node describe", "reload", "run", "install", "uninstall", "completion", "manifest rbac"),
    *("manifest daemonset", "manifest static-pod"),
    *("config reference", "config default", "config import", "help", "hold add", "hold remove"),
}
"""Commands run only on 80 columns and in a pipe: their output does not depend on the width, or they are slow."""
LAST: Final = ("run",)
"""Commands that change their process, and are therefore run last, each in a separate process."""
ABRIDGED: Final = {
    "completion": 8,
    "config default": 12,
    "manifest rbac": 12,
    "manifest daemonset": 12,
    "manifest static-pod": 20,
    "evict simulated": 2,
    "trend": 1,
}
"""Number of stored lines of long generated outputs."""
INTERRUPTED_S: Final = 0.4
ROLES: Final = ("root", "direct", "member", "stranger")
KUBELET_CONFIG: Final = """apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
imageGCHighThresholdPercent: 85
evictionHard: {memory.available: 100Mi}
"""


class Grid:
    """Outputs of all commands, by output name and by role and width."""

    def __init__(self, node: ProductionNode, members: int) -> None:
        """Create the working directories of the roles."""
        self.outputs: dict[str, dict[str, Shown]] = {}
        self._node = node
        clock = SystemClock()
        start = (AHEAD_S, clock.now().replace(microsecond=0).isoformat(), clock.monotonic_s())
        self._roles = {
            "root": Role(0, -1, str(node.config), *start),
            "direct": Role(0, -1, str(node.config), *start),
            "member": Role(54321, members, str(node.config), *start),
            "stranger": Role(54322, -1, str(node.config), *start),
        }
        for name, role in self._roles.items():
            self._directory(name).mkdir()
            (self._directory(name) / "kubelet.yaml").write_text(KUBELET_CONFIG)
            (self._directory(name) / "reports.jsonl").write_text("".join(map(encode_line, fleet(120))))
            os.chown(self._directory(name), role.uid, role.uid)

        self.root = self.worker("root")

    def role(self, name: str) -> Role:
        return self._roles[name]

    def worker(self, name: str) -> CommandWorker:
        return CommandWorker(self._roles[name], self._directory(name))

    def _directory(self, name: str) -> Path:
        return self._node.directory / f"work-{name[0]}"

    def document(self, command: str) -> str:
        """Return the JSON output of a command run by root; empty if the command fails."""
        arguments = [each.format_map(self._values(each, "root", self.root)) for each in COMMANDS[command]]
        return self.root.run(None, *path_of(command), *arguments, "-o", "json").out

    def fill(self, name: str) -> None:
        """Run all commands as a role and store their outputs; a status is that between two runs of a loop."""
        with self.worker(name) as worker:
            for columns in WIDTHS if name == "root" else (80, None):
                for command in COMMANDS:
                    if command not in LAST and (columns in (80, None) or command not in ONCE):
                        if command.startswith("status"):
                            reclaim.poll("no loop runs", lambda: is_idle(self.root), timeout_s=30)
                        self._add(name, command, columns, worker)
        for command in LAST:
            with self.worker(name) as worker:
                self._add(name, command, 80, worker)

    def _add(self, name: str, command: str, columns: int | None, worker: CommandWorker) -> None:
        words = path_of(command)
        if name == "direct" and not has_option(words, "--direct"):
            return
        arguments = [each.format_map(self._values(each, name, worker)) for each in COMMANDS[command]]
        direct = ["--direct"] if name == "direct" else []
        shown = worker.run(
            columns, *words, *arguments, *direct, interrupt_s=INTERRUPTED_S if command == "events" else 0.0
        )
        place = "in a pipe" if columns is None else f"on {columns} columns"
        self.outputs.setdefault(command, {})[f"{name} {place}"] = shown

    def _values(self, argument: str, name: str, worker: CommandWorker) -> dict[str, str]:
        found = {"directory": str(self._directory(name)), "hold": "1", "pass": "20260304T120000Z-0a1b2c"}
        for key, words in (("hold", ("hold", "list", "-q")), ("pass", ("history", "-q"))):
            if f"{{{key}}}" in argument and (listed := worker.run(None, *words).out.split()):
                found[key] = listed[0]
        return found


def path_of(name: str) -> tuple[str, ...]:
    """Return the words of the command at the start of an output's name."""
    words, found = name.split(), tree()
    return next(each for number in range(3, 0, -1) if (each := tuple(words[:number])) in found)


def has_option(words: tuple[str, ...], option: str) -> bool:
    return any(option in each.opts for each in tree()[words].params)


@cache
def tree() -> dict[tuple[str, ...], Any]:
    """Return every command of the command line by its words."""
    return dict(_commands(typer.main.get_command(app), ()))


def _commands(group: Any, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, each in getattr(group, "commands", {}).items():
        if not hasattr(each, "commands") or each.invoke_without_command:
            yield (*words, name), each
        yield from _commands(each, (*words, name))


@pytest.fixture(scope="module")
def grid(module_containerd_factory: ContainerdFactory) -> Iterator[Grid]:
    directory = Path(tempfile.mkdtemp(prefix="golden-", dir="/tmp"))  # the path has the same length in every run
    directory.chmod(0o755)
    group = grp.getgrgid(65534)
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, directory)
        containerd = module_containerd_factory(imagefs=IMAGEFS)
        containerd.base.chmod(0o755)  # otherwise members see its name, which differs between runs
        node = fill(containerd, directory)
        write_config(node, group)
        made = Grid(node, group.gr_gid)
        worker = stack.enter_context(made.root)
        reclaim.poll("writable layers are measured", lambda: is_measured(worker), timeout_s=30, interval_s=0.2)
        log = directory / "log"
        stack.enter_context(running_daemon(made.role("root"), log))
        reclaim.poll(
            "both loops have finished a pass", lambda: log.read_text().count("pass_finished") >= 2, timeout_s=60
        )
        reclaim.poll(
            "the images were detected before a reading", lambda: has_detected(worker, REPORTS[-1]), timeout_s=60
        )
        for name in ROLES:
            made.fill(name)
        yield made


def test_every_command_has_a_stored_output() -> None:
    in_own_process = {("logs",)}  # the process becomes journalctl, with the journal of the machine
    assert {path_of(each) for each in COMMANDS} == tree().keys() - in_own_process


@pytest.mark.parametrize("command", COMMANDS)
def test_output_on_a_real_node_is_the_stored_one(grid: Grid, command: str) -> None:
    texts = {}
    for circumstance, shown in grid.outputs[command].items():
        out = shown.out
        if command in ABRIDGED:
            out = "".join(f"{line}\n" for line in out.splitlines()[: ABRIDGED[command]])
        texts[circumstance] = normalised(joined(out, shown.err, shown.code))
    path = GOLDEN / f"{command.replace(' ', '-')}.txt"
    text = stored_form(texts)
    if os.environ.get("NODEAGENT_TEST_UPDATE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text(), f"{path} differs; NODEAGENT_TEST_UPDATE_GOLDEN=1 replaces it"


def test_stored_outputs_are_those_of_commands() -> None:
    assert {each.stem for each in GOLDEN.iterdir()} == {each.replace(" ", "-") for each in COMMANDS}


@pytest.mark.parametrize("command", COMMANDS)
def test_line_of_an_output_has_no_control_character(grid: Grid, command: str) -> None:
    for shown in grid.outputs[command].values():
        for line in (shown.out + shown.err).splitlines():
            assert escape(line) == line


@pytest.mark.parametrize("command", [each for each in COMMANDS if each.startswith(LISTS)])
def test_lines_of_a_list_fit_the_terminal(grid: Grid, command: str) -> None:
    for circumstance, shown in grid.outputs[command].items():
        if "columns" in circumstance and command != "images name":
            columns = int(circumstance.split()[-2])
            lines = shown.out.splitlines()
            is_stacked = not any(line.startswith(("POD ", "IMAGE ")) for line in lines)
            longest = columns // 2 if is_stacked else columns * 100  # whole names may be wider than the terminal
            fitted = [each for each in lines if max(map(len, each.split()), default=0) <= longest]
            assert max(map(display_width, fitted), default=0) <= columns


def test_every_reference_is_found_in_a_pipe(grid: Grid) -> None:
    lines = grid.outputs["images"]["root in a pipe"].out.splitlines()
    for tag in (*TAGS, *REPORTS):
        assert len([line for line in lines if tag in line]) == 1


@pytest.mark.parametrize("command", DOCUMENTS)
def test_json_has_exactly_the_fields_of_its_published_schema(grid: Grid, command: str) -> None:
    text = grid.document(command)
    (kind,) = [each for each in documents(Document) if each.__struct_config__.tag == json.loads(text)["schema"]]
    assert json.loads(encode(decode(text, kind))) == json.loads(text)


def test_host_files_with_a_configured_path_of_imagefs_have_no_image_data(grid: Grid) -> None:
    (host,) = [each for each in json.loads(grid.document("du"))["shares"] if each["part"] == "host-files"]
    assert 0 < sum(each["bytes"] for each in host["largest"]) <= host["bytes"]


def test_every_command_with_documents_is_checked() -> None:
    documented = {words for words in tree() if has_option(words, "-o")}
    others = {("events",), ("node", "describe")}  # output is a stream, or a Kubernetes object
    assert {path_of(each) for each in DOCUMENTS} == documented - others


def documents(kind: type[Document]) -> Iterator[type[Document]]:
    """Yield every document class of the control API that is derived from ``kind``."""
    import_all()
    for each in kind.__subclasses__():
        yield from (each, *documents(each))
