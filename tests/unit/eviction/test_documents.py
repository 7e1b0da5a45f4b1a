"""Decoding of eviction records in the history, written by the current and by older versions."""

from __future__ import annotations

from typing import Any

import pytest

from nodeagent.api.common import DocumentError
from nodeagent.eviction.documents import RecordedEviction

RANKED = {"rank": 1, "name": "shop/big", "usage": 500, "request": 100, "priority": 0, "reason": "low-on-resource"}
RECORD: dict[str, Any] = {
    "threshold": {"threshold": "memory.available<100Mi", "capacity": 1000, "met": True},
    "ranking": [RANKED | {"facts": {}, "assumed": []}],
    "available_before": 10,
    "available_after": None,
}


def test_record_is_decoded_without_its_unprinted_fields() -> None:
    record = RecordedEviction.of(RECORD)
    assert record.threshold is not None
    assert (record.threshold.threshold, record.threshold.capacity) == ("memory.available<100Mi", 1000)
    assert [(each.name, each.usage) for each in record.ranking] == [("shop/big", 500)]
    assert (record.available_before, record.available_after) == (10, None)


def test_record_of_an_older_version_has_defaults() -> None:
    assert RecordedEviction.of({"victim": "uid"}) == RecordedEviction()


def test_record_with_a_wrong_type_is_an_error_that_names_the_field() -> None:
    with pytest.raises(DocumentError, match=r"at `\$.ranking\[0\].rank`"):
        RecordedEviction.of(RECORD | {"ranking": [RANKED | {"rank": "first"}]})
