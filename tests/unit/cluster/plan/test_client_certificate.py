"""Steps of a client certificate: time of renewal, one request at a time, and checks of certificates and answers."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, strategies as st

from nodeagent.cluster.plan.client_certificate import (
    CertificateRequest,
    RequestState,
    SigningCondition,
    SigningRequest,
    SigningStatus,
    Step,
    certificate_problem,
    judge_answer,
    next_step,
    renewal_at,
    replacement_wait_s,
)
from nodeagent.model.kubernetes import Certificate

T0 = datetime(2026, 1, 10, tzinfo=UTC)
DAY = Certificate(("O=system:nodes", "CN=system:node:node-1"), T0, T0 + timedelta(days=1))


def request(state: RequestState, age_s: float = 0.0) -> CertificateRequest:
    return CertificateRequest("nodeagent-1", "key", T0 - timedelta(seconds=age_s), state)


@pytest.mark.parametrize(
    ("certificate", "waiting", "hours", "step", "wait_s"),
    [
        (None, None, 0, Step.CREATE, 0),
        (DAY, None, 0, Step.WAIT, 0.8 * 86_400),
        (DAY, None, 0.8 * 24, Step.CREATE, 0),
        (DAY, None, 48, Step.CREATE, 0),
        (None, request(RequestState.UNSENT), 0, Step.SEND, 0),
        (None, request(RequestState.PENDING), 0, Step.POLL, 1),
        (None, request(RequestState.PENDING, 100), 0, Step.POLL, 25),
        (None, request(RequestState.PENDING, 3600), 0, Step.POLL, 60),
        (None, request(RequestState.PENDING, -3600), 0, Step.POLL, 60),
        (DAY, request(RequestState.DENIED), 23, Step.POLL, 60),
        (DAY, request(RequestState.FAILED), 23, Step.POLL, 60),
        (DAY, request(RequestState.REFUSED), 23, Step.POLL, 60),
        (DAY, request(RequestState.UNPROVEN), 23, Step.POLL, 60),
        (DAY, request(RequestState.PENDING), 0, Step.POLL, 1),
    ],
)
def test_next_step(
    certificate: Certificate | None, waiting: CertificateRequest | None, hours: float, step: Step, wait_s: float
) -> None:
    found, found_s = next_step(certificate, waiting, T0 + timedelta(hours=hours), jitter=0.5)
    assert found is step
    assert found_s == pytest.approx(wait_s if hours == 0 or step is not Step.POLL else 60, abs=1e-6)


@given(
    st.timedeltas(timedelta(minutes=1), timedelta(days=3650)),
    st.floats(0, 1),
    st.timedeltas(timedelta(days=-1), timedelta(days=4000)),
)
def test_renewal_starts_after_70_to_90_percent_of_the_validity(
    lasts: timedelta, jitter: float, after: timedelta
) -> None:
    certificate = Certificate(DAY.subject, T0, T0 + lasts)
    assert T0 + lasts * 0.7 <= renewal_at(certificate, jitter) <= T0 + lasts * 0.9
    step, wait_s = next_step(certificate, None, T0 + after, jitter=jitter)
    assert step is (Step.WAIT if T0 + after < renewal_at(certificate, jitter) else Step.CREATE)
    assert wait_s >= 0


@given(
    st.sampled_from(RequestState),
    st.timedeltas(timedelta(days=-400), timedelta(days=400)),
    st.none() | st.just(DAY),
    st.floats(0, 1),
)
def test_no_request_is_created_while_one_exists(
    state: RequestState, after: timedelta, certificate: Certificate | None, jitter: float
) -> None:
    step, wait_s = next_step(certificate, request(state), T0 + after, jitter=jitter)
    assert step in (Step.SEND, Step.POLL)
    assert 0 <= wait_s <= 60
    assert 0 <= replacement_wait_s(request(state), T0 + after) <= 60


@pytest.mark.parametrize(("age_s", "wait_s"), [(0, 60), (20, 40), (60, 0), (3600, 0), (-1, 0), (-3600, 0)])
def test_deleted_request_is_replaced_a_minute_after_its_creation_or_at_once_after_a_clock_set_back(
    age_s: float, wait_s: float
) -> None:
    assert replacement_wait_s(request(RequestState.PENDING, age_s), T0) == wait_s


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (None, "not a certificate"),
        (DAY, ""),
        (Certificate(DAY.subject[::-1], T0, DAY.not_after), ""),
        (Certificate(("CN=system:node:node-1",), T0, DAY.not_after), "is for CN=system:node:node-1, expected"),
        (Certificate((*DAY.subject, "O=system:masters"), T0, DAY.not_after), "system:masters"),
        (Certificate((), T0, DAY.not_after), "an empty subject"),
        (Certificate(DAY.subject, T0, T0), "expired at 2026-01-10T00:00:00.000Z"),
    ],
)
def test_certificate_is_usable_only_for_the_node_and_until_its_end(found: Certificate | None, words: str) -> None:
    problem = certificate_problem(found, "node-1", T0)
    assert words in problem
    assert bool(problem) is bool(words)


@pytest.mark.parametrize(
    ("status", "answer"),
    [
        (SigningStatus(), (RequestState.PENDING, "")),
        (SigningStatus(conditions=(SigningCondition(type="Approved"),)), (RequestState.PENDING, "")),
        (SigningStatus(b"pem", (SigningCondition(type="Approved"),)), (RequestState.UNPROVEN, "")),
        (SigningStatus(conditions=(SigningCondition(type="Denied", reason="A"),)), (RequestState.DENIED, "A")),
        (
            SigningStatus(b"pem", (SigningCondition(type="Denied", reason="A", message="b\nc"),)),
            (RequestState.DENIED, "A: b\\nc"),
        ),
        (SigningStatus(conditions=(SigningCondition(type="Failed", message="m"),)), (RequestState.FAILED, "m")),
    ],
)
def test_answer_of_the_api_server(status: SigningStatus, answer: tuple[RequestState, str]) -> None:
    assert judge_answer(SigningRequest(status=status)) == answer
