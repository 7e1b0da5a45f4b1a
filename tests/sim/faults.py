"""Fault injection: calls that fail, hang, or race with a change of the node; and a log of the received calls."""

from __future__ import annotations

import asyncio
import inspect
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, NamedTuple

from google.protobuf.message import Message

from tests.sim.store import RefusedError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable


class Call(NamedTuple):
    """gRPC call received by the simulated runtime.

    The method name of a CRI call is the RPC name alone (``RemoveImage``); for containerd's own API it is
    ``Service.Method`` (``Images.Delete``).
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

    def applies(self, call: Call, moment: _Moment) -> bool:
        """Return whether the rule applies to a call; a call to which it applies is counted."""
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
    """Rules for injected faults, applied in the order of their creation, each ``times`` times (``None``: always).

    A ``target`` is compared with the id, reference or name in the request; ``None`` matches any. Unknown methods raise
    ``ValueError``, since a misspelt rule would never apply.

    Attributes:
        calls: all received calls in order, including refused and failed ones.
        methods: names of the methods of the server.
    """

    def __init__(self, methods: Iterable[str]) -> None:
        self.calls: list[Call] = []
        self.methods: Collection[str] = frozenset(methods)
        self._rules: list[_Rule] = []
        self._alterations: dict[str, Callable[[Message], Message]] = {}
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
        """Fail calls with a gRPC status, before they have an effect."""

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
        """Block calls until the event is set or the client cancels the call.

        With ``effect_first`` only the response is delayed: the call changes the node without a confirmation to the
        client.
        """
        release = event or asyncio.Event()
        self._add(method, target, times, _Moment.AFTER if effect_first else _Moment.BEFORE, release.wait)

    def before(
        self, method: str, callback: Callable[[], object], *, target: str | None = None, times: int | None = 1
    ) -> None:
        """Run a callback before a call takes effect; an awaitable result is awaited."""
        self._add(method, target, times, _Moment.BEFORE, callback)

    def after(
        self, method: str, callback: Callable[[], object], *, target: str | None = None, times: int | None = 1
    ) -> None:
        """Run a callback after a call took effect and before its response; an awaitable result is awaited."""
        self._add(method, target, times, _Moment.AFTER, callback)

    def alter(self, method: str, change: Callable[[Message], Message]) -> None:
        """Replace the responses of a method, for example by incomplete responses; the node is unchanged.

        ``change`` must not modify its argument, which may be a cached response.
        """
        self._check(method)
        self._alterations[method] = change

    def altered(self, call: Call, response: object) -> object:
        """Return the response of a call, replaced if :meth:`alter` was called for its method."""
        change = self._alterations.get(call.method)
        return response if change is None or not isinstance(response, Message) else change(response)

    def clear(self) -> None:
        """Remove all rules; the call log is kept."""
        self._rules.clear()
        self._alterations.clear()

    def count(self, method: str, target: str | None = None) -> int:
        """Return the number of received calls of a method, with any target or the given one."""
        return sum(1 for call in self.calls if call.method == method and target in (None, call.target))

    def targets(self, method: str) -> tuple[str, ...]:
        """Return the targets of the received calls of a method, in order."""
        return tuple(call.target for call in self.calls if call.method == method)

    async def arrival(self, method: str, target: str | None = None) -> None:
        """Wait for the next call of a method, with any target or the given one."""
        self._check(method)
        waiter = _Waiter(Call(method, target or ""), target is None)
        self._waiters.append(waiter)
        try:
            await waiter.arrived.wait()
        finally:
            self._waiters.remove(waiter)

    async def enter(self, call: Call) -> None:
        """Log a call and apply the rules before its effect.

        Raises:
            RefusedError: a rule of :meth:`fail` applies to the call.
        """
        self.calls.append(call)
        for waiter in self._waiters:
            if waiter.call == call or (waiter.any_target and waiter.call.method == call.method):
                waiter.arrived.set()
        await self._apply(call, _Moment.BEFORE)

    async def leave(self, call: Call) -> None:
        """Apply the rules after the effect of a call."""
        await self._apply(call, _Moment.AFTER)

    async def _apply(self, call: Call, moment: _Moment) -> None:
        for rule in tuple(self._rules):
            if not rule.applies(call, moment):
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
        if method not in self.methods:
            raise ValueError(f"unknown method {method!r}; known methods: {', '.join(sorted(self.methods))}")
