"""Tests of list commands on a real containerd: one line per object on a terminal, full references in a pipe."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from nodeagent.text import display_width
from tests.support import images
from tests.support.terminal import in_pipe, on_terminal

if TYPE_CHECKING:
    from pathlib import Path

    from tests.integration.conftest import ContainerdFactory

pytestmark = pytest.mark.real

REPOSITORY = "123456789012.dkr.ecr.eu-central-1.amazonaws.com/platform/payments/payments-api"
TAGS = tuple(f"{REPOSITORY}:2026.02.{day:02}-1200-{day:02}ab34cd" for day in range(1, 21))
CONTAINERS = 7


@pytest.fixture
def config(containerd_factory: ContainerdFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the path of a configuration for a containerd with seven containers and an image with twenty tags."""
    made = containerd_factory()
    made.import_images(images.write_oci(made.base / "app.tar", images.image(TAGS[0])))
    for tag in TAGS[1:]:
        made.ctr("images", "tag", TAGS[0], tag)
    with made.pods() as pods:
        for number in range(CONTAINERS):
            name = f"payments-api-7d9f8b6c5d-x2x9{number}"
            labels = {"io.kubernetes.pod.name": name, "io.kubernetes.pod.namespace": "payments-production"}
            sandbox = pods.run_sandbox(
                name, namespace="payments-production", log_directory=made.log_root / name, labels=labels
            )
            container = pods.create_container(
                sandbox, "payments-api", TAGS[0], ["sh", "-c", "exit 0"], log_path="0.log"
            )
            pods.start(container)
            pods.wait_exited(container)
    path = made.base / "config.toml.agent"
    path.write_text(
        f'role = "standalone"\n[runtime]\nendpoint = "unix://{made.socket}"\n[state]\ndirectory = "{made.base}/state"\n'
        f'[container_gc]\npod_log_root = "{made.log_root}"\ncontainer_log_root = "{made.base}/links"\n'
    )
    monkeypatch.setenv("NO_COLOR", "1")
    return path


def test_lists_have_one_line_per_object_and_every_reference_is_found_in_a_pipe(config: Path) -> None:
    count = len(json.loads(in_pipe("images", "-o", "json", "--config", str(config)).out)["images"])
    for command, objects in (("containers", CONTAINERS), ("pods", CONTAINERS), ("images", count)):
        for form in ("table", "wide"):
            for columns in (80, 120, 200):
                lines = on_terminal(columns, command, "-o", form, "--config", str(config)).out.splitlines()
                is_stacked = not lines[0].split()[0].isupper()  # several lines per object, without headings
                rows = [line for line in lines if not line.startswith(("all: ", "  "))]
                assert len(rows) == objects + (not is_stacked), (command, form, columns, lines)
                assert is_stacked or max(map(display_width, lines)) <= columns  # stacked names are whole
        assert len(in_pipe(command, "--no-headers", "--config", str(config)).out.splitlines()) == objects
    listed = in_pipe("images", "--config", str(config)).out.splitlines()
    for tag in TAGS:
        assert len([line for line in listed if tag in line]) == 1
        assert in_pipe("images", "--filter", f"name={tag}", "-q", "--config", str(config)).out.count("\n") == 1
