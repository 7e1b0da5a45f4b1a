"""Admission of connections: limits per user and in total, with capacity reserved for root.

A server that is full sheds the connection that has been sending its request for the longest time: a complete request
arrives within milliseconds, so an unfinished request is the most likely to be slow or hostile. The connection of a
complete request is never shed. The bodies of all users but root share one limit: above it, unfinished requests of the
user with the most bytes are shed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from nodeagent.record import Record

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT: Final = 0
_SMALL_BODY_BYTES: Final = 16 << 10
"""A body up to this size is always received, so that large bodies of one user block no request of another user."""
KeyT = TypeVar("KeyT")


class ConnectionLimits(Record):
    """Limits of one server.

    Attributes:
        total: connections of all users but root.
        per_user: connections of one user but root. Clients over TCP count as one user.
        root: connections of root, in addition to ``total``.
        body_bytes: bytes of bodies received so far for unanswered requests of all users but root; larger than the limit
            of one body.
    """

    total: int
    per_user: int
    root: int
    body_bytes: int = 16 << 20


@dataclass(slots=True)
class _Admitted:
    uid: int | None
    unfinished: bool = True
    body_bytes: int = 0

    @property
    def is_large(self) -> bool:
        """Whether the request can be shed for the body of another request."""
        return self.unfinished and self.body_bytes > _SMALL_BODY_BYTES


class Admission(Generic[KeyT]):
    """The admitted connections of one server, by a key of the caller's choice, in the order of their admission."""

    def __init__(self, limits: ConnectionLimits) -> None:
        """Create an admission without connections."""
        self._limits = limits
        self._admitted: dict[KeyT, _Admitted] = {}

    def __len__(self) -> int:
        """Return the number of admitted connections."""
        return len(self._admitted)

    def admit(self, key: KeyT, uid: int | None) -> tuple[bool, tuple[KeyT, ...]]:
        """Admit a connection within the limits, or in place of a connection that is shed.

        Returns:
            Whether the connection is admitted, and the connections to close in its place, which no longer count.
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
        """Record that the request of a connection was received completely; the connection is no longer shed."""
        if key in self._admitted:
            self._admitted[key].unfinished = False

    def receive(self, key: KeyT, size_bytes: int) -> tuple[bool, tuple[KeyT, ...]]:
        """Count the next part of a body; above the limit, shed unfinished requests with large bodies.

        Returns:
            Whether to receive more of the body, and the connections to close in its place, which no longer count.
        """
        own = self._admitted.get(key)
        if own is None:  # the connection was shed before
            return False, ()
        own.body_bytes += size_bytes
        shed: list[KeyT] = []
        if own.uid == ROOT or own.body_bytes <= _SMALL_BODY_BYTES:
            return True, ()
        while self._body_bytes() > self._limits.body_bytes:
            heaviest = max((each.uid for each in self._admitted.values() if each.uid != ROOT), key=self._body_bytes)
            oldest = next((each for each, one in self._admitted.items() if one.uid == heaviest and one.is_large), None)
            if oldest is None or oldest == key:
                return False, tuple(shed)
            shed.append(oldest)
            del self._admitted[oldest]
        return True, tuple(shed)

    def _body_bytes(self, *users: int | None) -> int:
        """Return the total bytes of the bodies of ``users``, or of all users but root."""
        pool = users or {each.uid for each in self._admitted.values()} - {ROOT}
        return sum(each.body_bytes for each in self._admitted.values() if each.uid in pool)

    def release(self, key: KeyT) -> None:
        """Remove a connection; ignore a connection that was shed before."""
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
