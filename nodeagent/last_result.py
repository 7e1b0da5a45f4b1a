"""Reuse of a function's last result, for objects of a large node that are the same as at the previous call."""

from __future__ import annotations

from functools import wraps
from operator import is_
from typing import TYPE_CHECKING, Final, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

P = ParamSpec("P")
T = TypeVar("T")

_NONE: Final = object()


def keep_last_result(function: Callable[P, T]) -> Callable[P, T]:
    """Return a function that returns its last result again while its positional arguments are the same objects.

    The function must be pure, and the arguments and the result immutable. The last arguments and the result stay in
    memory. It is called without keywords. Calls in several threads are safe, and may compute a result twice.
    """
    last: tuple[tuple[object, ...], object] = ((), _NONE)

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        nonlocal last
        arguments, result = last
        if result is _NONE or len(arguments) != len(args) or not all(map(is_, arguments, args)):
            result = function(*args, **kwargs)
            last = args, result
        return result  # type: ignore[return-value]  # the result of an earlier call of the same function

    return call
