"""Values, lines and imports in containerd's configuration files."""

from __future__ import annotations

import errno
import os
import socket
import time
from pathlib import Path, PurePath

import pytest

from nodeagent.host.containerd_config import ContainerdFiles, find_containerd_files, read_containerd_config
from nodeagent.model.node import ContainerdConfig

MAIN = "etc/containerd/config.toml"


def put(root: Path, name: str, content: str | bytes) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())


def read(root: Path, *, patterns_in_directory: bool = False) -> ContainerdConfig:
    files = ContainerdFiles(root=root, directory="/srv", is_running=True)
    config = read_containerd_config(files, patterns_in_directory=patterns_in_directory)
    assert config is not None
    return config


def paths(config: ContainerdConfig) -> list[str]:
    return [str(file[0].path).removeprefix("/etc/containerd/") for file in config.files if file]


TEXT = """\
version = 2  # one

x = { a = 1, b.c = [ "d" ], e = {} }
list = [
  "[no-header]",
]
[plugins."io.containerd.grpc.v1.cri"] # comment
  sandbox_image = '''
[no.header]
'''
  "quoted key"."a.b" = true

[[a.b]]
c = 1979-05-27
[ d . "e.f" ]
"""


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_every_value_has_its_first_line_and_its_keys(tmp_path: Path, end: str) -> None:
    put(tmp_path, MAIN, TEXT.replace("\n", end))
    (file,) = read(tmp_path).files
    cri = ("plugins", "io.containerd.grpc.v1.cri")
    assert [(each.number, each.keys) for each in file] == [
        (1, ("version",)),
        (3, ("x", "a")),
        (3, ("x", "b", "c")),
        (3, ("x", "e")),
        (4, ("list",)),
        (7, cri),
        (8, (*cri, "sandbox_image")),
        (11, (*cri, "quoted key", "a.b")),
        (13, ("a", "b")),
        (14, ("a", "b", "c")),
        (15, ("d", "e.f")),
    ]
    assert (file[0].place, file[3].value, file[6].value) == ("/etc/containerd/config.toml:1", {}, "[no.header]\n")


IMPORTS: dict[str, tuple[dict[str, str], list[str]]] = {
    "list-order": ({MAIN: "imports = ['b', '/etc/containerd/a']", "b": "x=1", "a": "x=1"}, ["config.toml", "b", "a"]),
    "pattern": (
        {MAIN: "imports = ['/etc/containerd/d/*.toml']", "d/b.toml": "x=1", "d/.a.toml": "x=1", "d/c.conf": "x=1"},
        ["config.toml", "d/.a.toml", "d/b.toml"],
    ),
    "pattern-of-directories": (
        {MAIN: "imports = ['**/*.x']", "d/b.x": "x=1", "d-/a.x": "x=1", "d/e/c.x": "x=1", "f.x": "x=1"},
        ["config.toml", "d/b.x", "d-/a.x"],
    ),
    "nested-after-the-others": (
        {
            MAIN: "imports = ['b', 'a']",
            "b": "imports=['d/c']",
            "a": "x=1",
            "d/c": "imports=['../b', 'e']",
            "d/e": "x=1",
        },
        ["config.toml", "b", "a", "d/c", "d/e"],
    ),
    "itself": ({MAIN: "imports = ['config.toml', './d/../config.toml']"}, ["config.toml"]),
    "pattern-without-match": ({MAIN: "imports = ['d/*']"}, ["config.toml"]),
    "in-a-table": ({MAIN: "x=1\n[a]\nimports = ['b']", "b": "x=1"}, ["config.toml"]),
}


@pytest.mark.parametrize(("files", "expected"), IMPORTS.values(), ids=IMPORTS)
def test_imports_are_read_in_the_order_of_containerd(
    tmp_path: Path, files: dict[str, str], expected: list[str]
) -> None:
    for name, text in files.items():
        put(tmp_path, name if name == MAIN else f"etc/containerd/{name}", text)
    config = read(tmp_path)
    assert (paths(config), config.faults) == (expected, ())


def test_relative_pattern_of_an_old_release_is_relative_to_the_working_directory(tmp_path: Path) -> None:
    put(tmp_path, MAIN, "imports = ['d/*']")
    put(tmp_path, "etc/containerd/d/a", "x=1")
    put(tmp_path, "srv/d/b", "x=1")
    assert paths(read(tmp_path, patterns_in_directory=True)) == ["config.toml", "/srv/d/b"]


FAULTS: dict[str, tuple[str | bytes, str]] = {
    "missing": (
        "\nimports = ['none.toml']",
        f"/{MAIN}:2: cannot read /etc/containerd/none.toml: No such file or directory",
    ),
    "no-asterisk": ("imports = ['d/?.toml']", f"/{MAIN}:1: cannot read /etc/containerd/d/?.toml: No such file"),
    "directory": ("imports = ['']", f"/{MAIN}:1: cannot read /etc/containerd: Is a directory"),
    "null-character": ('imports = ["\\u0000"]', f"/{MAIN}:1: cannot read /etc/containerd/"),
    "no-list": ("imports = 'a'", f"/{MAIN}:1: imports is no list of paths"),
    "mixed-list": ("imports = [7]", f"/{MAIN}:1: imports is no list of paths"),
    "invalid": ("x = 1\nx = 2", f"/{MAIN}: cannot parse: "),
    "not-utf-8": (b"x = '\xff'", f"cannot read /{MAIN}: not UTF-8 text"),
    "nested-lists": ("x = " + "[" * 9999 + "]" * 9999, f"/{MAIN}: cannot parse: nested too deeply"),
    "nested-keys": (".".join("a" * 2000) + " = 1", f"/{MAIN}: cannot parse: nested too deeply"),
    "huge-number": ("version = 0x" + "f" * 9999, f"/{MAIN}: version: number out of range"),
    "pipe": ("imports = ['pipe']", f"/{MAIN}:1: cannot read /etc/containerd/pipe: not a regular file"),
}


