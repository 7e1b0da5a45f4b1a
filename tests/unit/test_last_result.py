"""Reuse of the last result of a function for identical arguments."""

from __future__ import annotations

import pytest

from nodeagent.last_result import keep_last_result


def test_function_is_called_once_for_the_same_objects_and_again_for_equal_ones() -> None:
    calls: list[tuple[int, ...]] = []

    @keep_last_result
    def total(numbers: tuple[int, ...], factor: int) -> int:
        calls.append(numbers)
        return sum(numbers) * factor

    first, equal = (1, 2), tuple([1, 2])  # noqa: C409 - equal, but a different object
    assert [total(first, 1), total(first, 1), total(equal, 1), total(equal, 2), total(first, 1)] == [3, 3, 3, 6, 3]
    assert calls == [first, equal, equal, first]


def test_failed_call_is_not_kept() -> None:
    failures = [ValueError("first"), None]

    @keep_last_result
    def fail_once(_argument: tuple[int, ...]) -> str:
        error = failures.pop(0)
        if error is not None:
            raise error
        return "done"

    argument = (1,)
    with pytest.raises(ValueError, match="first"):
        fail_once(argument)
    assert [fail_once(argument), fail_once(argument)] == ["done", "done"]


def test_result_without_arguments_and_a_result_of_none_are_kept() -> None:
    calls: list[None] = []

    @keep_last_result
    def nothing() -> None:
        calls.append(None)

    nothing()
    nothing()
    assert len(calls) == 1
