"""Cache of a function's last result, for arguments that are the same objects as in the previous call."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from operator import is_
from typing import Final, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_NONE: Final = object()


def keep_last_result(function: Callable[P, T]) -> Callable[P, T]:
    """Return a wrapper that reuses the last result while all positional arguments are the same objects.

    The function must be pure, and its arguments and result immutable. The last arguments and the last result are kept
    in memory. Keyword arguments are not compared and must not be used. Calls in several threads are safe, but may
    compute a result twice.
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
