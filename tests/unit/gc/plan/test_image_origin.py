"""Images that cannot be pulled again: detection, removal order, verdicts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, strategies as st

from nodeagent.gc.plan.image_protection import Irreplaceable, ProtectionPolicy, irreplaceable_images
from nodeagent.gc.plan.images import plan_image_gc
from nodeagent.gc.plan.policy import ImageGCPolicy
from nodeagent.model.decision import ReasonCode
from nodeagent.model.runtime import Image
from nodeagent.record import replace
from tests.unit.builders import DAY_S, codes, decided, digest, filesystem, image, pulled_from, removed, snapshot, used

if TYPE_CHECKING:
    from nodeagent.model.node import NodeSnapshot
    from nodeagent.model.runtime import ImageUsage

IMPORTED: frozenset[str] = frozenset()


def policy(treatment: str = "last", *unreachable: str, **fields: object) -> ImageGCPolicy:
    protection = ProtectionPolicy(irreplaceable=Irreplaceable(treatment), unreachable_registries=unreachable)
    return replace(ImageGCPolicy(protection=protection), **fields)  # type: ignore[arg-type]


def node(used_percent: int, *images: tuple[Image, ImageUsage], imported: str = "", **fields: object) -> NodeSnapshot:
    """Return a node with imported images (ids contained in the string ``imported``) and pulled images."""
    sources = {each.id: IMPORTED if each.id in imported else pulled_from(each) for each, _ in images}
    return snapshot(*images, image_filesystem=filesystem(used_percent), **({"image_sources": sources} | fields))


@pytest.mark.parametrize(
    ("tags", "sources", "cause"),
    [
        pytest.param(["docker.io/library/nginx:1"], {"docker.io/library/nginx"}, "", id="pulled"),
        pytest.param(
            ["docker.io/library/nginx:1"], {"docker.io/library/redis", "docker.io/library/nginx"}, "", id="two"
        ),
        pytest.param(["r.example:5000/app:1"], {"r.example/app"}, "", id="port is not recorded"),
        pytest.param(["[fd00::1]:5000/app:1"], {"fd00::1/app"}, "", id="IPv6 address"),
        pytest.param(["nginx:1"], {"docker.io/library/nginx"}, "", id="short name"),
        pytest.param([], {"r.example/app"}, "", id="untagged, pulled by digest"),
        pytest.param(["r.example/app:1"], set(), "imported or built on this node, never pulled", id="imported"),
        pytest.param([], set(), "imported or built on this node, never pulled", id="untagged, imported"),
        pytest.param(["r.example/app:1", "local/app:1"], {"r.example/app"}, "never pulled as local/app", id="renamed"),
        pytest.param(["r.example/app:1"], {"mirror.example/app"}, "never pulled as r.example/app", id="other registry"),
        pytest.param(["r.example/app:1"], {"r.example/app2"}, "never pulled as r.example/app", id="other repository"),
    ],
)
def test_image_without_a_source_for_one_of_its_names_is_irreplaceable(
    tags: list[str], sources: set[str], cause: str
) -> None:
    listed = Image("a", tuple(tags), ("r.example/app@" + digest("a"),) if not tags else ())
    observed = snapshot(listed, image_sources={"a": frozenset(sources)})
    assert irreplaceable_images(observed, ()).get("a", "") == cause


@pytest.mark.parametrize(
    ("registry", "found"),
    [
        ("r.example:5000", True),
        ("r.example", False),
        ("*.example:*", True),
        ("docker.io", False),
        ("R.example:5000", False),
    ],
)
@pytest.mark.parametrize("reported", [True, False], ids=["containerd", "CRI alone"])
def test_image_of_an_unreachable_registry_is_irreplaceable(registry: str, *, found: bool, reported: bool) -> None:
    listed = image("a", "r.example:5000/app:1")
    observed = snapshot(listed, image_sources={"a": pulled_from(listed)} if reported else None)
    assert bool(irreplaceable_images(observed, (registry,))) == found


class TestLast:
    @pytest.mark.difference("irreplaceable-image")
    def test_imported_images_are_removed_after_all_others(self) -> None:
        images = [(image(each), used(age)) for each, age in (("a", 900), ("b", 800), ("c", 700), ("d", 600))]
        plan = plan_image_gc(node(100, *images, imported="ac"), policy(low_threshold_percent=70))
        assert removed(plan) == ["b", "d", "a"]
        assert codes(plan) == {
            "b": "least-recently-used",
            "d": "least-recently-used",
            "a": "irreplaceable-last",
            "c": "irreplaceable-later",
        }
        assert decided(plan, "a").reason.sentence == (
            "cannot be pulled again: imported or built on this node, never pulled; removed last, as no other image "
            "frees enough"
        )

    def test_imported_images_are_kept_if_others_free_enough(self) -> None:
        plan = plan_image_gc(node(90, (image("a"), used(9)), (image("b"), used(1)), imported="a"), policy())
        assert codes(plan) == {"b": "least-recently-used", "a": "irreplaceable-later"}

    @pytest.mark.parametrize(
        ("young_mib", "expected"),
        [
            pytest.param(200, [], id="enough"),
            pytest.param(50, ["a", "b"], id="too little"),
            pytest.param(150, ["a"], id="b is kept"),
        ],
    )
    def test_imported_images_are_kept_while_images_of_the_minimum_age_will_free_enough(
        self, young_mib: int, expected: list[str]
    ) -> None:
        images = [(image("a"), used(9)), (image("b"), used(8)), (image("new", size_mib=young_mib), used(seen_s=1))]
        plan = plan_image_gc(node(100, *images, imported="ab"), policy(high_threshold_percent=90))
        assert removed(plan) == expected

    @pytest.mark.parametrize(("low", "expected"), [(70, ["b", "a", "c"]), (69, ["b"])])
    def test_imported_images_are_kept_if_the_low_threshold_is_not_reached_with_them(
        self, low: int, expected: list[str]
    ) -> None:
        images = [(image(each), used(age)) for each, age in (("a", 900), ("b", 800), ("c", 700))]
        plan = plan_image_gc(node(100, *images, imported="ac"), policy(low_threshold_percent=low))
        assert removed(plan) == expected
        assert plan.shortfall_bytes == (0 if "a" in expected else 210 << 20)
        if expected == ["b"]:
            assert decided(plan, "a").reason.sentence == (
                "cannot be pulled again: imported or built on this node, never pulled; kept, since too little space is "
                "freed even with its removal"
            )

    def test_limits_per_pass_do_not_count_against_imported_images(self) -> None:
        images = [(image(each), used(age)) for each, age in (("a", 900), ("c", 700))]
        plan = plan_image_gc(node(100, *images, imported="ac"), policy(max_images_per_pass=1))
        assert codes(plan) == {"a": "irreplaceable-last", "c": "limit-images-per-pass"}

    def test_imported_images_are_kept_if_the_removal_of_another_image_failed(self) -> None:
        images = [(image("a"), used(9)), (image("b"), used(8))]
        plan = plan_image_gc(node(90, *images, imported="a"), policy(), failed={"b": "busy"})
        assert codes(plan) == {"a": "irreplaceable-later", "b": "failed-earlier"}

    @pytest.mark.difference("irreplaceable-image")
    def test_imported_images_are_not_removed_by_age(self) -> None:
        images = [(image("a"), used(9 * DAY_S, seen_s=9 * DAY_S)), (image("b"), used(9 * DAY_S, seen_s=9 * DAY_S))]
        plan = plan_image_gc(node(10, *images, imported="a"), policy(maximum_unused_age_s=DAY_S))
        assert codes(plan) == {"b": "unused-too-long", "a": "irreplaceable-later"}

    def test_removal_of_all_unused_images_states_the_irreplaceable_ones(self) -> None:
        images = [(image("a"), used(9)), (image("b"), used(8))]
        plan = plan_image_gc(node(10, *images, imported="a"), policy(), remove_all_unused=True)
        assert [(each.id, each.reason.code.value) for each in plan.removals] == [
            ("b", "all-unused"),
            ("a", "irreplaceable-unused"),
        ]

    def test_image_of_small_gain_is_tried_again_before_imported_ones(self) -> None:
        images = [(image("a"), used(9)), (image("b", size_mib=1), used(8)), (image("c", size_mib=60), used(7))]
        plan = plan_image_gc(node(90, *images, imported="a"), policy(minimum_gain_bytes=2 << 20))
        assert removed(plan) == ["c", "a"]


class TestNever:
    @pytest.mark.parametrize("remove_all_unused", [False, True])
    def test_imported_images_are_kept(self, *, remove_all_unused: bool) -> None:
        images = [(image("a"), used(9 * DAY_S, seen_s=9 * DAY_S)), (image("b"), used(8))]
        plan = plan_image_gc(
            node(99, *images, imported="a"),
            policy("never", maximum_unused_age_s=DAY_S),
            remove_all_unused=remove_all_unused,
        )
        assert (removed(plan), codes(plan)["a"]) == (["b"], "irreplaceable")

    def test_every_image_is_kept_on_a_runtime_that_reports_no_origin(self) -> None:
        plan = plan_image_gc(node(99, (image("a"), used(9)), image_sources=None), policy("never"))
        assert codes(plan) == {"a": "origin-unknown"}
        assert "origin of images unknown" in plan.warnings[0]


def test_imported_images_are_removed_in_order_of_use_if_ignored() -> None:
    images = [(image("a"), used(9)), (image("b"), used(1))]
    plan = plan_image_gc(node(85, *images, imported="a"), policy("ignore"))
    assert (removed(plan), codes(plan)["a"]) == (["a"], "least-recently-used")


def test_image_of_unknown_origin_is_kept_where_origins_are_reported() -> None:
    images = [(image("a"), used(9)), (image("b"), used(1))]
    plan = plan_image_gc(node(99, *images, image_sources={"b": frozenset({"registry.example/b"})}), policy())
    assert codes(plan) == {"b": "least-recently-used", "a": "origin-unknown"}


def test_plan_with_removals_states_that_the_runtime_reports_no_origin() -> None:
    observed = node(90, (image("a"), used(9)), image_sources=None)
    assert removed(plan_image_gc(observed, policy())) == ["a"]
    assert "imported images are removed like others" in plan_image_gc(observed, policy()).warnings[0]
    assert not plan_image_gc(replace(observed, image_filesystem=filesystem(10)), policy()).warnings
    assert not plan_image_gc(observed, policy("ignore")).warnings


@given(
    imported=st.lists(st.booleans(), min_size=6, max_size=6),
    used_percent=st.integers(0, 100),
    minimum_gain=st.sampled_from([0, 60 << 20]),
)
def test_no_imported_image_is_removed_before_an_image_that_can_be_pulled(
    imported: list[bool], used_percent: int, minimum_gain: int
) -> None:
    images = [(image(str(number), size_mib=50 + number * 10), used(number + 1)) for number in range(6)]
    names = "".join(str(number) for number, each in enumerate(imported) if each)
    observed = node(used_percent, *images, imported=names)
    last = removed(plan_image_gc(observed, policy(minimum_gain_bytes=minimum_gain)))
    order = [each in names for each in last]
    assert order == sorted(order)
    never = plan_image_gc(observed, policy("never", minimum_gain_bytes=minimum_gain))
    assert not set(removed(never)) & set(names)
    kept = {each.id for each in never.decisions if each.reason.code is ReasonCode.IRREPLACEABLE}
    assert kept == set(names)
