"""Where metrics are served: what is understood, and what is refused with the allowed form."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.config.metrics import DEFAULT_LISTEN, Listen, MetricsSettings, parse_listen
from nodeagent.config.models import Config
from nodeagent.config.policies import settings

IPV6_SOME = "2001:db8::1"


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("127.0.0.1:20310", Listen("127.0.0.1", 20310)),
        ("[::1]:80", Listen("::1", 80)),
        (f"[{IPV6_SOME}]:65535", Listen(IPV6_SOME, 65535)),
        ("0.0.0.0:1", Listen("0.0.0.0", 1)),
        ("unix:///run/nodeagent/metrics.sock", Listen(path="/run/nodeagent/metrics.sock")),
        ("unix:/run/nodeagent/metrics.sock", Listen(path="/run/nodeagent/metrics.sock")),
        ("off", None),
    ],
)
def test_a_place_is_understood(text: str, meant: Listen | None) -> None:
    assert parse_listen(text) == meant
    if meant is not None:
        assert parse_listen(meant.text) == meant


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", 'must be "ADDRESS:PORT"'),
        ("9100", 'must be "ADDRESS:PORT"'),
        (":9100", 'must be "ADDRESS:PORT"'),
        ("127.0.0.1", 'must be "ADDRESS:PORT"'),
        ("127.0.0.1:", 'must be "ADDRESS:PORT"'),
        ("127.0.0.1:9100 ", 'must be "ADDRESS:PORT"'),
        ("::1:9100", 'must be "ADDRESS:PORT"'),
        ("http://127.0.0.1:9100", 'must be "ADDRESS:PORT"'),
        ("OFF", 'must be "ADDRESS:PORT"'),
        ("localhost:9100", "'localhost' is no address"),
        ("127.0.0.256:9100", "'127.0.0.256' is no address"),
        ("[127.0.0.1]:9100", "brackets are for addresses of IPv6"),
        ("127.0.0.1:0", "the port must be from 1 to 65535"),
        ("127.0.0.1:65536", "the port must be from 1 to 65535"),
        ("127.0.0.1:٣", 'must be "ADDRESS:PORT"'),
        ("unix:metrics.sock", "must be an absolute path after unix:"),
        ("unix:", "must be an absolute path after unix:"),
        ("unix:///", "must be an absolute path after unix:"),
        ("unix:///run/../x", "must be an absolute path after unix:"),
        ("unix:///run/a\0b", "must be an absolute path after unix:"),
        ("unix:///" + "a" * 107, "has at most 107 bytes"),
    ],
)
def test_what_is_no_place_is_refused(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why.replace("[", r"\[")):
        parse_listen(text)


@given(st.text(max_size=60) | st.from_regex(r"(unix:|\[)?[0-9a-f:./\]]{0,30}", fullmatch=True))
def test_any_text_is_understood_or_refused(text: str) -> None:
    try:
        found = parse_listen(text)
    except ValueError:
        return
    assert found is None or parse_listen(found.text) == found


def test_the_default_is_this_machine_alone() -> None:
    assert settings(Config()).metrics == MetricsSettings(DEFAULT_LISTEN)
    assert DEFAULT_LISTEN.host == "127.0.0.1"
