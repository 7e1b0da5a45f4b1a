"""Fuzz targets with a fixed number of inputs; CI also runs ``tests.beside``, and the campaign is ``make fuzz``."""

from __future__ import annotations

import gc
from contextlib import nullcontext
from itertools import islice
from random import Random
from typing import TYPE_CHECKING

import pytest

from tests.fuzz.figures import Figures, rss_mib
from tests.fuzz.mutation import mutations
from tests.fuzz.targets import open_targets
from tests.fuzz.worker import Watch

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from tests.fuzz.target import Target

INPUTS = {
    "http": 3_000,
    "request": 10_000,
    "document": 10_000,
    "saved-plan": 2_000,
    "hold-file": 2_000,
    "list-filter": 5_000,
    "api-server": 150,
    "manifest": 300,
    "kubelet-pods": 1_000,
    "kubelet-config": 150,
    "containerd-config": 300,
    "runtime": 1_000,
    "image-graph": 100,
    "terminal": 500,
    "journal": 2_000,
}
GROWTH_MIB = 32


@pytest.fixture(scope="module")
def targets() -> Iterator[Mapping[str, Target]]:
    with open_targets() as opened:
        yield opened


def test_every_target_is_fuzzed(targets: Mapping[str, Target]) -> None:
    assert targets.keys() == INPUTS.keys()


@pytest.mark.parametrize("name", INPUTS)
def test_seeds_are_accepted(targets: Mapping[str, Target], name: str) -> None:
    assert [each for each in targets[name].seeds if not targets[name].run(each)] == []


@pytest.mark.parametrize("name", INPUTS)
def test_target_accepts_or_rejects_every_input_with_bounded_memory(targets: Mapping[str, Target], name: str) -> None:
    target = targets[name]
    inputs = mutations(target.seeds, Random(name))
    accepted = sum(map(target.run, islice(inputs, INPUTS[name] // 10)))
    gc.collect()  # automatic collection is rare in a process with many objects
    before_mib = rss_mib("self")
    accepted += sum(map(target.run, islice(inputs, INPUTS[name])))
    assert accepted > INPUTS[name] // 50, "the mutations no longer pass the first check"
    gc.collect()
    assert rss_mib("self") - before_mib < GROWTH_MIB


@pytest.mark.parametrize(("took_s", "stalls"), [((2.0, 2.0), True), ((2.0, 0.1), False)])
def test_input_is_a_stall_only_if_it_stalls_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, took_s: tuple[float, float], stalls: bool
) -> None:
    clock_s, durations_s = 0.0, iter(took_s)

    def run(data: bytes) -> bool:
        nonlocal clock_s
        clock_s += next(durations_s)
        return bool(data)

    monkeypatch.setattr("tests.fuzz.worker.time.thread_time", lambda: clock_s)
    figures = Figures("target", "mutation")
    watch = Watch(figures, run, tmp_path / "result.json")
    with pytest.raises(TimeoutError) if stalls else nullcontext():
        watch(b"input")
    assert bool(figures.defect) is stalls
