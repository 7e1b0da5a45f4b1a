"""Parsing of the metrics listen address."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from nodeagent.config.validation import convert
from nodeagent.errors import ConfigError
from nodeagent.model.kubernetes import TlsFiles
from nodeagent.settings.settings import DEFAULT_LISTEN, Config, Listen, MetricsSection, MetricsSettings, parse_listen

IPV6_SOME = "2001:db8::1"


@pytest.mark.parametrize(
    ("text", "expected"),
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
def test_valid_address_is_parsed_and_formatted(text: str, expected: Listen | None) -> None:
    assert parse_listen(text) == expected
    if expected is not None:
        assert parse_listen(expected.text) == expected


@pytest.mark.parametrize(
    ("text", "error"),
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
        ("localhost:9100", "'localhost' is not an IP address"),
        ("127.0.0.256:9100", "'127.0.0.256' is not an IP address"),
        ("[127.0.0.1]:9100", "brackets are required for IPv6 and not allowed for IPv4"),
        ("127.0.0.1:0", "the port must be from 1 to 65535"),
        ("127.0.0.1:65536", "the port must be from 1 to 65535"),
        ("127.0.0.1:٣", 'must be "ADDRESS:PORT"'),
        ("unix:metrics.sock", "must be an absolute path after unix:"),
        ("unix:", "must be an absolute path after unix:"),
        ("unix:///", "must be an absolute path after unix:"),
        ("unix:///run/../x", "must be an absolute path after unix:"),
        ("unix:///run/a\0b", "must be an absolute path after unix:"),
        ("unix:///" + "a" * 107, "longer than the maximum of a socket path"),
    ],
)
def test_invalid_address_is_rejected(text: str, error: str) -> None:
    with pytest.raises(ValueError, match=error.replace("[", r"\[")):
        parse_listen(text)


@given(st.text(max_size=60) | st.from_regex(r"(unix:|\[)?[0-9a-f:./\]]{0,30}", fullmatch=True))
def test_any_text_is_parsed_or_rejected(text: str) -> None:
    try:
        found = parse_listen(text)
    except ValueError:
        return
    assert found is None or parse_listen(found.text) == found


def test_default_is_a_loopback_address() -> None:
    assert Config().settings().metrics == MetricsSettings(DEFAULT_LISTEN)
    assert DEFAULT_LISTEN.host == "127.0.0.1"


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"certificate_file": "/c"}, "certificate_file requires certificate_file and key_file"),
        ({"key_file": "/k"}, "key_file requires"),
        ({"client_ca_file": "/a"}, "client_ca_file requires"),
        ({"certificate_file": "/c", "key_file": "/k", "listen": "unix:///run/s"}, "requires a TCP address"),
        ({"certificate_file": "c", "key_file": "/k"}, "must be an absolute path"),
    ],
)
def test_incomplete_tls_files_are_rejected(fields: dict[str, str], error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        convert(MetricsSection, fields)


def test_tls_files_are_part_of_the_endpoint() -> None:
    section = MetricsSection(listen="0.0.0.0:20310", certificate_file="/c", key_file="/k", client_ca_file="/a")
    found = Config(metrics=section).settings().metrics
    assert found.endpoint == (Listen("0.0.0.0", 20310), TlsFiles("/c", "/k", "/a"))
    assert not found.is_open


@pytest.mark.parametrize(
    ("listen", "is_open"),
    [
        ("127.0.0.1:1", False),
        ("[::1]:1", False),
        ("off", False),
        ("unix:///run/s", False),
        ("0.0.0.0:1", True),
        (f"[{IPV6_SOME}]:1", True),
    ],
)
def test_endpoint_without_tls_is_open_at_addresses_that_other_machines_reach(listen: str, is_open: bool) -> None:
    assert Config(metrics=MetricsSection(listen=listen)).settings().metrics.is_open is is_open
