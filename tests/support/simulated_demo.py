"""Preview, run and result on a simulated node, through the real client, planner and executor.

``make demo DEMO=simulated`` runs ``python -m tests.support.simulated_demo``.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from nodeagent.cli.display import Line, standard_output
from nodeagent.cli.exit_codes import ExitCode
from nodeagent.cli.gc import preview_lines, report_lines
from nodeagent.cli.reading import run_async
from nodeagent.gc.agent import RemoverFactory
from nodeagent.gc.collector import Collector
from nodeagent.gc.executor import PassEnd
from nodeagent.gc.plan.policy import ContainerGCPolicy, GCPolicy, Scope
from nodeagent.gc.removers import HostLogs
from nodeagent.gc.snapshot.node import NodeSnapshotReader
from nodeagent.model.node import Role
from nodeagent.runtime.connection import RuntimeConnection
from nodeagent.runtime.containerd import ContainerdClient
from nodeagent.runtime.cri import CriClient
from nodeagent.runtime.storage_backend import ContainerdStorage
from nodeagent.runtime.storage_graph import LayerCache
from tests.sim.filesystem import SimFilesystem
from tests.sim.memory import SimMemory
from tests.sim.scenario import example_node
from tests.sim.server import SimServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


_POLICY = GCPolicy(containers=ContainerGCPolicy(deleted_pod_grace_s=60.0))


def run_demo() -> ExitCode:
    """Print a preview on a simulated node, run the removals and print their result; return the exit code.

    Only files in a temporary directory are changed.
    """
    return run_async(_demo())


async def _demo() -> ExitCode:
    display = standard_output()
    columns, policy = display.columns, _POLICY.images
    title = "demo: a SIMULATED node (in-process CRI server); nothing on this machine is changed"
    display.write([Line(title), Line()])
    async with _simulated() as collector:
        display.write([_rule("1. preview: nodeagent gc all --dry-run")])
        preview = await collector.preview(Scope.ALL)
        display.write(preview_lines(preview, policy, columns, show_kept=False))
        display.write([_rule("2. run: nodeagent gc all --yes")])
        report = await collector.run(preview, trigger="demo", stop=asyncio.Event())
        display.write(report_lines(report, policy, columns))
        removed = {result.decision.id for result in report.removed}
        same = removed == {decision.id for decision in preview.removals}
        verdict = Line(f"Removed exactly the previewed items: {'yes' if same else 'NO'}")
        display.write([verdict, Line(), _rule("3. result: a second run removes nothing")])
        second = await collector.preview(Scope.ALL)
        display.write(preview_lines(second, policy, columns, show_kept=False))
    succeeded = same and report.end is PassEnd.COMPLETE and not second.removals
    return ExitCode.DONE if succeeded else ExitCode.FAILED


def _rule(title: str) -> Line:
    return Line(f"--- {title} ---", "bold green")


@asynccontextmanager
async def _simulated() -> AsyncIterator[Collector]:
    scenario = example_node()
    node = scenario.node

    async def standalone() -> Role:
        return Role.STANDALONE

    with tempfile.TemporaryDirectory(prefix="nodeagent-demo-") as directory:
        root = Path(directory)
        scenario.write_logs(root)
        read = SimFilesystem(node).read
        async with SimServer(node, root / "runtime.sock") as server, RuntimeConnection(server.endpoint) as connection:
            cri = CriClient(connection)
            storage = ContainerdStorage(
                ContainerdClient(connection), node.clock, lambda _path: LayerCache(clock=node.clock)
            )
            pod_logs, container_logs = root / "pods", root / "containers"
            observer = NodeSnapshotReader(
                cri,
                storage,
                imagefs_path="",
                pod_log_root=pod_logs,
                container_log_root=container_logs,
                clock=node.clock,
                read_boot_id=str,
                read_filesystem=read,
                memory=SimMemory(),
                read_holds=tuple,
                read_role=standalone,
                find_running=lambda _known: (frozenset(), False),
            )
            logs = HostLogs(pod_logs, container_logs, node.clock)
            removers = RemoverFactory(cri, storage, logs, node.clock, tuple, observer.images.find_unlisted, bulk=True)
            yield Collector(
                observer,
                removers,
                _POLICY,
                clock=node.clock,
                read_filesystem=read,
                collect_garbage=storage.collect_garbage,
            )


if __name__ == "__main__":
    sys.exit(run_demo())
