"""Daily tasks of an operator, one command each, on a real containerd with 60 images and 50 containers.

Every task runs on terminals of several widths, in a pipe, without colours and in several locales. The screens are
checked by rules and compared with ``tests/data/golden/tasks``; ``NODEAGENT_TEST_UPDATE_GOLDEN=1`` replaces them.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import pytest

from nodeagent.text import display_width
from nodeagent.units import SystemClock
from tests.support import images, reclaim
from tests.support.command_worker import CommandWorker, Role, has_detected, is_idle, is_measured, running_daemon
from tests.support.containerd import LoopFs
from tests.support.golden import joined, normalised, stored_form
from tests.support.production_node import measure_often

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tests.integration.conftest import ContainerdFactory
    from tests.support.containerd import Containerd
    from tests.support.pods import Pods
    from tests.support.terminal import Shown

    Screens = dict[str, dict[str, Shown]]

pytestmark = [pytest.mark.real, pytest.mark.containerd("host")]

GOLDEN: Final = Path(__file__).parents[1] / "data" / "golden" / "tasks"
AHEAD_S: Final = 50.5 * 3600
"""Seconds by which the commands' clock is ahead, so that all ages are in the middle of an hour."""
IMAGEFS: Final = LoopFs(256, "ext4", reserved_percent=0)
USED_PERCENT: Final = 91.6
_MIB: Final = 1 << 20
_ECR: Final = "123456789012.dkr.ecr.eu-central-1.amazonaws.com/platform"
REPOSITORIES: Final = (
    *(f"registry.example.com/shop/{name}" for name in ("web", "cart", "checkout", "search", "stock")),
    *(f"{_ECR}/payments/{name}" for name in ("payments-api", "settlement-worker")),
    *("docker.io/library/nginx", "docker.io/library/redis", "quay.io/prometheus/node-exporter"),
    *("registry.k8s.io/kube-proxy", "registry.example.com/batch/monthly-report"),
)
VERSIONS: Final = 5
IMAGES: Final = [f"{name}:v1.{number}" for name in REPOSITORIES for number in range(VERSIONS)]
PODS: Final = 13
JOBS: Final = (10, 11, 12)
ENDED: Final = (1, 2, 4, 7, *JOBS)
"""Numbers of the pods with ended containers."""
REMOVED: Final = f"{REPOSITORIES[0]}:v1.0"
HELD: Final = f"{REPOSITORIES[5]}:v1.1"
CRASHING: Final = "shop/cart-7d9f8b6c5d-x2x91"
STYLE: Final = re.compile(r"\x1b\[[0-9;]*m")
VOLATILE: Final = {
    r"\bin\s+\d+m?s\b": "in 9ms",
    r"\(\d+m?s waiting": "(9ms waiting",
    r"\b\d{8}T\d{6}Z-[0-9a-f]{3}…": "20260304T120000Z-0a1…",
    r"\b\d{4}-\d\d-\d\d(\s+)\d\d:\d\d:\d\d\b": r"2026-03-04\g<1>12:00:00",
}
"""Patterns of wrapped or cut texts that differ between runs, and their replacements."""
NAME_CUT: Final = re.compile(r"^ *(\d+  )?\S*[…~]")


class Environment(NamedTuple):
    """Output of a command: a terminal of a width or, with ``None``, a pipe; and variables of the environment."""

    columns: int | None
    variables: Mapping[str, str]

    @property
    def has_colour(self) -> bool:
        return self.columns is not None and not self.variables.get("NO_COLOR") and self.variables["TERM"] != "dumb"


_USUAL: Final = {"NO_COLOR": "", "TERM": "xterm-256color", "LC_ALL": "", "LANG": "C.UTF-8"}
ENVIRONMENTS: Final = {
    **{f"on {columns} columns": Environment(columns, _USUAL) for columns in (60, 80, 120, 200)},
    "in a pipe": Environment(None, _USUAL),
    "NO_COLOR on 80 columns": Environment(80, {**_USUAL, "NO_COLOR": "1"}),
    "TERM=dumb on 80 columns": Environment(80, {**_USUAL, "TERM": "dumb"}),
    "LANG=C on 80 columns": Environment(80, {**_USUAL, "LANG": "C"}),
    "LANG=de_DE on 80 columns": Environment(80, {**_USUAL, "LANG": "de_DE.UTF-8"}),
}


