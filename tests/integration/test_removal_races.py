"""Tests of image removals during concurrent container creations, pulls, imports and tags on a real containerd.

``NODEAGENT_TEST_RUNS`` is the number of rounds of the tests with the ``campaign`` mark; see ``make campaign-removal``.
``NODEAGENT_TEST_REMOVAL`` lists the removal methods of the campaign: ``agent`` (the default), and ``at-once``,
``one-by-one`` and ``kubelet`` for comparison. The campaign passes only if the compared methods lose image records.
``NODEAGENT_TEST_SEED`` determines the random choices.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import pytest

from nodeagent.cli.reading import load_settings
from nodeagent.gc import pass_state as measurement
from nodeagent.gc.agent import open_agent
from nodeagent.gc.plan.policy import Scope
from tests.support import races
from tests.support.containerd import LoopFs
from tests.support.races import RaceField
from tests.support.registry import Registry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from tests.integration.conftest import ContainerdFactory
    from tests.support.images import Built
    from tests.support.pods import Pods

pytestmark = pytest.mark.real

ROUNDS = int(os.environ.get("NODEAGENT_TEST_RUNS", "2"))
SEED = int(os.environ.get("NODEAGENT_TEST_SEED", "0"))
REMOVALS = os.environ.get("NODEAGENT_TEST_REMOVAL", "agent").split(",")
OTHERS = {"at-once": races.remove_at_once, "one-by-one": races.remove_one_by_one, "kubelet": races.remove_as_kubelet}


CAMPAIGN_IMAGES, CAMPAIGN_USES, CAMPAIGN_CLIENTS = 72, 240, 8


@pytest.fixture
def field(containerd_factory: ContainerdFactory) -> RaceField:
    return RaceField(containerd_factory(imagefs=LoopFs(700, "ext4")), seed=SEED)


@pytest.fixture
def large_field(containerd_factory: ContainerdFactory) -> Iterator[RaceField]:
    """Return a race field with a registry and with so many images that a pass has several transactions."""
    with Registry() as registry:
        containerd = containerd_factory(imagefs=LoopFs(700, "ext4"))
        yield RaceField(containerd, count=CAMPAIGN_IMAGES, seed=SEED, registry=registry)


def by_agent(config: Path) -> Callable[[Pods, Sequence[Built]], int]:
    """Return a function that removes images by one pass of the agent and returns the number of removed items."""

    async def collect() -> int:
        async with open_agent(load_settings(config, {}), record=True, dry_run=False) as agent:
            preview = await agent.collector.preview(Scope.IMAGES)
            report = await agent.run(preview, trigger="test", stop=asyncio.Event(), max_rounds=1)
            return len(report.removed)

    return lambda _pods, _images: asyncio.run(collect())


@pytest.fixture
def _measured_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip the wait for freed bytes, which are never freed, since the images are imported again during the pass."""
    monkeypatch.setattr(measurement, "SETTLE_WITHIN_S", 0.0)


@pytest.mark.campaign
@pytest.mark.usefixtures("_measured_at_once")
@pytest.mark.parametrize("name", REMOVALS)
def test_no_container_loses_its_image_record_by_a_pass_and_some_do_by_other_removals(
    large_field: RaceField, name: str
) -> None:
    field = large_field
    removal = by_agent(field.configure()) if name == "agent" else OTHERS[name]
    for number in range(ROUNDS):
        field.run_round(removal, uses=CAMPAIGN_USES, clients=CAMPAIGN_CLIENTS)
        if number % 5 == 4 or number == ROUNDS - 1:
            print(f"{name}, {number + 1} rounds: {field.counts}", flush=True)
    print(*field.counts.broken, sep="\n")
    if name == "agent":
        assert not field.counts.lost
        assert not field.counts.broken
        assert not field.counts.incomplete
    else:
        assert field.counts.lost


@pytest.mark.parametrize("name", ["kubelet", "at-once"])
def test_removals_without_transaction_lose_image_records(field: RaceField, name: str) -> None:
    for _ in range(40):
        field.run_round(OTHERS[name])
        if field.counts.lost:
            break
    print(field.counts)
    assert field.counts.lost
