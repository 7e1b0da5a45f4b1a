"""Reading of image labels: from the configs of images and from the records of their names."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from nodeagent.errors import ObservationError, RuntimeRequestError
from nodeagent.gc.executor import Outcome
from nodeagent.gc.plan.image_protection import ProtectionPolicy, parse_rule
from nodeagent.gc.plan.policy import GCPolicy, ImageGCPolicy, Scope
from nodeagent.gc.snapshot.images import ConfigLabels
from nodeagent.model.node import Hold
from nodeagent.record import replace
from nodeagent.runtime.cri import labels_in_config
from tests.sim.content import Layer
from tests.unit.builders import MIB

if TYPE_CHECKING:
    from collections.abc import Callable

    from nodeagent.model.runtime import Label
    from tests.sim.workload import SimImage
    from tests.unit.gc.conftest import Opener, Rig

ANY: Label = ("keep", None)
YES: Label = ("keep", "yes")
LIMIT_BYTES = 1 << 20


def policy(*rules: str) -> GCPolicy:
    return GCPolicy(images=ImageGCPolicy(minimum_age_s=0, protection=ProtectionPolicy(tuple(map(parse_rule, rules)))))


@pytest.mark.parametrize(
    ("config", "labels"),
    [
        pytest.param({"config": {"Labels": {"a": "1"}}}, {"a": "1"}, id="labels"),
        pytest.param({"config": {"Labels": None}}, {}, id="null"),
        pytest.param({"config": {}}, {}, id="no labels"),
        pytest.param({}, {}, id="no config, as in an artifact"),
        pytest.param({"config": {"Labels": {"a": 1}}}, None, id="value of another type"),
        pytest.param({"config": {"Labels": ["a=1"]}}, None, id="list"),
        pytest.param({"schemaVersion": 2, "config": {"digest": "sha256:0"}}, None, id="manifest"),
        pytest.param(None, None, id="not reported"),
        pytest.param([], None, id="not an object"),
    ],
)
def test_labels_of_a_config(config: object, labels: dict[str, str] | None) -> None:
    assert labels_in_config(config) == labels


class Configs:
    """Configs by image id, with the reads so far."""

    def __init__(self, **configs: object) -> None:
        self.configs = configs
        self.reads: list[str] = []

    async def read(self, image_id: str) -> object:
        self.reads.append(image_id)
        found = self.configs[image_id]
        if isinstance(found, Exception):
            raise found
        return found


def labelled(**labels: str) -> object:
    return {"config": {"Labels": labels}}


async def test_config_is_read_once_and_only_asked_labels_are_stored() -> None:
    source = Configs(a=labelled(keep="yes", other="x" * 1000), b=labelled(keep="no"))
    reader = ConfigLabels(source.read)
    for _ in range(2):
        assert await reader.read(["a", "b"], frozenset({ANY, YES})) == (
            {"a": frozenset({ANY, YES}), "b": frozenset({ANY})},
            {},
        )
    assert source.reads == ["a", "b"]
    found, _ = await reader.read(["b"], frozenset({ANY}))
    assert ANY in found["b"]
    await reader.read(["a", "b"], frozenset({ANY}))
    assert source.reads == ["a", "b", "a"], "the entry of an image that is no longer listed is discarded"


async def test_config_is_read_again_for_further_labels() -> None:
    source = Configs(a=labelled(keep="yes", more="1"))
    reader = ConfigLabels(source.read)
    await reader.read(["a"], frozenset({ANY}))
    assert await reader.read(["a"], frozenset({ANY, ("more", "1")})) == ({"a": frozenset({ANY, ("more", "1")})}, {})
    assert len(source.reads) == 2


@pytest.mark.parametrize(
    ("failure", "cause", "reads"),
    [
        pytest.param(ObservationError("too long"), "too long", 1, id="content that never changes"),
        pytest.param([], "its config has no readable labels", 1, id="no object"),
        pytest.param(None, "the runtime does not report its config", 2, id="not reported"),
        pytest.param(RuntimeRequestError("Read", "a", "INTERNAL", "broken"), "broken", 2, id="failed call"),
    ],
)
async def test_unreadable_config_is_unknown_and_a_failed_call_is_repeated(
    failure: object, cause: str, reads: int
) -> None:
    source = Configs(a=failure, b=labelled(keep="yes"))
    reader = ConfigLabels(source.read)
    for _ in range(2):
        found, unread = await reader.read(["a", "b"], frozenset({ANY}))
        assert (found, list(unread)) == ({"b": frozenset({ANY})}, ["a"])
        assert cause in unread["a"]
    assert source.reads.count("a") == reads


async def test_configs_that_are_not_read_in_time_are_unknown_and_read_next_time() -> None:
    source, stalled = Configs(a=labelled(keep="yes"), b=labelled()), asyncio.Event()

    async def read(image_id: str) -> object:
        if image_id == "b":
            await stalled.wait()
        return await source.read(image_id)

    reader = ConfigLabels(read, within_s=0.01)
    found, unread = await reader.read(["a", "b"], frozenset({ANY}))
    assert (found, unread) == ({"a": frozenset({ANY})}, {"b": "not read within 0.01 s of this observation"})
    stalled.set()
    assert await reader.read(["a", "b"], frozenset({ANY})) == ({"a": frozenset({ANY}), "b": frozenset()}, {})
    assert source.reads == ["a", "b"]


def add(rig: Rig, name: str, **labels: str) -> SimImage:
    return rig.node.add_image(f"r.example/{name}:1", layers=[Layer(name, MIB)], config_labels=labels)


def set_content(rig: Rig, image: SimImage, data: bytes) -> None:
    blobs = rig.node.store.blobs
    blobs[image.id] = replace(blobs[image.id], data=data)


def label_name(rig: Rig, name: str, **labels: str) -> None:
    rig.node.store.names[f"r.example/{name}:1"].labels.update(labels)


async def reasons(rig: Rig, *images: SimImage) -> list[str]:
    preview = await rig.collector.preview(Scope.IMAGES)
    decided = {each.id: each.reason.code.value for plan in preview.plans for each in plan.decisions}
    return [decided[each.id] for each in images]


@pytest.mark.parametrize("options", [{}, {"containerd_api": False}], ids=["containerd", "CRI alone"])
async def test_image_is_kept_by_a_label_of_its_config(rig: Opener, options: dict[str, Any]) -> None:
    async with rig(policy=policy("label:keep=yes"), **options) as made:
        images = add(made, "a", keep="yes"), add(made, "b", keep="no"), add(made, "c")
        found = await reasons(made, *images)
        assert [each == "protected" for each in found] == [True, False, False]
        assert "labels-unknown" not in found


async def test_image_is_kept_by_a_label_of_one_of_its_names(rig: Opener) -> None:
    async with rig(policy=policy("label:keep")) as made:
        images = add(made, "a"), add(made, "b")
        label_name(made, "a", keep="x")
        assert [each == "protected" for each in await reasons(made, *images)] == [True, False]


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        pytest.param(lambda rig, image: rig.node.store.blobs.pop(image.id), "not found", id="missing"),
        pytest.param(lambda rig, image: set_content(rig, image, b"{"), "not JSON", id="not JSON"),
        pytest.param(
            lambda rig, image: set_content(
                rig, image, json.dumps({"config": {"Labels": {"x": "x" * LIMIT_BYTES}}}).encode()
            ),
            "longer than 1048576 bytes",
            id="too long",
        ),
    ],
)
async def test_image_with_an_unreadable_config_is_kept_with_a_warning(
    rig: Opener, change: Callable[[Rig, SimImage], object], cause: str
) -> None:
    async with rig(policy=policy("label:keep")) as made:
        images = add(made, "a"), add(made, "b")
        change(made, images[0])
        preview = await made.collector.preview(Scope.IMAGES)
        decided = {each.id: each.reason for plan in preview.plans for each in plan.decisions}
        assert decided[images[0].id].code.value == "labels-unknown"
        assert cause in decided[images[0].id].sentence
        assert decided[images[1].id].code.value != "labels-unknown"
        (warning,) = [each for each in preview.snapshot.warnings if "labels unknown" in each]
        assert warning.startswith("1 image(s) kept: labels unknown, and a rule names a label: ")


async def test_no_config_is_read_without_a_rule_that_names_a_label(rig: Opener) -> None:
    async with rig(policy=policy("*/app")) as made:
        image = add(made, "a")
        set_content(made, image, b"{")
        assert await reasons(made, image) != ["labels-unknown"]


async def test_label_set_on_a_name_after_the_plan_keeps_the_image(rig: Opener) -> None:
    async with rig(policy=policy("label:keep"), bulk=True) as made:
        image = add(made, "a")
        selected = await made.collector.preview(Scope.IMAGES, ("r.example/a:1",))
        label_name(made, "a", keep="1")
        report = await made.collector.run(selected, trigger="test", stop=asyncio.Event())
        (result,) = report.results
        assert (result.decision.id, result.outcome) == (image.id, Outcome.CHANGED)
        assert "protected by label:keep" in result.detail


async def test_label_hold_placed_after_the_plan_keeps_the_image(rig: Opener) -> None:
    holds: list[Hold] = []
    async with rig(policy=policy(), bulk=True, read_holds=lambda: tuple(holds)) as made:
        add(made, "a", keep="yes")
        selected = await made.collector.preview(Scope.IMAGES, ("r.example/a:1",))
        now = made.node.now
        holds.append(Hold("1", "label:keep", "test", "root", now, now.replace(year=now.year + 1)))
        report = await made.collector.run(selected, trigger="test", stop=asyncio.Event())
        assert [each.outcome for each in report.results] == [Outcome.CHANGED]
        assert "labels unknown" in report.results[0].detail


async def test_images_are_removed_by_a_label(rig: Opener) -> None:
    async with rig(policy=policy(), bulk=True) as made:
        image, other = add(made, "a", stage="old"), add(made, "b", stage="new")
        selected = await made.collector.preview(Scope.IMAGES, ("label:stage=old",))
        assert [each.id for each in selected.removals] == [image.id]
        await made.collector.run(selected, trigger="test", stop=asyncio.Event())
        assert image.id not in made.node.images
        assert other.id in made.node.images
