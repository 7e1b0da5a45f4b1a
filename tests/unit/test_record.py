"""Records: immutable values with typed fields."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest

from nodeagent.record import KeyedRecord, Record, field, replace
from tests.support.modules import import_all

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


class Point(Record):
    x: int
    labels: Mapping[str, str] = field(default_factory=dict)


class Shown(KeyedRecord):
    number: int
    text: str = ""

    @property
    def equality_key(self) -> tuple[object, ...]:
        return (self.number,)


class Other(Shown):
    pass


def subclasses(kind: type[Record]) -> Iterator[type[Record]]:
    for each in kind.__subclasses__():
        yield each
        yield from subclasses(each)


def test_record_cannot_be_changed() -> None:
    point = Point(1)
    with pytest.raises(AttributeError, match="immutable"):
        point.x = 2  # type: ignore[misc]


def test_records_with_equal_fields_are_equal() -> None:
    assert Point(1) == Point(1, {}) != Point(2)


def test_record_with_a_key_is_equal_and_hashed_by_its_key() -> None:
    assert Shown(1, "1") == Shown(1, "one") != Shown(2, "1")
    assert len({Shown(1, "1"), Shown(1, "one"), Shown(2)}) == 2
    assert Shown(1) != Other(1)


def test_replaced_record_differs_in_the_named_field_only() -> None:
    assert replace(Point(1, {"a": "b"}), x=2) == Point(2, {"a": "b"})


def test_unknown_field_is_not_replaced() -> None:
    with pytest.raises(TypeError, match="z"):
        replace(Point(1), z=1)  # type: ignore[call-arg]


def test_no_record_has_a_field_of_dataclasses_as_its_default() -> None:
    """Check all records: a ``dataclasses.field`` in a record would itself become the default value."""
    import_all()
    found = {
        f"{kind.__module__}.{kind.__name__}"
        for kind in subclasses(Record)
        if any(isinstance(each, dataclasses.Field) for each in kind.__struct_defaults__)
    }
    assert found == set()
