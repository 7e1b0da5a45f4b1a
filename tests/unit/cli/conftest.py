"""Fixtures of the command line tests: a cached parser and a configuration file."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import pytest
import typer.main

from tests.sim.filesystem import SimFilesystem

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from nodeagent.model.runtime import FsObservation
    from nodeagent.units import Clock
    from tests.sim.node import SimNode


@pytest.fixture(scope="session", autouse=True)
def _one_parser() -> Iterator[None]:
    """Cache the command line parser, since typer rebuilds it in each call, with 70 ms of CPU time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.main, "get_command", cache(typer.main.get_command))
        yield


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Return a configuration file with all paths in the temporary directory."""
    path = tmp_path / "config.toml"
    path.write_text(
        f'role = "standalone"\n[runtime]\nendpoint = "unix://{tmp_path}/s"\n[state]\ndirectory = "{tmp_path}/state"\n'
        f'[container_gc]\npod_log_root = "{tmp_path}/pods"\ncontainer_log_root = "{tmp_path}/containers"\n'
    )
    return path


@pytest.fixture
def disks(monkeypatch: pytest.MonkeyPatch) -> list[SimNode]:
    """Return a list: the daemon reads the filesystem of the simulated node in it. Commands run as root."""
    sims: list[SimNode] = []

    def read(path: str, clock: Clock) -> FsObservation:
        return SimFilesystem(sims[0]).read_filesystem(path, clock)

    def read_node(path: str, clock: Clock) -> FsObservation:
        return SimFilesystem(sims[0]).read_node_filesystem(path, clock)

    monkeypatch.setattr("nodeagent.gc.agent_parts.read_filesystem", read)
    monkeypatch.setattr("nodeagent.daemon.node_filesystems.read_filesystem", read_node)
    monkeypatch.setattr("os.geteuid", lambda: 0)
    return sims


@pytest.fixture(autouse=True)
def no_walk_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read no directories after a shortfall: simulated nodes have none, and those of this machine take seconds."""
    monkeypatch.setattr("nodeagent.gc.agent._BREAKDOWN_WITHIN_S", 0.0)
