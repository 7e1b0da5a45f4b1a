"""Passes over all images, their outcomes, and crashes of the runtime, for tests of image transactions."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from nodeagent.gc.plan.policy import Scope
from tests.sim.store import Lease, RefusedError, Snapshot, SnapshotKind

if TYPE_CHECKING:
    from collections.abc import Callable

    from nodeagent.gc.executor import Outcome, PassReport
    from nodeagent.gc.pass_state import Preview
    from tests.unit.gc.conftest import Rig


RECENT = {"containerd.io/gc.expire": "2099-01-01T00:00:00Z"}
LEASE_CHANGES = ("Leases.Create", "Content.Write", "Leases.AddResource", "Leases.Delete")
CHANGES = (*LEASE_CHANGES, "Images.Delete", "Images.Create", "Snapshots.Prepare", "Snapshots.Remove")


async def remove_all(made: Rig) -> PassReport:
    preview = await made.collector.preview(Scope.IMAGES)
    return await made.collector.run(preview, trigger="test", stop=asyncio.Event(), max_rounds=1)


def outcomes(report: PassReport) -> dict[str, Outcome]:
    return {each.decision.id: each.outcome for each in report.results}


def crash(made: Rig, at: tuple[str, int, bool]) -> Callable[[], bool]:
    """Simulate a crash of the runtime: fail all calls from the n-th call of a method on.

    Args:
        made: rig with the runtime.
        at: method, index of its first failed call, and whether that call takes effect without a confirmation.

    Returns:
        Whether the crash has happened, as a function.
    """
    method, number, after = at
    seen = []

    def count() -> None:
        seen.append(method)
        if len(seen) == number + 1:
            for each in made.server.faults.methods:
                made.server.faults.fail(each, times=None, status="UNAVAILABLE", detail="crashed")
            raise RefusedError("UNAVAILABLE", "crashed")

    hook = made.server.faults.after if after else made.server.faults.before
    hook(method, count, times=None)
    return lambda: len(seen) > number


def whole(made: Rig, names: dict[str, set[str]]) -> tuple[set[str], set[str]]:
    """Return the ids of the complete and of the removed images; fail if an image is removed only in part."""
    present = {image_id for image_id, own in names.items() if own & set(made.node.store.names)}
    for image_id in present:
        assert names[image_id] <= set(made.node.store.names)
        assert image_id in made.node.images
        chain_id = made.node.images[image_id].chain_id
        assert not chain_id or chain_id in made.node.store.snapshots
    return present, names.keys() - present


def begin_creation(made: Rig, image_id: str, key: str = "c", lease_id: str = "1234-abcd") -> Callable[[], None]:
    """Return a function that leases and prepares the snapshot of a new container without a container record."""
    parent = made.node.images[image_id].chain_id

    def prepare() -> None:
        store, now = made.node.store, made.node.now
        store.add_lease(Lease(lease_id, now, dict(RECENT), [(key * 64, "snapshots/overlayfs")]))
        store.put_snapshot(Snapshot(key * 64, parent, SnapshotKind.ACTIVE, 1, 1, now))

    return prepare


def use_during_removal(made: Rig, preview: Preview, used: int | None) -> str:
    """Start a container of the image at index ``used`` before the deletion of its id as a name.

    Returns:
        The image id; empty if ``used`` is ``None``, which starts no container.
    """
    if used is None:
        return ""
    in_use = preview.removals[used % len(preview.removals)].id
    made.server.faults.before("Images.Delete", partial(made.node.start_container, in_use), target=in_use, times=1)
    return in_use
