"""Faults to order: calls that fail, hang, or find the node changed under them; and a log of all calls."""

from __future__ import annotations

import asyncio
import inspect
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, NamedTuple

from nodeagent.sim.store import RefusedError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable


class Call(NamedTuple):
    """A call that arrived.

    CRI methods go by their own name, containerd's by ``Service.Method`` (``Images.Delete``).
    """

    method: str
    target: str


class _Moment(Enum):
    BEFORE = auto()
    AFTER = auto()


@dataclass(slots=True)
class _Rule:
    method: str
    target: str | None
    times: int | None
    moment: _Moment
    act: Callable[[], object]

    def takes(self, call: Call, moment: _Moment) -> bool:
        """Return whether it applies to this call, and count it if so."""
        if self.moment is not moment or self.method != call.method or self.times == 0:
            return False
        if self.target is not None and self.target != call.target:
            return False
        if self.times is not None:
            self.times -= 1
        return True


@dataclass(slots=True)
class _Waiter:
    call: Call
    any_target: bool
    arrived: asyncio.Event = field(default_factory=asyncio.Event)


class Faults:
    """What goes wrong and when; rules apply in the order they were given, each ``times`` often (``None``: always).

    A ``target`` is compared as the client sends it: an id, a reference, a name; ``None`` means any. Unknown methods
    are refused with ``ValueError``, so that a misspelt rule is no rule that never applies.

    Attributes:
        calls: every call in the order of arrival, refused and failed ones too.
    """

    def __init__(self, methods: Iterable[str]) -> None:
        self.calls: list[Call] = []
        self._methods: Collection[str] = frozenset(methods)
        self._rules: list[_Rule] = []
        self._waiters: list[_Waiter] = []

    def fail(
        self,
        method: str,
        target: str | None = None,
        *,
        times: int | None = 1,
        status: str = "UNKNOWN",
        detail: str = "simulated failure",
    ) -> None:
        """Refuse calls with a gRPC status, before they have an effect."""

        def refuse() -> None:
            raise RefusedError(status, detail)

        self._add(method, target, times, _Moment.BEFORE, refuse)

    def delay(
        self,
        method: str,
        event: asyncio.Event | None = None,
        *,
        target: str | None = None,
        times: int | None = 1,
        effect_first: bool = False,
    ) -> None:
        """Let calls hang until the event is set, or until the client gives up.

        With ``effect_first`` only the answer is late: the node has changed although the client hears nothing.
        """
        waited = event or asyncio.Event()
        self._add(method, target, times, _Moment.AFTER if effect_first else _Moment.BEFORE, waited.wait)

    def before(
        self, method: str, callback: Callable[[], object], *, target: str | None = None, times: int | None = 1
    ) -> None:
        """Do something when the call has arrived and before it is carried out; an awaitable result is awaited."""
        self._add(method, target, times, _Moment.BEFORE, callback)

    def after(
        self, method: str, callback: Callable[[], object], *, target: str | None = None, times: int | None = 1
    ) -> None:
        """Do something when the call was carried out and before it is answered."""
        self._add(method, target, times, _Moment.AFTER, callback)

    def clear(self) -> None:
        """Drop all rules; the log stays."""
        self._rules.clear()

    def count(self, method: str, target: str | None = None) -> int:
        """Return how many such calls arrived."""
        return sum(1 for call in self.calls if call.method == method and target in (None, call.target))

    def targets(self, method: str) -> tuple[str, ...]:
        """Return what calls of a method were about, in the order of arrival."""
        return tuple(call.target for call in self.calls if call.method == method)

    async def arrival(self, method: str, target: str | None = None) -> None:
        """Wait for the next such call."""
        self._check(method)
        waiter = _Waiter(Call(method, target or ""), target is None)
        self._waiters.append(waiter)
        try:
            await waiter.arrived.wait()
        finally:
            self._waiters.remove(waiter)

    async def enter(self, call: Call) -> None:
        """Log a call and apply what was ordered before it; raises RefusedError where that is a failure."""
        self.calls.append(call)
        for waiter in self._waiters:
            if waiter.call == call or (waiter.any_target and waiter.call.method == call.method):
                waiter.arrived.set()
        await self._apply(call, _Moment.BEFORE)

    async def leave(self, call: Call) -> None:
        """Apply what was ordered after a call."""
        await self._apply(call, _Moment.AFTER)

    async def _apply(self, call: Call, moment: _Moment) -> None:
        for rule in tuple(self._rules):
            if not rule.takes(call, moment):
                continue
            result = rule.act()
            if inspect.isawaitable(result):
                await result

    def _add(
        self, method: str, target: str | None, times: int | None, moment: _Moment, act: Callable[[], object]
    ) -> None:
        self._check(method)
        self._rules.append(_Rule(method, target, times, moment, act))

    def _check(self, method: str) -> None:
        if method not in self._methods:
            raise ValueError(f"no method {method!r}; there are {', '.join(sorted(self._methods))}")
