"""Tests of passes killed by SIGKILL on a real containerd: every removal is recorded, and the next pass is correct.

The pass is killed at a random time, or at a random SQL statement of the history. ``NODEAGENT_TEST_RUNS`` is the number
of kills, ``NODEAGENT_TEST_SEED`` determines the random choices; see ``make campaign-kill``.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from nodeagent.host.processes import is_running
from nodeagent.store.history import FILE_NAME, History
from tests.support import images, reclaim
from tests.support.killed_command import MARK

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nodeagent.store.history import PastPass
    from tests.integration.conftest import ContainerdFactory
    from tests.support.containerd import Containerd

pytestmark = pytest.mark.real

RUNS: Final = int(os.environ.get("NODEAGENT_TEST_RUNS", "3"))
CHOSEN: Final = random.Random(int(os.environ.get("NODEAGENT_TEST_SEED", "0")))
ROOT: Final = Path(__file__).parents[2]
REGISTRY: Final = "registry.example.com"
KEPT: Final = f"{REGISTRY}/tools/app:v1"
UNUSED: Final = 28
MODES: Final = ("time", "statement", "time-cri", "statement-cri")

Item = tuple[str, str]


@dataclass
class Node:
    """Containerd on which unused images and a deleted pod are restored before each pass."""

    containerd: Containerd
    directory: Path
    figures: Counter[str] = field(default_factory=Counter)
    started_s: dict[str, float] = field(default_factory=dict)
    pass_s: dict[str, float] = field(default_factory=dict)
    statements: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.pods = self.containerd.pods()
        kept = images.image(KEPT, layers=[images.blob("kept", 1 << 16)])
        unused = [
            images.image(f"{REGISTRY}/unused/app{number}:v1", layers=[images.blob(f"unused {number}", 1 << 16)])
            for number in range(UNUSED)
        ]
        self.containerd.import_images(images.write_oci(self.directory / "kept.tar", kept))
        self.unused = images.write_oci(self.directory / "unused.tar", *unused)

    @property
    def state(self) -> Path:
        return self.directory / "state"

    def config(self, removal: str) -> Path:
        path = self.directory / f"{removal}.toml"
        path.write_text(
            f'role = "standalone"\n[runtime]\nendpoint = "unix://{self.containerd.socket}"\n'
            f'[state]\ndirectory = "{self.state}"\n[control]\nsocket = ""\n'
            '[image_gc]\nhigh_threshold_percent = 1\nlow_threshold_percent = 0\nminimum_age = "0s"\n'
            'irreplaceable = "ignore"\n'
            f'removal = "{removal}"\n[container_gc]\ndeleted_pod_grace = "0s"\nsandbox_minimum_age = "0s"\n'
            f'log_minimum_age = "0s"\npod_log_root = "{self.containerd.log_root}"\n'
            f'container_log_root = "{self.directory}/links"\n[protect]\nimages = ["*/tools/*"]\n'
        )
        return path

    def litter(self) -> None:
        """Restore the unused images and add a deleted pod with a dead container."""
        self.containerd.import_images(self.unused)
        sandbox = self.pods.run_sandbox(f"deleted-{CHOSEN.getrandbits(32):08x}")
        done = self.pods.run_container(sandbox, "done", KEPT, ["true"])
        self.pods.wait_exited(done)
        self.pods.stop_sandbox(sandbox)

    def items(self) -> set[Item]:
        """Return all images, containers, sandboxes and pod log directories."""
        return {
            *(("image", each.id) for each in self.pods.list_images()),
            *(("container", each.id) for each in self.pods.list_containers()),
            *(("sandbox", each.id) for each in self.pods.list_sandboxes()),
            *(("pod-log-directory", each.name) for each in self.containerd.log_root.iterdir()),
        }

    def settled(self) -> set[Item]:
        """Wait until the calls of a killed process have ended, so that two readings are equal; return the items."""
        seen: list[set[Item]] = [set()]

        def unchanged() -> bool:
            seen.append(self.items())
            return seen[-1] == seen[-2]

        reclaim.poll("the items are unchanged", unchanged, timeout_s=60, interval_s=0.5)
        return seen[-1]

    def run(self, config: Path) -> list[dict[str, Any]]:
        """Run a pass until it finishes; return its log entries."""
        ended = subprocess.run(self.daemon(config), capture_output=True, text=True, timeout=120, check=False, cwd=ROOT)
        assert ended.returncode in (0, 3), ended.stderr  # exit code 3: the low threshold cannot be reached
        return [json.loads(line) for line in ended.stderr.splitlines()]

    def daemon(self, config: Path) -> list[str]:
        return [sys.executable, "-m", "nodeagent", "run", "--once", "--config", str(config)]

    def command(self, config: Path, statement: int, delay_us: int) -> list[str]:
        words = ["-m", "tests.support.killed_command", str(statement), str(delay_us)]
        return [sys.executable, *words, "gc", "all", "--yes", "-o", "json", "--config", str(config)]

    def history(self) -> dict[str, PastPass]:
        found = History(self.state, is_running=is_running).read(limit=10_000, quiet=True)
        return {each.id: each for each in found}

    def calibrate(self, removal: str) -> None:
        """Measure the start, the duration and the number of SQL statements of a pass that is not killed."""
        config = self.config(removal)
        self.litter()
        began = time.monotonic()
        with subprocess.Popen(self.daemon(config), stderr=subprocess.PIPE, text=True, cwd=ROOT) as process:
            assert process.stderr is not None
            for line in process.stderr:
                at_s, event = time.monotonic() - began, json.loads(line)["event"]
                if event == "pass_started":
                    self.started_s[removal] = at_s
                elif event == "pass_finished":
                    self.pass_s[removal] = at_s - self.started_s[removal]
        self.litter()
        ended = subprocess.run(
            self.command(config, sys.maxsize, 0), capture_output=True, text=True, timeout=120, check=False, cwd=ROOT
        )
        self.statements[removal] = int(ended.stderr.rpartition(MARK)[2])

    def kill_by_time(self, removal: str) -> None:
        """Kill a pass at a random time between its start and its end; in one case of six, before its first record."""
        with subprocess.Popen(
            self.daemon(self.config(removal)), stderr=subprocess.PIPE, text=True, cwd=ROOT
        ) as process:
            assert process.stderr is not None
            if CHOSEN.random() < 1 / 6:
                time.sleep(self.started_s[removal] * CHOSEN.uniform(0.7, 1.1))
            else:
                for line in process.stderr:
                    if '"pass_started"' in line:
                        break
                time.sleep(self.pass_s[removal] * CHOSEN.random() ** 2)
            process.kill()
            process.stderr.read()

    def kill_at_statement(self, removal: str) -> None:
        """Kill a pass at a random SQL statement of the history."""
        statement = CHOSEN.randint(1, self.statements[removal])
        delay_us = CHOSEN.choice((0, CHOSEN.randint(1, 3000)))
        command = self.command(self.config(removal), statement, delay_us)
        ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=ROOT)
        assert ended.returncode in (-signal.SIGKILL, 0, 3), ended.stderr


@pytest.fixture(scope="module")
def node(module_containerd_factory: ContainerdFactory, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    made = Node(module_containerd_factory(), tmp_path_factory.mktemp("agent"))
    (made.directory / "links").mkdir()
    for removal in ("auto", "cri"):
        made.calibrate(removal)
    yield made
    figures = "\n".join(f"  {name}: {count}" for name, count in sorted(made.figures.items()))
    print(f"\nkilled passes\n{figures}", file=sys.stderr)


def accounted(passes: dict[str, PastPass]) -> tuple[set[Item], set[Item]]:
    """Return the items recorded as removed, and the items with a planned removal but without a recorded outcome."""
    actions = [each for past in passes.values() for each in past.actions]
    removed = {(each.kind, each.item_id) for each in actions if each.outcome in ("done", "gone")}
    return removed, {(each.kind, each.item_id) for each in actions if each.outcome in ("unknown", "failed")}


def check_integrity(state: Path) -> None:
    for name in (FILE_NAME, "nodeagent.db"):
        if (state / name).exists():
            with closing(sqlite3.connect(f"{(state / name).as_uri()}?mode=ro", uri=True)) as connection:
                assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
                assert connection.execute("PRAGMA foreign_key_check").fetchall() == []


@pytest.mark.campaign
@pytest.mark.parametrize("run", range(RUNS))
def test_history_accounts_for_every_removal_of_a_killed_pass_and_the_next_pass_is_right(node: Node, run: int) -> None:
    mode = MODES[run % len(MODES)]
    removal = "cri" if mode.endswith("-cri") else "auto"
    node.litter()
    before, earlier = node.items(), node.history()
    if mode.startswith("time"):
        node.kill_by_time(removal)
    else:
        node.kill_at_statement(removal)
    after = node.settled()
    check_integrity(node.state)
    recorded = {identity: past for identity, past in node.history().items() if identity not in earlier}
    removed, unknown = accounted(recorded)
    vanished = before - after
    assert vanished <= removed | unknown, f"{mode}: removed without a record: {vanished - removed - unknown}"
    assert removed & before <= vanished, f"{mode}: recorded as removed and present: {(removed & before) - vanished}"
    assert {each.result for each in recorded.values()} <= {"interrupted", "complete", "shortfall", "nothing-to-do"}
    interrupted = [each for each in recorded.values() if each.result == "interrupted"]
    assert len(interrupted) <= 1

    log = node.run(node.config(removal))
    check_integrity(node.state)
    logged = [each["pass_id"] for each in log if each["event"] == "pass_interrupted"]
    assert logged == [each.id for each in interrupted]
    final = node.items()
    assert not [item for item in final if item in unknown]
    tags = {tag for each in node.pods.list_images() for tag in each.tags}
    assert KEPT in tags
    assert not tags & set(node.unused.tags)
    assert not [item for item in final if item[0] in ("container", "sandbox")]
    new = {identity: past for identity, past in node.history().items() if identity not in earlier | recorded}
    assert vanished | accounted(new)[0] == before - final, "the next pass recorded its own removals"
    node.figures.update(
        {
            "kills": 1,
            f"kills {mode}": 1,
            "interrupted passes": len(interrupted),
            "killed before the first removal": int(not vanished),
            "removed by killed passes": len(vanished),
            "of these recorded with outcome": len(vanished & removed),
            "of these recorded as unknown": len(vanished - removed),
            "unknown and not removed": len((unknown & before) - vanished),
            "removed by the next passes": len(accounted(new)[0]),
        }
    )
