"""Words of a forecast: thresholds close to the capacity, and parts with hardly any share of the growth."""

from __future__ import annotations

import pytest

from nodeagent.api.outlook import GrowthDocument
from nodeagent.trend.words import driver, short_resource, threshold_words
from tests.unit.outlooks import HARD, forecast, outlook


@pytest.mark.parametrize(
    ("used", "at"), [(900, "90%"), (994, "99%"), (995.9, "99.5%"), (999.99, "99.9%"), (1000, "100%")]
)
def test_threshold_below_the_capacity_is_not_shown_as_100_percent(used: float, at: str) -> None:
    assert threshold_words(outlook(capacity=1000), forecast(HARD, used)).startswith(f"eviction at {at} in ")


@pytest.mark.parametrize(
    ("resource", "name"),
    [
        ("imagefs.available", "imagefs"),
        ("nodefs.inodesFree", "nodefs inodes"),
        ("swap.free", "swap"),
        ("imagefs.available on /a.free", "imagefs on /a.free"),
        ("imagefs", "imagefs"),
    ],
)
def test_used_resource_is_not_named_as_free_or_available(resource: str, name: str) -> None:
    assert short_resource(resource) == name


@pytest.mark.parametrize(("share", "words"), [(0.8, "80% by shop/web"), (0.002, "")])
def test_part_with_less_than_a_percent_of_the_growth_is_not_named(share: float, words: str) -> None:
    growth = (GrowthDocument(part="shop/web", rate_per_s=1.0, share=share),)
    assert driver(outlook(growth=growth)) == words
