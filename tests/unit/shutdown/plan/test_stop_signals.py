"""Stop signals of images by name and number."""

from __future__ import annotations

import pytest

from nodeagent.shutdown.plan.planner import signal_number


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("SIGTERM", 15),
        ("SIGQUIT", 3),
        ("quit", 3),
        (" WINCH ", 28),
        ("3", 3),
        ("SIGRTMIN", 34),
        ("SIGRTMIN+3", 37),
        ("RTMAX-2", 62),
        ("64", 64),
        ("", None),
        ("0", None),
        ("65", None),
        ("SIGRTMIN-1", None),
        ("SIGRTMAX+1", None),
        ("SIGRTMIN+", None),
        ("SIGNOTHING", None),
        ("SIG", None),
        ("-9", None),
        ("\u0663", None),
        ("SIGSIGTERM", None),
        ("9" * 5000, None),
    ],
)
def test_signal_of_a_stop_signal_in_an_image(name: str, number: int | None) -> None:
    assert signal_number(name) == number
