"""Effective ``InhibitDelayMaxSec`` in logind's configuration files."""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING

import pytest

from nodeagent.errors import InhibitorError
from nodeagent.host.logind_config import (
    DEFAULT_DELAY_US,
    own_drop_in,
    parse_span_us,
    read_delay,
    read_unread_lines,
    write_drop_in,
)
from nodeagent.units import USEC_INFINITY

if TYPE_CHECKING:
    from pathlib import Path

ETC, RUN, LOCAL, LIB = "etc/systemd", "run/systemd", "usr/local/lib/systemd", "usr/lib/systemd"


def put(root: Path, name: str, text: str) -> Path:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def login(seconds: object) -> str:
    return f"[Login]\nInhibitDelayMaxSec={seconds}\n"


def winner(root: Path) -> tuple[str, int]:
    delay = read_delay(root).winner
    assert delay is not None
    assert delay.delay_us is not None
    return str(delay.path.relative_to(root)), delay.delay_us // 10**6


@pytest.mark.parametrize(
    ("text", "delay_us"),
    [
        ("5", 5_000_000),
        ("30s", 30_000_000),
        ("2min 200ms", 120_200_000),
        ("1h30m", 5_400_000_000),
        ("55s500ms", 55_500_000),
        ("2 h", 7_200_000_000),
        ("300ms20s 5day", 432_020_300_000),
        ("1.5", 1_500_000),
        (".5s", 500_000),
        ("5 3", 8_000_000),
        ("+5", 5_000_000),
        ("1M", 2_629_800_000_000),
        ("1m", 60_000_000),
        ("7\u00b5s", 7),
        ("0", 0),
        ("infinity", USEC_INFINITY),
        (" 30 ", 30_000_000),
    ],
)
def test_time_span_is_parsed(text: str, delay_us: int) -> None:
    assert parse_span_us(text) == delay_us


@pytest.mark.parametrize(
    "text", ["", " ", "-5", "abc", "5x", "5 # five", "12.34.56", "5.", "1e3", "1,5", "\u0665", "9" * 30]
)
def test_invalid_time_span_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="is not a time span"):
        parse_span_us(text)


def test_default_delay_without_a_setting(tmp_path: Path) -> None:
    delay = read_delay(tmp_path)
    assert (delay.winner, delay.delay_us, delay.warnings) == (None, DEFAULT_DELAY_US, ())


def test_main_file_of_the_first_directory_is_effective(tmp_path: Path) -> None:
    put(tmp_path, f"{LIB}/logind.conf", login(7))
    assert winner(tmp_path) == (f"{LIB}/logind.conf", 7)
    put(tmp_path, f"{ETC}/logind.conf", login(8))
    assert winner(tmp_path) == (f"{ETC}/logind.conf", 8)
    assert read_delay(tmp_path).overridden == ()


def test_drop_in_overrides_the_main_file(tmp_path: Path) -> None:
    put(tmp_path, f"{ETC}/logind.conf", login(60))
    put(tmp_path, f"{LIB}/logind.conf.d/10-vendor.conf", login(10))
    assert winner(tmp_path) == (f"{LIB}/logind.conf.d/10-vendor.conf", 10)
    assert [each.delay_us for each in read_delay(tmp_path).overridden] == [60_000_000]


def test_drop_ins_are_ordered_by_name_across_directories(tmp_path: Path) -> None:
    put(tmp_path, f"{ETC}/logind.conf.d/99-kubelet.conf", login(60))
    put(tmp_path, f"{LIB}/logind.conf.d/unattended-upgrades-logind-maxdelay.conf", login(30))
    assert winner(tmp_path) == (f"{LIB}/logind.conf.d/unattended-upgrades-logind-maxdelay.conf", 30)


def test_drop_in_of_the_first_directory_replaces_others_of_its_name(tmp_path: Path) -> None:
    for seconds, directory in enumerate((LIB, LOCAL, RUN, ETC), start=1):
        put(tmp_path, f"{directory}/logind.conf.d/50-x.conf", login(seconds))
        assert winner(tmp_path) == (f"{directory}/logind.conf.d/50-x.conf", seconds)
        assert read_delay(tmp_path).overridden == ()


