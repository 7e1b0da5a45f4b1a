"""Passes and reclaim steps on a node with several image filesystems."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from nodeagent.api import common as codec
from nodeagent.errors import ObservationError
from nodeagent.eviction.plan.reclaim import ReclaimAction, ReclaimStep
from nodeagent.eviction.reclaimer import Reclaimer
from nodeagent.gc import pass_state as measurement
from nodeagent.gc.collector import Collector
from nodeagent.gc.documents.passes import PreviewDocument, Report
from nodeagent.gc.executor import Outcome, PassEnd, PassReport, Result
from nodeagent.gc.plan.image_targets import SpaceNeeded
from nodeagent.gc.plan.policy import ContainerGCPolicy, GCPolicy, Scope
from nodeagent.model.decision import ItemKind
from nodeagent.model.pressure import FilesystemRole, OtherFilesystem
from nodeagent.record import replace
from tests.support.manual_clock import ManualClock
from tests.unit.builders import MIB, NOW, container, removed
from tests.unit.gc.plan.test_image_filesystems import KATA, OVERLAY, node

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nodeagent.gc.executor import Remover
    from nodeagent.gc.pass_state import Preview as PreviewOfPass
    from nodeagent.model.decision import Decision
    from nodeagent.model.node import NodeSnapshot
    from nodeagent.model.runtime import FsObservation, Label


@pytest.fixture(autouse=True)
def _without_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measurement, "SETTLE_WITHIN_S", 0.0)


EVERYTHING = SpaceNeeded(1000 * MIB)


class Node:
    """A fake node; each removal frees the fraction ``share`` of the predicted bytes on each filesystem."""

    def __init__(self, observed: NodeSnapshot, share: float = 1.0) -> None:
        self.observed, self.share = observed, share
        self.gone: list[str] = []
        self.extra_bytes = {each.path: 0 for each in observed.image_filesystems}

    async def observe(self, _scope: Scope, _labels: frozenset[Label] = frozenset()) -> NodeSnapshot:
        kept = tuple(each for each in self.observed.images if each.id not in self.gone)
        storage = self.observed.storage
        assert storage is not None
        graph = replace(storage, by_image={each.id: storage.by_image[each.id] for each in kept})
        filesystems = tuple(replace(each, observed=self.read(each.path)) for each in self.observed.image_filesystems)
        first = filesystems[0].observed
        return replace(self.observed, images=kept, storage=graph, image_filesystem=first, image_filesystems=filesystems)

    def read(self, path: str) -> FsObservation:
        (own,) = (each.observed for each in self.observed.image_filesystems if each.path == path)
        assert own is not None
        return replace(own, available_bytes=own.available_bytes + self.extra_bytes[path])

    async def remove(self, decision: Decision) -> Result:
        self.gone.append(decision.id)
        for path, size_bytes in decision.frees_on:
            self.extra_bytes[path] += int(size_bytes * self.share)
        return Result(decision, Outcome.DONE)

    def removers(self, *_: object, **__: object) -> Mapping[ItemKind, Remover]:
        return {ItemKind.IMAGE: self}

    async def run(self) -> PassReport:
        async def nothing() -> None:
            pass

        collector = Collector(
            self,
            self.removers,
            GCPolicy(),
            clock=ManualClock(),
            read_filesystem=self.read,
            collect_garbage=nothing,
        )
        preview = await collector.preview(Scope.IMAGES)
        return await collector.run(preview, trigger="test", stop=asyncio.Event())


async def test_pass_measures_each_filesystem() -> None:
    made = Node(node(40, 95))
    report = await made.run()
    assert made.gone == ["k1", "k2"]
    assert report.end is PassEnd.COMPLETE
    assert {each.before.path: each.freed_bytes for each in report.filesystems} == {OVERLAY: 60 * MIB, KATA: 200 * MIB}
    assert report.freed_bytes == 260 * MIB
    document = Report.of(report)
    assert codec.decode(codec.encode(document), Report) == document


async def test_removals_end_once_their_own_filesystem_is_relieved() -> None:
    made = Node(node(40, 95), share=2.0)
    report = await made.run()
    assert made.gone == ["k1"]
    assert report.end is PassEnd.COMPLETE


async def test_shortfall_names_the_filesystem_that_misses_its_target() -> None:
    made = Node(node(40, 99))
    made.share = 0.5
    report = await made.run()
    assert set(made.gone) == {"k1", "k2"}
    assert report.end is PassEnd.SHORTFALL
    assert report.end_detail.startswith(f"imagefs {KATA} is 89% full, 90.0 MiB above the low threshold 80%")


async def test_further_round_removes_no_image_of_a_filesystem_without_a_target() -> None:
    made = Node(node(83, 99), share=0.5)  # the first is between the low and the high threshold
    report = await made.run()
    assert set(made.gone) == {"k1", "k2"}
    assert report.end is PassEnd.SHORTFALL


async def test_preview_document_has_every_filesystem() -> None:
    observed = node(40, 95)
    collector_preview = PreviewDocument.of("images", observed, ())
    decoded = codec.decode(codec.encode(collector_preview), PreviewDocument)
    assert [each.path for each in decoded.snapshot().image_filesystems] == [OVERLAY, KATA]
    assert decoded == collector_preview
    assert '"image_filesystems"' not in codec.encode(
        PreviewDocument.of("images", replace(observed, image_filesystems=()), ())
    )


async def test_reclaim_removes_images_of_the_watched_filesystem_only() -> None:
    made = Node(node(50, 99, content=False))

    async def run(preview: PreviewOfPass, stop: asyncio.Event) -> PassReport:
        raise AssertionError((preview, stop))

    reclaimer = Reclaimer(made.observe, GCPolicy(), run)
    preview = await reclaimer.preview(ReclaimStep(ReclaimAction.UNUSED_IMAGES, FilesystemRole.IMAGEFS), EVERYTHING)
    assert removed(preview.plans[0]) == ["o1", "o2"]


def kata(observed: NodeSnapshot, **changed: Any) -> OtherFilesystem:
    """Return Kata's image filesystem in the form used by the eviction loop."""
    (own,) = (each.observed for each in observed.image_filesystems if each.path == KATA)
    assert own is not None
    return OtherFilesystem("/a/path/on/it", own.device_id, frozenset({"native"}))._replace(**changed)


