"""Collection ahead of the forecast: when it starts, its amount, and the images whose use is expected."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, strategies as st

from nodeagent.gc.plan.image_protection import Irreplaceable, ProtectionPolicy
from nodeagent.gc.plan.images import plan_image_gc
from nodeagent.gc.plan.policy import ImageGCPolicy
from nodeagent.model.clock import ClockTrust
from nodeagent.model.node import CollectionForecast
from nodeagent.model.runtime import ImageUsage, Space
from nodeagent.record import replace
from tests.unit.builders import (
    DAY_S,
    MIB,
    ago,
    codes,
    decided,
    filesystem,
    graph,
    image,
    image_filesystem,
    piece,
    removed,
    snapshot,
)
from tests.unit.gc_strategies import EXAMPLES, images as some_images
from tests.unit.image_nodes import aged, node

if TYPE_CHECKING:
    from nodeagent.model.node import NodeSnapshot
    from nodeagent.model.runtime import Image

HOUR_S = 3600.0
JUMPED = ClockTrust(jumped_at=ago(60), untrusted_until=ago(-540))
POLICY = ImageGCPolicy(low_threshold_percent=60, collect_ahead_s=2 * HOUR_S)
OLD = [aged(name, age_s) for name, age_s in (("a", 9 * HOUR_S), ("b", 8 * HOUR_S), ("c", 7 * HOUR_S))]


def growth(mib_per_hour: float, *, age_s: float = 60.0) -> CollectionForecast:
    """Return a forecast of 1000 MiB of imagefs; its threshold of 85% is met above 840 MiB."""
    return CollectionForecast(ago(age_s), mib_per_hour * MIB / HOUR_S)


def growing(
    *images: object, left_mib: int = 40, forecast: CollectionForecast | None = None, **fields: Any
) -> NodeSnapshot:
    """Return a node of old images on imagefs that grows by 50 MiB an hour, ``left_mib`` below its threshold."""
    fields.setdefault("image_filesystem", filesystem(available_bytes=(160 + left_mib) * MIB))
    return node(*(images or OLD), collection_forecast=forecast or growth(50), **fields)


def test_images_are_removed_for_the_time_ahead_in_order_of_use() -> None:
    plan = plan_image_gc(growing(), POLICY)
    assert removed(plan) == ["a"]
    assert plan.ahead_available_bytes is not None
    assert abs(plan.ahead_available_bytes - (160 + 100) * MIB) <= 1
    assert plan.wanted_bytes == plan.shortfall_bytes == 0
    assert not plan.ends_undo
    assert codes(plan) == {"a": "collect-ahead", "b": "enough-freed", "c": "enough-freed"}
    assert plan.removals[0].reason.sentence == (
        "least recently used; by the forecast imagefs is 85% full in 48m, within collect_ahead 2h"
    )


@pytest.mark.parametrize(
    ("left_mib", "mib_per_hour", "expected"),
    [
        pytest.param(101, 50, [], id="met after the time ahead"),
        pytest.param(99, 50, ["a"], id="met within it"),
        pytest.param(1, 50, ["a"], id="99 MiB needed, images of 100 MiB"),
        pytest.param(39, 72, ["a", "b"], id="105 MiB needed"),
        pytest.param(39, 300, ["a", "b"], id="561 MiB needed, but 161 MiB above the low threshold"),
    ],
)
def test_amount_is_the_growth_of_the_time_ahead(left_mib: int, mib_per_hour: float, expected: list[str]) -> None:
    policy = replace(POLICY, low_threshold_percent=64)
    plan = plan_image_gc(growing(left_mib=left_mib, forecast=growth(mib_per_hour)), policy)
    assert removed(plan) == expected


@pytest.mark.parametrize(
    ("left_mib", "low_percent", "wanted_mib"),
    [
        pytest.param(99, 70, 15, id="2% of the use, 1 MiB needed"),
        pytest.param(70, 70, 30, id="30 MiB needed"),
        pytest.param(20, 80, 20, id="down to the low threshold"),
        pytest.param(25, 80, None, id="too close to the low threshold"),
    ],
)
def test_least_amount_shows_in_the_record(left_mib: int, low_percent: int, wanted_mib: int | None) -> None:
    images = [aged("a", DAY_S, size_mib=1000)]
    plan = plan_image_gc(growing(*images, left_mib=left_mib), replace(POLICY, low_threshold_percent=low_percent))
    found = plan.ahead_available_bytes
    assert (None if found is None else round(found / MIB) - 160 - left_mib) == wanted_mib


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        pytest.param({}, "collect-ahead", id="as forecast"),
        pytest.param({"policy": ImageGCPolicy()}, "below-high-threshold", id="disabled by default"),
        pytest.param({"collection_forecast": None}, "below-high-threshold", id="no forecast"),
        pytest.param({"forecast": growth(50, age_s=1801)}, "below-high-threshold", id="forecast too old"),
        pytest.param({"forecast": growth(50, age_s=-1801)}, "below-high-threshold", id="forecast of the future"),
        pytest.param({"forecast": growth(19)}, "below-high-threshold", id="expected time is later"),
        pytest.param({"policy": replace(POLICY, high_threshold_percent=100)}, "threshold-disabled", id="no threshold"),
        pytest.param({"image_filesystem": filesystem(90)}, "least-recently-used", id="threshold met: the usual pass"),
        pytest.param({"image_filesystem": filesystem(50)}, "below-high-threshold", id="far below the threshold"),
        pytest.param({"image_filesystem": None}, "filesystem-unreadable", id="unreadable"),
        pytest.param(
            {"clock": JUMPED},
            "below-high-threshold",
            id="untrusted clock",
        ),
        pytest.param(
            {
                "image_filesystem": filesystem(81),
                "image_filesystems": (image_filesystem("/a", 81, ""), image_filesystem("/b", 10, "overlayfs")),
                "storage": graph([piece("la", 100)], {"a": ["la"]}),
            },
            "below-high-threshold",
            id="several image filesystems",
        ),
    ],
)
def test_first_image_is_collected_ahead_only_with_a_forecast_of_the_threshold(
    change: dict[str, Any], expected: str
) -> None:
    fields = {key: value for key, value in change.items() if key not in ("policy", "collection_forecast")}
    made = growing(**fields)
    if "collection_forecast" in change:
        made = replace(made, collection_forecast=None)
    assert codes(plan_image_gc(made, change.get("policy", POLICY)))["a"] == expected


def kept_text(made: tuple[Image, object]) -> str:
    """Return the reason to keep an image beside others that free enough; empty if it is removed."""
    plan = plan_image_gc(growing(made, *(aged(f"z{each}", HOUR_S * 4) for each in range(2))), POLICY)
    decision = decided(plan, made[0].id)
    return decision.reason.sentence if decision.reason.code.value == "use-expected" else ""


@pytest.mark.parametrize(
    ("usage", "text"),
    [
        pytest.param(ImageUsage(ago(DAY_S), ago(7201)), "", id="used before the time ahead"),
        pytest.param(
            ImageUsage(ago(DAY_S), ago(7140)), "no use observed for 1h59m, less than collect_ahead", id="used within it"
        ),
        pytest.param(ImageUsage(ago(7201)), "", id="pulled before, never used"),
        pytest.param(ImageUsage(ago(3600)), "no use observed for 1h, less than collect_ahead", id="pulled within it"),
        pytest.param(
            ImageUsage(ago(DAY_S), ago(23 * HOUR_S), pauses_s=(100.0, DAY_S)),
            "used again after a pause of 1d before, last used 23h ago",
            id="used again after such a pause",
        ),
        pytest.param(
            ImageUsage(ago(DAY_S), ago(25 * HOUR_S), pauses_s=(DAY_S,)),
            "used again after a pause of 1d before, last used 1d1h ago",
            id="use is late",
        ),
        pytest.param(ImageUsage(ago(DAY_S), ago(12 * HOUR_S), pauses_s=(DAY_S,)), "", id="next use is later"),
        pytest.param(ImageUsage(ago(DAY_S), ago(30 * HOUR_S), pauses_s=(DAY_S,)), "", id="use did not come"),
    ],
)
def test_image_whose_use_is_expected_within_the_time_is_kept(usage: ImageUsage, text: str) -> None:
    found = kept_text((image("a"), usage))
    assert found == (f"not collected ahead of the threshold: {text}" if text else "")


@pytest.mark.parametrize(
    "fields", [{"image_use_observed_since": None}, {"image_use_observed_since": ago(7100)}, {"image_usage": {}}]
)
def test_nothing_is_collected_ahead_before_use_was_observed_for_the_time(fields: dict[str, Any]) -> None:
    plan = plan_image_gc(growing(**fields), POLICY)
    assert removed(plan) == []
    assert plan.ahead_available_bytes is None


def test_nothing_is_removed_if_the_candidates_do_not_free_enough() -> None:
    plan = plan_image_gc(growing(*OLD[:1], left_mib=39, forecast=growth(72)), POLICY)
    assert codes(plan) == {"a": "below-high-threshold"}
    (warning,) = plan.warnings
    assert warning == (
        "by the forecast imagefs meets its threshold within 2h, but images without expected use do not free 105 MiB; "
        "none is removed before the threshold"
    )


def test_irreplaceable_image_is_never_collected_ahead() -> None:
    made = growing()
    made = replace(made, image_sources={**(made.image_sources or {}), "a": frozenset()})
    policy = replace(POLICY, protection=ProtectionPolicy(irreplaceable=Irreplaceable.LAST))
    assert codes(plan_image_gc(made, policy)) == {"a": "irreplaceable-later", "b": "collect-ahead", "c": "enough-freed"}


@pytest.mark.parametrize("field", ["pending", "undo"])
def test_space_freed_without_a_removal_counts(field: str) -> None:
    pieces = graph([piece(f"l{each}", 100) for each in "abc"], {each: [f"l{each}"] for each in "abc"})
    for freed_mib, expected in ((60, list[str]()), (59, ["a"])):
        freed: dict[str, Any] = {field: {"overlayfs": Space(freed_mib * MIB)}}
        assert removed(plan_image_gc(growing(storage=replace(pieces, **freed)), POLICY)) == expected


def test_removals_by_age_count() -> None:
    policy = replace(POLICY, maximum_unused_age_s=8.5 * HOUR_S)
    plan = plan_image_gc(growing(), policy)
    assert codes(plan) == {"a": "unused-too-long", "b": "below-high-threshold", "c": "below-high-threshold"}


@EXAMPLES
@given(some_images(), st.integers(0, 1000), st.floats(0.1, 2000), st.integers(600, 86_400))
def test_never_more_than_a_pass_at_the_threshold_removes(
    made: tuple[tuple[Image, ...], dict[str, ImageUsage]], used_mib: int, rate: float, ahead_s: int
) -> None:
    listed, usage = made
    before = snapshot(
        *listed,
        image_usage=usage,
        image_filesystem=filesystem(available_bytes=(1000 - used_mib) * MIB),
        collection_forecast=growth(rate),
    )
    ahead = plan_image_gc(before, ImageGCPolicy(collect_ahead_s=ahead_s))
    without = plan_image_gc(before, ImageGCPolicy())
    if not 816 < used_mib <= 840 or ahead.ahead_available_bytes is None:
        assert removed(ahead) == removed(without)
        return
    assert removed(without) == []
    kept = {each.id for each in plan_image_gc(before, ImageGCPolicy(), remove_all_unused=True).decisions}
    kept -= {each.id for each in plan_image_gc(before, ImageGCPolicy(), remove_all_unused=True).removals}
    assert not kept.intersection(removed(ahead))
    assert sum(each.frees_bytes or 0 for each in ahead.removals[:-1]) < (used_mib - 800) * MIB
    assert all((usage[each].last_used or usage[each].first_detected) <= ago(ahead_s) for each in removed(ahead))