@pytest.mark.parametrize("mask_by", ["link", "empty", "other-key"])
def test_file_without_a_setting_masks_others_of_its_name(tmp_path: Path, mask_by: str) -> None:
    put(tmp_path, f"{LIB}/logind.conf.d/99-x.conf", login(60))
    put(tmp_path, f"{RUN}/logind.conf.d/10-x.conf", login(10))
    if mask_by == "link":
        mask = tmp_path / ETC / "logind.conf.d/99-x.conf"
        mask.parent.mkdir(parents=True)
        mask.symlink_to("/dev/null")
    else:
        put(tmp_path, f"{ETC}/logind.conf.d/99-x.conf", "" if mask_by == "empty" else "[Login]\nKillUserProcesses=no\n")
    assert winner(tmp_path) == (f"{RUN}/logind.conf.d/10-x.conf", 10)


@pytest.mark.parametrize("name", ["99-x.conf.bak", ".99-x.conf", "99-x", "README"])
def test_files_with_another_suffix_are_ignored(tmp_path: Path, name: str) -> None:
    put(tmp_path, f"{ETC}/logind.conf.d/{name}", login(60))
    assert read_delay(tmp_path).winner is None


def test_directories_and_dangling_links_are_ignored(tmp_path: Path) -> None:
    (tmp_path / ETC / "logind.conf.d/a.conf").mkdir(parents=True)
    (tmp_path / ETC / "logind.conf.d/b.conf").symlink_to("nowhere")
    put(tmp_path, f"{LIB}/logind.conf.d/b.conf", login(10))
    assert winner(tmp_path) == (f"{LIB}/logind.conf.d/b.conf", 10)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("[Login]\n InhibitDelayMaxSec = 9 \n", 9),
        ("[Login]\nInhibitDelayMaxSec=9\nInhibitDelayMaxSec=10\n", 10),
        ("# [Login]\n[Login]\n#InhibitDelayMaxSec=5\n;InhibitDelayMaxSec=6\nInhibitDelayMaxSec=11\n", 11),
        ("[Login]\nInhibitDelayMaxSec=1min \\\n# a comment between the lines\n 5s\n", 65),
        ("[Login]\r\nInhibitDelayMaxSec=12\r\n", 12),
        ("[Login]\nInhibitDelayMaxSec=13", 13),
        ("\ufeff[Login]\nInhibitDelayMaxSec=14\n", 14),
        ("[Login]\nInhibitDelayMaxSec=15\n[Other]\nInhibitDelayMaxSec=16\n", 15),
        ("[Login]\nInhibitDelayMaxSec=17\ninhibitdelaymaxsec=18\nnonsense\n", 17),
    ],
    ids=["spaces", "twice", "comments", "continued", "crlf", "no-newline", "bom", "other-section", "other-key"],
)
def test_configuration_syntax_is_parsed(tmp_path: Path, text: str, seconds: int) -> None:
    put(tmp_path, f"{ETC}/logind.conf", text)
    assert winner(tmp_path) == (f"{ETC}/logind.conf", seconds)


@pytest.mark.parametrize("value", ["", "soon", "-1"])
def test_value_ignored_by_logind_is_reported(tmp_path: Path, value: str) -> None:
    put(tmp_path, f"{ETC}/logind.conf", login(9))
    bad = put(tmp_path, f"{ETC}/logind.conf.d/99-bad.conf", login(value))
    delay = read_delay(tmp_path)
    assert winner(tmp_path) == (f"{ETC}/logind.conf", 9)
    assert delay.warnings == (f"{bad}:2: InhibitDelayMaxSec={value} is not a time span; logind ignores it",)


def test_huge_file_is_reported_and_not_read(tmp_path: Path) -> None:
    put(tmp_path, f"{ETC}/logind.conf", "#" * (2 << 20) + "\n" + login(9))
    delay = read_delay(tmp_path)
    assert delay.winner is None
    assert "larger than" in delay.warnings[0]


