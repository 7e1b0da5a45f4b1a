"""Tests of hostile names chosen by tenants, on a real containerd, which accepts these names."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nodeagent.text import encodable, escape
from tests.support import images
from tests.support.hostile import DIRECTORIES, NAMES, write_logs

if TYPE_CHECKING:
    from tests.integration.conftest import ContainerdFactory
    from tests.support.containerd import Containerd

pytestmark = pytest.mark.real

ROOT = Path(__file__).parents[3]
IMAGE = "hostile.test/app:v1"
CHOSEN = NAMES[:9]
RECORDED = [encodable(os.fsdecode(each)) for each in DIRECTORIES]


@pytest.fixture
def node(containerd_factory: ContainerdFactory) -> Containerd:
    """Return a node with a dead container for each hostile name, and with log directories that are not UTF-8."""
    made = containerd_factory()
    archive = images.write_oci(made.base / "app.tar", images.image(IMAGE))
    made.import_images(archive)
    for name in CHOSEN:
        made.ctr("images", "tag", IMAGE, f"hostile.test/{name.replace(chr(0), '')}")
    with made.pods() as pods:
        for number, name in enumerate(CHOSEN):
            directory = made.log_root / f"{number}"
            labels = {"io.kubernetes.pod.name": name, "io.kubernetes.pod.namespace": name, name: name}
            sandbox = pods.run_sandbox(name, namespace=name, log_directory=directory, labels=labels, annotations=labels)
            for attempt in range(2):
                container = pods.create_container(
                    sandbox, name, IMAGE, ["sh", "-c", "exit 1"], attempt=attempt, log_path=f"{attempt}.log"
                )
                pods.start(container)
                pods.wait_exited(container)
    links = made.base / "links"
    write_logs(made.log_root, links)
    (made.base / "config.toml.agent").write_text(
        f'role = "standalone"\n[runtime]\nendpoint = "unix://{made.socket}"\n[state]\ndirectory = "{made.base}/state"\n'
        f'[container_gc]\npod_log_root = "{made.log_root}"\ncontainer_log_root = "{links}"\n'
        'minimum_age = "0s"\nlog_minimum_age = "0s"\nmax_per_pod_container = 0\n'
    )
    return made


def run(node: Containerd, command: str) -> subprocess.CompletedProcess[str]:
    """Run a command, assert that its output contains no control characters, and return the result."""
    words = [sys.executable, "-m", "nodeagent", *command.split(), "--config", str(node.base / "config.toml.agent")]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False, cwd=ROOT)
    assert [each for each in (ended.stdout + ended.stderr).split("\n") if escape(each) != each] == []
    assert "Traceback" not in ended.stderr
    return ended


def test_hostile_names_are_listed_removed_and_recorded_and_later_passes_succeed(node: Containerd) -> None:
    for command in ("images", "images --tree", "containers", "pods", "du --details", "evict --dry-run"):
        assert run(node, command).returncode == 0, command
    preview = run(node, "gc containers --dry-run")
    assert preview.returncode == 0
    assert all(escape(each) in preview.stdout.replace("\n", "") for each in CHOSEN[:1])
    collected = run(node, "run --once")
    assert collected.returncode == 0, collected.stderr
    (done,) = json.loads(run(node, "history -o json").stdout)["passes"]
    outcomes = {each["id"]: (each["kind"], each["outcome"]) for each in done["actions"]}
    assert [outcomes.get(each) for each in RECORDED] == [("pod-log-directory", "done")] * 2 + [None]
    containers = [each for each in done["actions"] if each["kind"] == "container"]
    assert {each["outcome"] for each in containers} == {"done"}
    assert len(containers) == 2 * len(CHOSEN)
    assert {os.fsencode(each.name) for each in node.log_root.iterdir()} & set(DIRECTORIES) == {DIRECTORIES[2]}
    assert list((node.base / "links").iterdir()) == []
    assert run(node, "history --details").returncode == 0
    again = run(node, "run --once")
    assert again.returncode == 0, again.stderr
    passes = json.loads(run(node, "history --all -o json").stdout)["passes"]
    assert [each["end"] for each in passes] == ["nothing-to-do", "complete"]
