"""Pods whose volumes may still be attached after an unclean or incomplete stop of the node."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from nodeagent.cli.shutdown import status_lines
from nodeagent.model.pods import PodSpec
from nodeagent.model.stops import NodeStop, PodOutcome, StopEnd, StopKind, StoppedPod
from nodeagent.pods.watched import write_watched_pods
from nodeagent.record import replace
from nodeagent.settings.settings import Config
from nodeagent.shutdown.document_readings import attached_volumes, read_shutdown_status
from nodeagent.store.history import History, configured_retention

if TYPE_CHECKING:
    from pathlib import Path

T0 = datetime(2026, 11, 21, 12, tzinfo=UTC)
RUNNING = StoppedPod("u", "shop", "db")
SPEC = PodSpec("u", "shop", "db", phase="Running", claims=("data",))
UNCLEAN = NodeStop("b", StopKind.UNCLEAN, T0, end=StopEnd.UNKNOWN, pods=(RUNNING,))


@pytest.mark.parametrize(
    ("spec", "claims"),
    [
        (SPEC, [("data",)]),
        (replace(SPEC, deleting=True), [("data",)]),
        (replace(SPEC, phase="Pending"), [("data",)]),
        (replace(SPEC, malformed="spec"), [None]),
        (replace(SPEC, claims=()), []),
        (replace(SPEC, phase="Failed"), []),
        (replace(SPEC, uid="new"), []),
    ],
)
def test_pod_has_volumes_unless_the_watch_shows_that_it_has_none_or_has_ended(
    spec: PodSpec, claims: list[tuple[str, ...] | None]
) -> None:
    assert [each.claims for each in attached_volumes(UNCLEAN, {spec.uid: spec})] == claims


def test_claims_are_unknown_without_a_watch() -> None:
    assert [each.claims for each in attached_volumes(UNCLEAN, None)] == [None]


@pytest.mark.parametrize(
    ("kind", "end", "outcome", "listed"),
    [
        (StopKind.SIGNAL, StopEnd.INCOMPLETE, PodOutcome.FAILED, True),
        (StopKind.SIGNAL, StopEnd.INCOMPLETE, None, True),
        (StopKind.SIGNAL, StopEnd.INCOMPLETE, PodOutcome.STOPPED, False),
        (StopKind.SIGNAL, StopEnd.COMPLETE, PodOutcome.STOPPED, False),
        (StopKind.SIGNAL, StopEnd.IN_PROGRESS, None, False),
        (StopKind.SIGNAL, StopEnd.CANCELLED, None, False),
    ],
)
def test_pods_that_were_stopped_or_still_run_are_not_listed(
    kind: StopKind, end: StopEnd, outcome: PodOutcome | None, listed: bool
) -> None:
    last = NodeStop("b", kind, T0, end=end, pods=(replace(RUNNING, outcome=outcome),))
    assert bool(attached_volumes(last, {"u": SPEC})) is listed


async def test_status_lists_pods_and_claims_of_the_stored_watch(tmp_path: Path) -> None:
    settings = replace(Config().settings(), state_directory=tmp_path)
    settings = replace(settings, kubelet=replace(settings.kubelet, node_name="node-1"))
    History(tmp_path).add_stop(UNCLEAN, configured_retention(settings), T0, clock_trusted=False)
    write_watched_pods(tmp_path, "node-1", (SPEC,), T0)
    found = await read_shutdown_status(settings, 5)
    assert [(each.namespace, each.name, each.claims) for each in found.attached_volumes] == [("shop", "db", ("data",))]
    printed = "\n".join(each.text for each in status_lines(found, None))
    assert "volumes that may still be attached after the last stop:" in printed
    assert "shop/db" in printed
