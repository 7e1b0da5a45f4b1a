"""Admission of connections: limits per user and in all, with capacity reserved for root.

A server that is full sheds the connection that has been sending its request for the longest time: a complete request
arrives within milliseconds, so an unfinished one is the most likely to be slow or hostile. The connection of a complete
request is never shed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from nodeagent.record import Record

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT: Final = 0
KeyT = TypeVar("KeyT")


class ConnectionLimits(Record):
    """Limits of one server.

    Attributes:
        total: connections of all users but root.
        per_user: connections of one user but root. Clients over TCP count as one user.
        root: connections of root, in addition.
    """

    total: int
    per_user: int
    root: int


@dataclass(slots=True)
class _Admitted:
    uid: int | None
    unfinished: bool = True


class Admission(Generic[KeyT]):
    """The admitted connections of one server, by a key of the caller's choice, in the order of their admission."""

    def __init__(self, limits: ConnectionLimits) -> None:
        """Start without connections."""
        self._limits = limits
        self._admitted: dict[KeyT, _Admitted] = {}

    def __len__(self) -> int:
        """Return the number of admitted connections."""
        return len(self._admitted)

    def admit(self, key: KeyT, uid: int | None) -> tuple[bool, tuple[KeyT, ...]]:
        """Admit a connection within the limits, or in place of one to shed.

        Returns:
            Whether it is admitted, and the connections to close for it, which no longer count.
        """
        shed: list[KeyT] = []
        for pool, limit in self._pools(uid):
            inside = [each for each, admitted in self._admitted.items() if pool(admitted.uid) and each not in shed]
            if len(inside) >= limit:
                oldest = next((each for each in inside if self._admitted[each].unfinished), None)
                if oldest is None:
                    return False, ()
                shed.append(oldest)
        for each in shed:
            del self._admitted[each]
        self._admitted[key] = _Admitted(uid)
        return True, tuple(shed)

    def finish_request(self, key: KeyT) -> None:
        """Record that the request of a connection was received completely; it is not shed from now on."""
        if key in self._admitted:
            self._admitted[key].unfinished = False

    def release(self, key: KeyT) -> None:
        """Remove a connection; ignore one that was shed before."""
        self._admitted.pop(key, None)

    def _pools(self, uid: int | None) -> Iterator[tuple[_Pool, int]]:
        if uid == ROOT:
            yield _Pool(only=ROOT), self._limits.root
            return
        yield _Pool(only=uid), self._limits.per_user
        yield _Pool(without=ROOT), self._limits.total


class _Pool(Record):
    """Connections that count against one limit."""

    only: int | None = -1
    without: int = -1

    def __call__(self, uid: int | None) -> bool:
        return uid != self.without if self.without >= 0 else uid == self.only