UNKNOWN: dict[str, tuple[str, str]] = {
    "pattern-of-characters": ("imports = ['[a]*']", f"/{MAIN}:1: pattern [a]* is not understood"),
    "null-character-in-a-pattern": ('imports = ["\\u0000*"]', f"/{MAIN}:1: pattern \0* is not understood"),
    "long-value": ("x = [\n" + "1,\n" * 2000 + "]", f"cannot read /{MAIN}: the value in line 1 has too many lines"),
    "huge": ("#" * (2 << 20), f"cannot read /{MAIN}: larger than 131072 bytes"),
}


@pytest.mark.parametrize(("content", "reason"), UNKNOWN.values(), ids=UNKNOWN)
def test_limit_of_the_reader_is_no_fault_of_the_file(tmp_path: Path, content: str, reason: str) -> None:
    put(tmp_path, MAIN, content)
    config = read(tmp_path)
    assert (config.unknown, config.faults) == ((reason,), ())


def test_file_without_permission_to_read_is_no_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> str:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    put(tmp_path, MAIN, "version = 2")
    monkeypatch.setattr("nodeagent.host.containerd_config.read_text", refuse)
    config = read(tmp_path)
    assert (config.unknown, config.faults) == ((f"cannot read /{MAIN}: Permission denied",), ())


@pytest.mark.parametrize(("content", "fault"), FAULTS.values(), ids=FAULTS)
def test_file_that_cannot_be_read_is_a_fault(tmp_path: Path, content: str | bytes, fault: str) -> None:
    put(tmp_path, MAIN, content)
    os.mkfifo(tmp_path / "etc/containerd/pipe")
    (found,) = read(tmp_path).faults
    assert found.startswith(fault)


def test_file_that_was_changed_after_the_start_of_the_process_is_named(tmp_path: Path) -> None:
    put(tmp_path, MAIN, "imports = ['a', 'b']")
    put(tmp_path, "etc/containerd/a", "x=1")
    put(tmp_path, "etc/containerd/b", "x=1")
    for name, at_s in ((MAIN, 100), ("etc/containerd/a", 101), ("etc/containerd/b", 102)):
        os.utime(tmp_path / name, (at_s, at_s))
    config = read_containerd_config(ContainerdFiles(root=tmp_path, is_running=True, started_s=100))
    assert config is not None
    assert config.changed == ("/etc/containerd/b",)


def test_number_of_files_is_limited(tmp_path: Path) -> None:
    put(tmp_path, MAIN, "imports = ['d/*']")
    for number in range(201):
        put(tmp_path, f"etc/containerd/d/{number}", "x=1")
    assert read(tmp_path).unknown == (f"/{MAIN}: more than 200 files are imported",)


def test_files_of_the_directory_of_drop_ins_that_no_import_names_are_unread(tmp_path: Path) -> None:
    put(tmp_path, MAIN, "imports = ['conf.d/*.toml']")
    for name in ("a.toml", "b.conf", "c.toml~", ".d", "e.bak"):
        put(tmp_path, f"etc/containerd/conf.d/{name}", "x = 1")
    put(tmp_path, "etc/containerd/conf.d/f.conf", "x = ")
    (unread,) = read(tmp_path).unread
    assert [each.path for each in unread] == [PurePath("/etc/containerd/conf.d/b.conf")]


def test_missing_default_file_is_the_default_configuration_only_of_an_accessible_process(tmp_path: Path) -> None:
    running = ContainerdFiles(root=tmp_path, is_running=True)
    assert read_containerd_config(running) == ContainerdConfig()
    assert read_containerd_config(ContainerdFiles(root=tmp_path)) is None
    named = read_containerd_config(ContainerdFiles("/a", is_named=True, root=tmp_path))
    assert named is not None
    assert named.faults == ("cannot read /a: No such file or directory",)


@pytest.mark.parametrize(
    ("command", "main", "is_named"),
    [
        ("/usr/bin/containerd", "/etc/containerd/config.toml", False),
        ("/usr/bin/containerd --config /a/b.toml", "/a/b.toml", True),
        ("/usr/bin/containerd --log-level=debug -c=/a/b.toml", "/a/b.toml", True),
        ("/usr/bin/containerd -c b.toml", "/b.toml", True),
        ("/usr/bin/containerd --config", "/", True),
    ],
)
def test_configuration_of_a_stopped_containerd_is_named_by_its_unit(
    tmp_path: Path, command: str, main: str, *, is_named: bool
) -> None:
    put(tmp_path, "usr/lib/systemd/system/containerd.service", f"[Service]\nExecStart={command}")
    found = find_containerd_files(str(tmp_path / "none.sock"), tmp_path)
    assert (found.main, found.is_named, found.is_running) == (main, is_named, False)


def test_default_file_is_assumed_without_process_and_unit(tmp_path: Path) -> None:
    assert find_containerd_files("", tmp_path) == ContainerdFiles(root=tmp_path)


def test_files_of_a_running_process_are_below_its_root(tmp_path: Path) -> None:
    path = str(tmp_path / "a.sock")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        found = find_containerd_files(path, tmp_path)
    assert found.started_s < time.time()
    assert (found.root, found.directory, found.is_running) == (Path(f"/proc/{os.getpid()}/root"), str(Path.cwd()), True)
