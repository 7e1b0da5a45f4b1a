"""``doctor`` check of the metrics listener: reachability, TLS, client certificates."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from nodeagent.doctor.plan.node import Grade, check_certificate, check_listener

NOW = datetime(2026, 3, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("listen", "remote", "tls", "clients", "verdict", "words"),
    [
        ("", False, False, False, Grade.SKIPPED, "off"),
        ("127.0.0.1:1", False, False, False, Grade.OK, "127.0.0.1:1"),
        ("0.0.0.0:1", True, False, False, Grade.WARNING, "without encryption and authentication"),
        ("0.0.0.0:1", True, True, False, Grade.WARNING, "without authentication"),
        ("0.0.0.0:1", True, True, True, Grade.OK, "TLS with client certificates"),
        ("127.0.0.1:1", False, True, False, Grade.OK, "TLS"),
    ],
)
def test_listener_reachable_from_other_machines_requires_tls_and_client_certificates(  # noqa: PLR0917 - parametrized
    listen: str,
    remote: bool,
    tls: bool,
    clients: bool,
    verdict: Grade,
    words: str,
) -> None:
    finding = check_listener(listen, is_remote=remote, has_tls=tls, has_client_ca=clients)
    assert finding.verdict is verdict
    assert words in finding.evidence
    assert bool(finding.fix) is (verdict is Grade.WARNING)


@pytest.mark.parametrize(
    ("problem", "days", "verdict", "words"),
    [
        ("no key", 30, Grade.PROBLEM, "no key"),
        ("", 30, Grade.OK, "127"),
        ("", None, Grade.OK, "127"),
        ("", 3, Grade.WARNING, "expires at 2026-03-04"),
        ("", 0, Grade.PROBLEM, "expired at 2026-03-01"),
    ],
)
def test_unusable_and_expired_certificates_are_problems(
    problem: str, days: int | None, verdict: Grade, words: str
) -> None:
    listener = check_listener("127.0.0.1:1", is_remote=False, has_tls=True, has_client_ca=True)
    until = None if days is None else NOW + timedelta(days=days)
    finding = check_certificate(listener, problem, until, NOW)
    assert finding.verdict is verdict
    assert words in finding.evidence
