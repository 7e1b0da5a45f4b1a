"""Admission of connections: limits per user and in total, reserve for root, choice of the connection to close."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from nodeagent.daemon.http.server import ROOT, Admission, ConnectionLimits

LIMITS = ConnectionLimits(total=4, per_user=2, root=2)


def filled(*uids: int | None, answered: tuple[int, ...] = ()) -> Admission[int]:
    """Return the state after connections 0, 1, ... of users ``uids``; connections in ``answered`` had a request."""
    made: Admission[int] = Admission(LIMITS)
    for key, uid in enumerate(uids):
        assert made.admit(key, uid) == (True, ())
        if key in answered:
            made.finish_request(key)
    return made


@pytest.mark.parametrize(
    ("before", "answered", "uid", "expected"),
    [
        ((), (), 1, (True, ())),
        ((1,), (), 1, (True, ())),
        ((1, 1), (), 1, (True, (0,))),
        ((1, 1), (0,), 1, (True, (1,))),
        ((1, 1), (0, 1), 1, (False, ())),
        ((1, 1), (0, 1), 2, (True, ())),
        ((1, 1, 2, 2), (), 3, (True, (0,))),
        ((1, 1, 2, 2), (0, 1, 2, 3), 3, (False, ())),
        ((1, 1, 2, 2), (0, 1, 2, 3), ROOT, (True, ())),
        ((ROOT, ROOT), (), ROOT, (True, (0,))),
        ((ROOT, ROOT), (0, 1), ROOT, (False, ())),
        ((ROOT, ROOT), (0, 1), 1, (True, ())),
        ((None, None), (), None, (True, (0,))),
    ],
    ids=[
        "first",
        "below-the-limit-per-user",
        "oldest-unfinished-of-the-user-is-shed",
        "answered-one-is-not-shed",
        "all-answered-refuses",
        "other-user",
        "total-sheds-the-oldest-of-all",
        "total-all-answered-refuses",
        "root-has-its-reserve",
        "root-sheds-its-own",
        "root-has-a-limit",
        "root-takes-nothing-from-others",
        "tcp-clients-are-one-user",
    ],
)
def test_connection_over_a_limit_replaces_an_unanswered_one_or_is_refused(
    before: tuple[int | None, ...], answered: tuple[int, ...], uid: int | None, expected: tuple[bool, tuple[int, ...]]
) -> None:
    assert filled(*before, answered=answered).admit(99, uid) == expected


@given(st.lists(st.tuples(st.sampled_from([None, ROOT, 1, 2, 3]), st.booleans(), st.booleans()), max_size=40))
def test_limits_are_never_exceeded_and_answered_connections_never_shed(
    steps: list[tuple[int | None, bool, bool]],
) -> None:
    admission: Admission[int] = Admission(LIMITS)
    present: dict[int, int | None] = {}
    answered: set[int] = set()
    for key, (uid, finishes, leaves) in enumerate(steps):
        admitted, shed = admission.admit(key, uid)
        assert not set(shed) & answered
        assert all((present.pop(each) == ROOT) is (uid == ROOT) for each in shed)
        if admitted:
            present[key] = uid
        if admitted and finishes:
            admission.finish_request(key)
            answered.add(key)
        if leaves and present:
            first = next(iter(present))
            admission.release(first)
            del present[first]
        users = [each for each in present.values() if each != ROOT]
        assert len(users) <= LIMITS.total
        assert all(users.count(each) <= LIMITS.per_user for each in users)
        assert len(present) - len(users) <= LIMITS.root
        assert len(admission) == len(present)


MIB = 1 << 20
SMALL = 16 << 10
LARGE = 16 * MIB
"""Size in bytes of the limit on request bodies of all users except root."""


@pytest.mark.parametrize(
    ("bodies", "answered", "expected"),
    [
        (((1, LARGE - 1),), (), (True, ())),
        (((1, LARGE),), (), (False, ())),
        (((1, MIB), (1, LARGE - MIB)), (), (True, (0,))),
        (((1, MIB), (1, LARGE - MIB)), (0,), (False, ())),
        (((2, MIB), (1, 9 * MIB), (2, LARGE - 10 * MIB)), (), (True, (1,))),
        (((1, LARGE - SMALL), (2, SMALL)), (0,), (False, ())),
        (((1, LARGE), (2, SMALL - 1)), (0,), (True, ())),
        (((ROOT, LARGE), (ROOT, LARGE)), (), (True, ())),
        (((ROOT, LARGE), (1, LARGE - 1)), (), (True, ())),
        (((None, MIB), (None, LARGE - MIB)), (), (True, (0,))),
    ],
    ids=[
        "at-the-limit",
        "single-one-above-the-limit",
        "older-of-the-same-user-is-shed",
        "complete-one-is-not-shed",
        "user-with-the-most-bytes-loses-its-own",
        "large-one-of-another-user-is-refused-beside-complete-ones",
        "small-one-is-always-received",
        "root-has-no-limit",
        "bytes-of-root-do-not-count",
        "tcp-clients-are-one-user",
    ],
)
def test_next_byte_over_the_limit_on_bodies_replaces_an_unfinished_one_or_is_refused(
    bodies: tuple[tuple[int | None, int], ...], answered: tuple[int, ...], expected: object
) -> None:
    admission: Admission[int] = Admission(ConnectionLimits(total=4, per_user=4, root=4))
    for key, (uid, size_bytes) in enumerate(bodies):
        admission.admit(key, uid)
        assert admission.receive(key, size_bytes) == (True, ())
        if key in answered:
            admission.finish_request(key)
    assert admission.receive(len(bodies) - 1, 1) == expected


def test_body_of_a_released_connection_no_longer_counts() -> None:
    admission: Admission[int] = Admission(LIMITS)
    for key in (0, 1):
        admission.admit(key, 1)
        assert admission.receive(key, LARGE) == (True, ())
        admission.release(key)
    assert admission.receive(0, 1) == (False, ())