class Task(NamedTuple):
    """One command for a task, and a text in its output with spaces in place of line breaks."""

    command: str
    shows: str


CHANGES: Final = {
    "protect an image for a week": Task(f"hold add {HELD} --for 7d --why rollback", "until 20"),
    "list what is protected": Task("hold list", "rollback"),
    "end the protection": Task("hold remove {hold}", "removed hold"),
    "remove one image": Task(f"gc images --only {REMOVED} --yes", "Removed 1 image in"),
    "undo": Task("undo", "Restored 1 of 1 images"),
}
"""Tasks that change the node, in this order; the last ones restore the state."""
QUESTIONS: Final = {
    "state of the node": Task("status", "running (pid"),
    "where the space went": Task("df", "unused images"),
    "free space": Task("gc --free 20Mi --dry-run", "Total: imagefs 92% -> 8"),
    "free space to a percentage": Task("gc --to 80% --dry-run", "Total: imagefs 92% -> 80%"),
    "what happened last night": Task("history --since yesterday", "restored"),
    "why an image": Task(f"explain {HELD}", "verdict"),
    "why a removed image": Task(f"explain {REMOVED}", "undo possible until"),
    "why a pod": Task(f"explain {CRASHING}", "keeping 1 per container"),
    "containers": Task("ps -A", "over-per-co"),
    "removable images by size": Task("images --filter verdict=remove --sort-by -size", "least-recently-used"),
    "images of a team": Task("images --filter name=*payments*", "payments-api:v1.4"),
    "chosen columns": Task("images -o custom-columns=NAME:.repo_tags[0],SIZE:.size_bytes", f"{REMOVED} "),
    "check of the node": Task("doctor", "checks:"),
}
LAST: Final = {"free space now": Task("gc --to 80% --yes", "imagefs 92% -> 80%")}
"""Task that changes the node for good; run on 80 columns only."""
TASKS: Final = {**CHANGES, **QUESTIONS, **LAST}
NOT_STORED: Final = ("state of the node", "check of the node", "why a removed image", *LAST)
"""Tasks whose screens depend on readings of the machine, measured bytes or the time between passes."""
UNCUT: Final = ("chosen columns",)
"""Tasks with whole values on every terminal, as of kubectl."""


@pytest.fixture(scope="module")
def screens(module_containerd_factory: ContainerdFactory) -> Iterator[Screens]:
    """Return the screens by task and environment."""
    directory = Path(tempfile.mkdtemp(prefix="golden-", dir="/tmp"))  # the path has the same length in every run
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, directory)
        containerd = module_containerd_factory(imagefs=IMAGEFS)
        config = fill(containerd, directory)
        clock = SystemClock()
        role = Role(0, -1, str(config), AHEAD_S, clock.now().replace(microsecond=0).isoformat(), clock.monotonic_s())
        log = directory / "log"
        stack.enter_context(running_daemon(role, log))
        worker = stack.enter_context(CommandWorker(role, directory))
        reclaim.poll("the first pass has finished", lambda: "pass_finished" in log.read_text(), timeout_s=60)
        usage = os.statvfs(containerd.root)  # filled after the only pass of the daemon, which removes nothing
        containerd.fill(int(usage.f_blocks * usage.f_frsize * (100 - USED_PERCENT) / 100))
        reclaim.poll("the images were detected", lambda: has_detected(worker, HELD), timeout_s=60)
        reclaim.poll("writable layers are measured", lambda: is_measured(worker), timeout_s=30, interval_s=0.2)
        yield run_tasks(worker, containerd)


