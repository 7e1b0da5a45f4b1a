"""Findings of ``nodeagent doctor`` on lines of logind's files without effect."""

from __future__ import annotations

from pathlib import PurePath

import pytest

from nodeagent.doctor.plan.logind import check_logind_lines
from nodeagent.doctor.plan.node import Grade
from nodeagent.model.node import LogindLine

MAIN, LATER = PurePath("/etc/systemd/logind.conf"), PurePath("/usr/lib/systemd/logind.conf.d/20-vendor.conf")
KEY = "InhibitDelayMaxSec"


def line(section: str, key: str, delay_s: int | None = None, path: PurePath = MAIN, unread: str = "") -> LogindLine:
    delay_us = None if delay_s is None else delay_s * 1_000_000
    return LogindLine(path, 4, section, key, "60" if delay_s is None else str(delay_s), delay_us, unread)


UNREAD = line("Login", KEY, path=PurePath("/etc/logind.conf"), unread="logind does not read /etc/logind.conf")
RULES = {
    "outside-of-a-section": (line("", KEY), f"{KEY}=60 has no effect: outside of a section"),
    "section-in-lower-case": (line("login", KEY), f"{KEY}=60 has no effect: in the section [login]"),
    "key-in-lower-case": (line("Login", KEY.lower()), "inhibitdelaymaxsec=60 has no effect: unknown key"),
    "property-of-the-bus": (line("Login", "InhibitDelayMaxUSec"), "InhibitDelayMaxUSec=60 has no effect: unknown key"),
    "misspelt-key": (line("Login", "InhibitorDelayMaxSec"), "InhibitorDelayMaxSec=60 has no effect: unknown key"),
    "key-without-unit": (line("Login", "InhibitDelayMax"), "InhibitDelayMax=60 has no effect: unknown key"),
    "key-of-another-setting": (line("Login", "InhibitorsMax"), ""),
    "key-with-a-common-end": (line("Login", "UserStopDelaySec"), ""),
    "no-equals-sign": (
        LogindLine(MAIN, 4, "Login", f"{KEY} 60", None),
        f"{KEY} 60 has no effect: it has no equals sign",
    ),
    "colon": (LogindLine(MAIN, 4, "Login", f"{KEY}: 60", None), f"{KEY}: 60 has no effect: it has no equals sign"),
    "text-without-equals-sign": (LogindLine(MAIN, 4, "Login", "Inhibit the shutdown", None), ""),
    "effective": (line("Login", KEY, 60), ""),
    "invalid-value": (line("Login", KEY), ""),  # a warning of the reader
}


@pytest.mark.parametrize(("read", "evidence"), RULES.values(), ids=RULES)
@pytest.mark.parametrize("too_short", [False, True])
def test_line_without_effect_is_named_with_file_and_line(read: LogindLine, evidence: str, *, too_short: bool) -> None:
    found = list(check_logind_lines([read], [], too_short=too_short))
    assert [each.evidence.startswith(f"{MAIN}:4: {evidence}") for each in found] == ([True] if evidence else [])
    assert all(each.check == "logind-files" and each.verdict is Grade.WARNING and each.fix for each in found)


def test_line_in_an_unread_file_is_reported_with_the_reason() -> None:
    (found,) = check_logind_lines([], [UNREAD, line("Login", "Other", unread="x")], too_short=False)
    assert found.evidence == f"/etc/logind.conf:4: {KEY}=60 has no effect: logind does not read /etc/logind.conf"


@pytest.mark.parametrize(
    ("first_s", "later_s", "too_short", "is_reported"),
    [(60, 10, True, True), (60, 10, False, False), (10, 20, True, False), (10, 10, True, False)],
)
def test_higher_limit_overridden_by_a_later_file_is_reported_only_with_a_too_short_limit(
    first_s: int, later_s: int, *, too_short: bool, is_reported: bool
) -> None:
    lines = [line("Login", KEY, first_s), line("Login", KEY, later_s, LATER)]
    found = [each.evidence for each in check_logind_lines(lines, [UNREAD], too_short=too_short)]
    expected = f"{MAIN}:4: {KEY}={first_s} has no effect: {LATER}:4, read later, sets {later_s}"
    assert (expected in found, len(found)) == (is_reported, 1 + is_reported)


@pytest.mark.parametrize(
    ("hidden_s", "too_short", "is_reported"), [(60, True, True), (60, False, False), (5, True, False)]
)
def test_higher_limit_in_a_hidden_file_is_reported_only_with_a_too_short_limit(
    hidden_s: int, *, too_short: bool, is_reported: bool
) -> None:
    hidden = line("Login", KEY, hidden_s, LATER, unread=f"{MAIN} replaces the file")
    found = [each.evidence for each in check_logind_lines([line("Login", KEY, 10)], [hidden], too_short=too_short)]
    expected = f"{LATER}:4: {KEY}={hidden_s} has no effect: {MAIN} replaces the file"
    assert found == ([expected] if is_reported else [])


def test_long_value_is_shortened() -> None:
    (found,) = check_logind_lines([LogindLine(MAIN, 1, "x" * 999, KEY, "9" * 999)], [], too_short=False)
    assert len(found.evidence) < 250