def test_assignment_has_the_number_of_its_first_line_and_its_section(tmp_path: Path) -> None:
    put(
        tmp_path, f"{ETC}/logind.conf", "A=1\n# comment\n[Login]\n\nB=\\\n# comment\n 2\nC = 3\nnonsense\n[Other\nD=4\n"
    )
    found = [(each.number, each.section, each.key, each.value) for each in read_delay(tmp_path).lines]
    assert found == [(1, "", "A", "1"), (5, "Login", "B", "2"), (8, "Login", "C", "3"), (9, "Login", "nonsense", None)]


@pytest.mark.parametrize(
    ("name", "unread"),
    [
        ("etc/logind.conf", "logind does not read /etc/logind.conf"),
        ("etc/logind.conf.d/a.conf", "logind does not read /etc/logind.conf.d"),
        ("etc/systemd/logind.d/a.conf", "logind does not read /etc/systemd/logind.d"),
        ("etc/systemd/system.conf", "logind does not read /etc/systemd/system.conf"),
        ("etc/systemd/system/logind.conf.d/a.conf", "logind does not read /etc/systemd/system/logind.conf.d"),
        (
            "etc/systemd/system/systemd-logind.service.d/a.conf",
            "logind does not read /etc/systemd/system/systemd-logind.service.d",
        ),
        (f"{ETC}/logind.conf.d/99-x", "the name of the file does not end with .conf"),
        (f"{LIB}/logind.conf.d/99-x.cfg", "the name of the file does not end with .conf"),
        (f"{ETC}/logind.conf", ""),
        (f"{ETC}/logind.conf.d/a.conf", ""),
        (f"{ETC}/logind.conf.d/a.conf.bak", ""),
        (f"{ETC}/logind.conf.d/a.conf~", ""),
        (f"{ETC}/logind.conf.d/.a", ""),
    ],
)
def test_assignment_in_an_unread_file_is_returned_with_the_reason(tmp_path: Path, name: str, unread: str) -> None:
    path = put(tmp_path, name, login(60))
    found = [(each.place, each.value, each.delay_us, each.unread) for each in read_unread_lines(tmp_path)]
    assert found == ([(f"{path}:2", "60", None, unread)] if unread else [])


def test_link_from_an_unread_directory_to_a_read_file_is_left_out(tmp_path: Path) -> None:
    path = put(tmp_path, f"{ETC}/logind.conf.d/a.conf", login(60))
    (tmp_path / "etc/logind.conf.d").symlink_to(path.parent)
    assert read_unread_lines(tmp_path) == ()


@pytest.mark.parametrize("bad", [b"[Other", b"A=\xff"], ids=["section-header", "not-utf-8"])
def test_nothing_after_a_line_that_logind_cannot_parse_is_read(tmp_path: Path, bad: bytes) -> None:
    path = put(tmp_path, f"{ETC}/logind.conf.d/10.conf", "")
    path.write_bytes(b"#\xff\n" + login(20).encode() + bad + b"\n" + login(30).encode())
    put(tmp_path, f"{ETC}/logind.conf.d/20.conf", login(40))
    assert winner(tmp_path) == (f"{ETC}/logind.conf.d/10.conf", 20)
    (warning,) = read_delay(tmp_path).warnings
    assert warning.startswith(f"{path}:4: ")
    assert warning.endswith("systemd reads nothing after this line, nor any later file of logind")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("[Login]\nA=\\\\\nInhibitDelayMaxSec=9", 9),
        ("[Login]\nA=\\ \nInhibitDelayMaxSec=9", 9),
        ("[Login]\nA=\x0cInhibitDelayMaxSec=8\nInhibitDelayMaxSec=9", 9),
        ("[Login]\nInhibitDelayMaxSec=9\nA=\u2028InhibitDelayMaxSec=8", 9),
        ("[Login]\rInhibitDelayMaxSec=9\0A=1", 9),
    ],
    ids=["two-backslashes", "space-after-backslash", "form-feed", "line-separator", "carriage-return"],
)
def test_lines_end_and_continue_as_in_systemd(tmp_path: Path, text: str, seconds: int) -> None:
    put(tmp_path, f"{ETC}/logind.conf", text)
    assert winner(tmp_path) == (f"{ETC}/logind.conf", seconds)