def run_tasks(worker: CommandWorker, containerd: Containerd) -> Screens:
    """Return the screens of all tasks in all environments."""
    found: Screens = {name: {} for name in TASKS}
    for tasks in (CHANGES, QUESTIONS):
        containerd.ctr("leases", "create", "--id", "collection")
        containerd.ctr("leases", "delete", "--sync", "collection")  # collects garbage
        for environment, (columns, variables) in ENVIRONMENTS.items():
            for name, task in tasks.items():
                if name == "state of the node":
                    reclaim.poll("no loop runs", lambda: is_idle(worker), timeout_s=30)
                command = task.command
                if "{hold}" in command:
                    command = command.format(hold=worker.run(None, "hold", "list", "-q").out.strip())
                found[name][environment] = worker.run(columns, *command.split(), variables=variables)
    for name, task in LAST.items():
        environment = "on 80 columns"
        columns, variables = ENVIRONMENTS[environment]
        found[name][environment] = worker.run(columns, *task.command.split(), variables=variables)
    return found


def fill(containerd: Containerd, directory: Path) -> Path:
    """Fill a newly started containerd with images and pods; return the path of the agent's configuration."""
    for name in ("links", "pods", "run"):
        (directory / name).mkdir()
    (directory / "cri.sock").symlink_to(containerd.socket)
    (directory / "imagefs").symlink_to(containerd.root)
    measure_often(containerd)
    made = [_image(name, number) for name in REPOSITORIES for number in range(VERSIONS)]
    containerd.import_images(images.write_oci(containerd.base / "images.tar", *made))
    (containerd.base / "images.tar").unlink()
    pods = containerd.pods()
    with ThreadPoolExecutor(1) as threads:  # the order of ended containers is that of their ends
        alive = [threads.submit(_run_pod, pods, directory, number) for number in range(PODS) if number not in ENDED]
        for number in ENDED:
            _run_pod(pods, directory, number)
        for each in alive:
            each.result()
    config = directory / "config.toml"
    config.write_text(f"""role = "standalone"

[runtime]
endpoint = "unix://{directory}/cri.sock"
imagefs_path = "{directory}/imagefs"

[image_gc]
high_threshold_percent = 85
low_threshold_percent = 80
minimum_age = "0s"
irreplaceable = "ignore"

[container_gc]
enabled = false
pod_log_root = "{directory}/pods"
container_log_root = "{directory}/links"

[eviction]
enabled = "off"

[shutdown]
enabled = "off"

[state]
directory = "{directory}/state"

[control]
socket = "{directory}/run/control.sock"

[metrics]
listen = "off"
""")
    return config