def reclaimer_of(made: Node, policy: GCPolicy | None = None) -> Reclaimer:
    async def run(preview: PreviewOfPass, stop: asyncio.Event) -> PassReport:
        assert not stop.is_set()
        results = tuple([await made.remove(each) for each in preview.removals])
        return PassReport("id", "images", "eviction", NOW, 0.1, False, preview.plans, results, PassEnd.COMPLETE)

    return Reclaimer(made.observe, policy or GCPolicy(), run)


async def test_reclaim_for_another_filesystem_removes_its_images_only() -> None:
    made = Node(node(99, 50, content=False))
    step = ReclaimStep(ReclaimAction.UNUSED_IMAGES, FilesystemRole.IMAGEFS, kata(made.observed))
    done = await reclaimer_of(made).run(step, EVERYTHING, asyncio.Event())
    assert set(made.gone) == {"k1", "k2"}
    assert (done.path, done.freed(), done.confirmed) == (KATA, 200 * MIB, True)


@pytest.mark.parametrize("action", [ReclaimAction.UNUSED_IMAGES, ReclaimAction.IRREPLACEABLE_IMAGES])
async def test_reclaim_for_a_filesystem_without_known_images_fails_and_removes_nothing(action: ReclaimAction) -> None:
    made = Node(node(99, 99))
    step = ReclaimStep(action, FilesystemRole.IMAGEFS, kata(made.observed, device_id=1))
    with pytest.raises(ObservationError, match="no longer known as an image filesystem"):
        await reclaimer_of(made).run(step, EVERYTHING, asyncio.Event())
    assert made.gone == []


async def test_reclaim_for_the_first_filesystem_by_its_path_among_the_others_fails() -> None:
    made = Node(node(99, 99))
    first = made.observed.image_filesystem
    assert first is not None
    step = ReclaimStep(
        ReclaimAction.UNUSED_IMAGES, FilesystemRole.IMAGEFS, kata(made.observed, device_id=first.device_id)
    )
    with pytest.raises(ObservationError):
        await reclaimer_of(made).preview(step, EVERYTHING)


async def test_dead_containers_of_other_snapshotters_are_kept() -> None:
    dead = tuple(container(each, finished_s=9000) for each in ("native", "overlay", "unrecorded"))
    stores = {"native": "native", "overlay": "overlayfs"}
    observed = replace(node(50, 99), images=(), containers=dead, snapshotters=stores)
    made = Node(observed)
    policy = GCPolicy(containers=ContainerGCPolicy(max_per_pod_container=0))
    reclaimer = reclaimer_of(made, policy)
    for other, gone in ((kata(observed), {"native"}), (None, {"native", "overlay", "unrecorded"})):
        preview = await reclaimer.preview(
            ReclaimStep(ReclaimAction.DEAD_CONTAINERS, FilesystemRole.IMAGEFS, other), EVERYTHING
        )
        assert {each.id for each in preview.removals} == gone