def test_line_of_a_hidden_file_is_returned_with_its_delay_and_the_file_that_hides_it(tmp_path: Path) -> None:
    main = put(tmp_path, f"{ETC}/logind.conf", login(9))
    old = put(tmp_path, f"{LIB}/logind.conf", login(10))
    first = put(tmp_path, f"{RUN}/logind.conf.d/logind.conf", "[Login]\n#")
    later = put(tmp_path, f"{LOCAL}/logind.conf.d/logind.conf", login(20))
    mask = tmp_path / ETC / "logind.conf.d/m.conf"
    mask.parent.mkdir()
    mask.symlink_to("/dev/null")
    masked = put(tmp_path, f"{LIB}/logind.conf.d/m.conf", login(30))
    same = tmp_path / LIB / "logind.conf.d/logind.conf"
    same.symlink_to(first)
    assert [(each.path, each.delay_us, each.unread) for each in read_unread_lines(tmp_path)] == [
        (old, 10_000_000, f"{main} replaces the file"),
        (later, 20_000_000, f"{first} replaces the file"),
        (masked, 30_000_000, f"{mask} masks the file"),
    ]


def test_masked_main_file_hides_the_main_file_of_other_directories(tmp_path: Path) -> None:
    put(tmp_path, f"{LIB}/logind.conf", login(60))
    mask = tmp_path / ETC / "logind.conf"
    mask.parent.mkdir(parents=True)
    mask.symlink_to("/dev/null")
    assert read_delay(tmp_path).winner is None
    assert [each.unread for each in read_unread_lines(tmp_path)] == [f"{mask} masks the file"]


# --- the agent's drop-in


@pytest.mark.parametrize(
    "others",
    [
        [],
        ["99-kubelet.conf"],
        ["unattended-upgrades-logind-maxdelay.conf"],
        ["zz-other.conf"],
        ["zzzz.conf", "zz.conf"],
        ["~last.conf"],
        ["\u00fcber.conf", "zz-nodeagent.conf"],
    ],
)
def test_own_drop_in_sorts_last_and_is_effective(tmp_path: Path, others: list[str]) -> None:
    for name in others:
        put(tmp_path, f"{LIB}/logind.conf.d/{name}", login(1))
    drop_in = own_drop_in(45, tmp_path)
    assert not drop_in.path.exists()
    write_drop_in(drop_in)
    delay = read_delay(tmp_path)
    assert delay.winner is not None
    assert (delay.winner.path, delay.delay_us) == (drop_in.path, 45_000_000)
    assert drop_in.path.parent == tmp_path / ETC / "logind.conf.d"
    assert own_drop_in(50, tmp_path).path == drop_in.path


def test_own_drop_in_is_world_readable_and_the_only_file_written(tmp_path: Path) -> None:
    drop_in = own_drop_in(45, tmp_path)
    write_drop_in(drop_in)
    write_drop_in(own_drop_in(46, tmp_path))
    assert stat.S_IMODE(drop_in.path.stat().st_mode) == 0o644
    assert [each.name for each in drop_in.path.parent.iterdir()] == ["zz-nodeagent.conf"]
    assert "InhibitDelayMaxSec=46\n" in drop_in.path.read_text()


def test_failed_write_of_the_drop_in_is_reported(tmp_path: Path) -> None:
    put(tmp_path, f"{ETC}/logind.conf.d", "a file in place of the directory")
    with pytest.raises(InhibitorError, match=r"cannot write .*zz-nodeagent.conf: (File exists|Not a directory)"):
        write_drop_in(own_drop_in(45, tmp_path))