def _image(name: str, number: int) -> images.Image:
    """Return a version of a repository; only the newest one, which containers use, contains busybox."""
    sizes = {f"{name} base": _MIB // 2, f"{name} {number}": (2 + number) * _MIB // 4}
    layers = [images.blob(part, size_bytes, gzip_level=None) for part, size_bytes in sizes.items()]
    tag = f"{name}:v1.{number}"
    return images.image(tag, layers=layers) if number == VERSIONS - 1 else images.Image((tag,), tuple(layers))


def _run_pod(pods: Pods, directory: Path, number: int) -> None:
    """Run a pod: two running containers and, in some pods, three failed attempts; or six finished containers."""
    is_job = number in JOBS
    image = f"{REPOSITORIES[number % len(REPOSITORIES)]}:v1.{VERSIONS - 1}"
    app = "report" if is_job else image.rpartition(":")[0].rpartition("/")[2]
    name = f"monthly-report-2893440{number}-qw7tz" if is_job else f"{app}-7d9f8b6c5d-x2x9{number}"
    namespace = "batch" if is_job else "shop" if number < 5 else "payments-production"
    uid = str(uuid.uuid5(uuid.NAMESPACE_DNS, name))
    logs = directory / "pods" / f"{namespace}_{name}_{uid}"
    sandbox = pods.run_sandbox(name, namespace=namespace, uid=uid, log_directory=logs)
    if is_job:
        for step in range(6):
            pods.wait_exited(pods.run_container(sandbox, f"step-{step}", image, ["sh", "-c", f"exit {step % 2}"]))
        pods.stop_sandbox(sandbox)
        return
    attempts = 3 if number in ENDED else 0
    for attempt in range(attempts):
        pods.wait_exited(pods.run_container(sandbox, app, image, ["sh", "-c", "exit 137"], attempt=attempt))
    pods.start(pods.create_container(sandbox, app, image, attempt=attempts))
    pods.run_container(sandbox, "vault-agent-sidecar", image)


@pytest.mark.parametrize("task", TASKS)
def test_one_command_does_the_task_in_every_environment(screens: Screens, task: str) -> None:
    for environment, shown in screens[task].items():
        assert (shown.code, shown.err) == (0, ""), environment
        assert TASKS[task].shows in " ".join(plain(shown).split()), environment


@pytest.mark.parametrize("task", TASKS)
def test_screen_has_only_characters_of_its_terminal(screens: Screens, task: str) -> None:
    for environment, shown in screens[task].items():
        if not ENVIRONMENTS[environment].has_colour:
            assert plain(shown) == shown.out, environment
        if "LANG=C " in environment:
            assert plain(shown).isascii()
        assert "\x1b" not in plain(shown), environment


@pytest.mark.parametrize("task", [each for each in TASKS if each not in UNCUT])
def test_line_is_wider_than_the_terminal_only_by_a_single_word_after_its_label(screens: Screens, task: str) -> None:
    for environment, shown in screens[task].items():
        columns = ENVIRONMENTS[environment].columns
        if columns is not None:
            wide = [each for each in plain(shown).splitlines() if display_width(each) > columns]
            assert [each for each in wide if len(each.split()) > 2] == [], environment


@pytest.mark.parametrize("task", TASKS)
def test_name_is_cut_only_in_a_table_as_wide_as_the_terminal_without_constant_columns(
    screens: Screens, task: str
) -> None:
    for environment, shown in screens[task].items():
        columns = ENVIRONMENTS[environment].columns
        for table in tables(plain(shown)):
            if any(cut in line for line in table for cut in "…~"):
                assert columns is not None, table
                assert max(map(display_width, table)) == columns, table
                assert columns < 200
            if any(NAME_CUT.search(line) for line in table):
                assert [each for each in constant_columns(table) if each != "AGE"] == [], table


@pytest.mark.parametrize("task", [each for each in TASKS if each not in NOT_STORED])
def test_screen_is_the_stored_one(screens: Screens, task: str) -> None:
    texts = {}
    for name, each in screens[task].items():
        texts[name] = normalised(joined(plain(each), each.err, each.code))
        for pattern, constant in VOLATILE.items():
            texts[name] = re.sub(pattern, constant, texts[name])
    path = GOLDEN / f"{task.replace(' ', '-')}.txt"
    text = stored_form(texts)
    if os.environ.get("NODEAGENT_TEST_UPDATE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text(), f"{path} differs; NODEAGENT_TEST_UPDATE_GOLDEN=1 replaces it"


def test_stored_screens_are_those_of_tasks() -> None:
    assert {each.stem for each in GOLDEN.iterdir()} == {
        each.replace(" ", "-") for each in TASKS if each not in NOT_STORED
    }


def test_colours_are_shown_on_a_terminal(screens: Screens) -> None:
    assert "\x1b[31m" in screens["free space"]["on 80 columns"].out


def plain(shown: Shown) -> str:
    """Return the output of a command without styles."""
    return STYLE.sub("", shown.out)


def tables(text: str) -> list[list[str]]:
    """Return the tables of a screen: the heading and the lines with the same number of cells below it."""
    found: list[list[str]] = []
    for line in text.splitlines():
        if re.fullmatch(r"[A-Z#][A-Z# ]*(  +[A-Z#…~][A-Z# …~]*)+", line):
            found.append([line])
        elif found and len(cells(line)) == len(cells(found[-1][0])):
            found[-1].append(line)
    return found


def constant_columns(table: list[str]) -> list[str]:
    """Return the titles of columns with the same value in all of several rows."""
    columns = zip(*map(cells, table), strict=True)
    return [title for title, *values in columns if len(values) > 1 and len(set(values)) == 1]


def cells(line: str) -> list[str]:
    return re.split(r"  +", line.strip())
