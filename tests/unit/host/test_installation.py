"""Installation: refused prefixes and manifests, placed and removed files, files of operators."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from nodeagent.errors import InstallError, UsageError
from nodeagent.host.installation import (
    MANIFEST,
    UNIT,
    Manifest,
    Part,
    admit,
    below,
    check_prefix,
    environment_files,
    own_files,
    place,
    read_manifest,
    remove_environment,
    withdraw,
    write_manifest,
)

SYSTEM = [
    *("/", "/opt", "/usr", "/usr/lib", "/usr/lib/nodeagent/venv", "/usr/local", "/usr/local/bin", "/usr/local/share/x"),
    *("/bin/x", "/sbin/nodeagent", "/etc/nodeagent", "/lib64/x", "/boot/x", "/dev/shm", "/proc/self", "/run/nodeagent"),
    *("/sys/x", "/var/lib", "/var/lib/nodeagent", "/var/lib/nodeagent/venv", "/var/lib/kubelet/x"),
]


@pytest.mark.parametrize("prefix", SYSTEM)
def test_prefix_inside_or_above_a_system_directory_is_refused(prefix: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--prefix"):
        check_prefix(Path(prefix), tmp_path)


@pytest.mark.parametrize(
    "prefix", ["/opt/nodeagent", "/srv/agent", "/usr/local/nodeagent", "/opt/a/b-1.0+x", "/var/opt/x"]
)
def test_separate_directory_is_accepted(prefix: str, tmp_path: Path) -> None:
    check_prefix(Path(prefix), tmp_path)


@pytest.mark.parametrize(
    "prefix",
    [
        *(
            "opt/nodeagent",
            "/opt/../usr",
            "",
            ".",
            "/opt/a b",
            "/opt/%n",
            "/opt/x\n",
            "/opt/$(id)",
            "/opt/'x'",
            "//opt/x",
        ),
        *("/opt/" + "x" * 100, "/opt/ä"),
    ],
)
def test_prefix_invalid_in_a_unit_or_a_shebang_line_is_refused(prefix: str) -> None:
    with pytest.raises(UsageError, match="--prefix"):
        check_prefix(Path(prefix))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root refuses directories of others")
@pytest.mark.parametrize(
    ("uid", "gid", "mode", "writer"),
    [
        (0, 0, 0o755, ""),
        (0, 0, 0o775, ""),
        (0, 50, 0o775, "group 50"),
        (0, 50, 0o1775, ""),
        (0, 0, 0o757, "all users"),
        (0, 0, 0o1777, ""),
        (1000, 0, 0o755, "uid 1000"),
    ],
)
def test_prefix_below_a_directory_that_others_can_write_is_refused(uid: int, gid: int, mode: int, writer: str) -> None:
    with TemporaryDirectory() as place:
        parent = Path(place, "parent")
        parent.mkdir()
        os.chown(parent, uid, gid)
        parent.chmod(mode)
        if not writer:
            check_prefix(parent / "nodeagent")
            return
        with pytest.raises(InstallError, match=f"{parent} is writable by {writer}"):
            check_prefix(parent / "nodeagent")


def test_home_directory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alice = pwd.struct_passwd(("alice", "x", 1000, 1000, "", "/home/alice", "/bin/sh"))
    monkeypatch.setattr(pwd, "getpwall", lambda: [alice])
    with pytest.raises(UsageError, match="home directory"):
        check_prefix(Path("/home/alice"), tmp_path)


def test_prefix_of_the_interpreter_is_refused(tmp_path: Path) -> None:
    for path in (Path(sys.base_prefix), Path(sys.base_prefix).parent):
        with pytest.raises(UsageError, match="--prefix"):
            check_prefix(path, tmp_path)


def test_prefix_that_resolves_into_the_system_is_refused(tmp_path: Path) -> None:
    for name in ("usr/lib", "opt"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "opt/link").symlink_to(tmp_path / "usr/lib")
    with pytest.raises(UsageError, match=r"resolves to /usr/lib/x: part of the system"):
        check_prefix(Path("/opt/link/x"), tmp_path)


def test_prefix_that_resolves_outside_the_root_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (tmp_path / "outside").mkdir()
    (root / "opt").mkdir(parents=True)
    (root / "opt/link").symlink_to(tmp_path / "outside")
    with pytest.raises(UsageError, match="resolves outside"):
        check_prefix(Path("/opt/link/x"), root)


def test_installation_imports_the_standard_library_alone(tmp_path: Path) -> None:
    script = (
        "import sys; sys.path.insert(0, sys.argv[1]); import nodeagent.host.installation; "
        "print(*{name.partition('.')[0] for name in sys.modules} - sys.stdlib_module_names - {'__main__'})"
    )
    checkout = str(Path(__file__).parents[3])
    command = [sys.executable, "-I", "-S", "-c", script, checkout]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False, timeout=60)
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, ["nodeagent"], "")


UNIT_PART = Part(UNIT, "new")


@pytest.mark.parametrize(
    ("present", "recorded", "change", "left"),
    [
        (None, (), "new", {"": "new"}),
        ("new", (), "unchanged", {"": "new"}),
        ("old", ("old",), "replaced", {"": "new"}),
        ("edited", ("new",), "kept", {"": "edited"}),
        ("edited", ("old",), "kept", {"": "edited", ".nodeagent-dist": "new"}),
    ],
)
def test_edited_file_is_not_overwritten(
    tmp_path: Path, present: str | None, recorded: tuple[str, ...], change: str, left: dict[str, str]
) -> None:
    path = below(tmp_path, UNIT)
    path.parent.mkdir(parents=True)
    if present is not None:
        path.write_text(present)
    fingerprints = frozenset(Part(UNIT, each).fingerprint for each in recorded)
    assert place(UNIT_PART, fingerprints, tmp_path)[0] == change
    assert {each.name.removeprefix(path.name): each.read_text() for each in path.parent.iterdir()} == left


@pytest.mark.parametrize("purge", [False, True])
def test_edited_file_is_saved_unless_purged(tmp_path: Path, purge: bool) -> None:
    path = below(tmp_path, UNIT)
    path.parent.mkdir(parents=True)
    path.write_text("edited")
    withdraw({UNIT: frozenset({UNIT_PART.fingerprint})}, tmp_path, purge=purge)
    assert [each.name for each in path.parent.glob("*")] == ([] if purge else ["nodeagent.service.nodeagent-old"])


PATHS = [
    *("/etc/passwd", "/etc/systemd/system/ssh.service", "/usr/local/bin/nodeagentd", "/usr/local/share/man/man1/x.1"),
    *("/usr/local/share/nodeagent/../../bin/x", "/usr/local/share/bash-completion/completions/other", "/opt/nodeagent"),
    "/usr/lib/systemd/catalog/systemd.catalog",
]


@pytest.mark.parametrize("name", PATHS)
def test_listed_path_of_another_program_is_not_removed(tmp_path: Path, name: str) -> None:
    path = below(tmp_path, Path(name))
    path.parent.mkdir(parents=True)
    (tmp_path / "usr/local/share/nodeagent").mkdir(parents=True, exist_ok=True)
    path.write_text("x")
    assert withdraw({Path(name): frozenset({Part(path, "x").fingerprint})}, tmp_path, purge=True)[0][0] == "kept"
    assert path.read_text() == "x"


@pytest.mark.parametrize("made_by_install", [False, True])
def test_files_of_operators_in_the_prefix_are_kept(tmp_path: Path, made_by_install: bool) -> None:
    prefix = tmp_path / "agent"
    for name in (
        "pyvenv.cfg",
        "bin/python",
        "lib/module.py",
        "lib/__pycache__/module.cpython-311.pyc",
        "mine",
        "lib/m",
    ):
        (prefix / name).parent.mkdir(parents=True, exist_ok=True)
        (prefix / name).write_text(name)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/module.py").touch()
    (prefix / "link").symlink_to(tmp_path / "outside")
    listed = {"pyvenv.cfg", "bin/python", "lib/module.py", "link/module.py", "../outside/module.py"}
    manifest = Manifest(frozenset(listed if made_by_install else ()))
    write_manifest(prefix, manifest)
    kept = {str(each.relative_to(prefix)) for each in remove_environment(prefix, manifest)}
    assert kept == ({"mine", "lib/m", "link"} if made_by_install else {"."})
    assert (tmp_path / "outside/module.py").exists()
    assert (prefix / "pyvenv.cfg").exists() is not made_by_install


def test_interrupted_installation_keeps_files_that_existed_before_it(tmp_path: Path) -> None:
    (tmp_path / "notes").touch()
    manifest = Manifest(foreign=environment_files(tmp_path))
    (tmp_path / "pyvenv.cfg").touch()
    write_manifest(tmp_path, manifest)
    assert read_manifest(tmp_path) == manifest
    assert own_files(tmp_path, manifest) == {"pyvenv.cfg"}
    assert remove_environment(tmp_path, manifest) == [tmp_path / "notes"]


@pytest.mark.parametrize(
    "text",
    [
        *(b"", b"[]", b"null", b"{", b"\xff", b"[" * 100_000, b'{"format": 1}'),
        b'{"format": 2, "environment": [], "files": {}}',
        b'{"format": 1, "environment": [], "files": {"/etc/../x": []}}',
        b'{"format": 1, "environment": [], "files": {"etc/x": []}}',
        b'{"format": 1, "environment": [], "files": {"/etc/x": 1}}',
    ],
)
def test_invalid_manifest_is_refused(tmp_path: Path, text: bytes) -> None:
    (tmp_path / MANIFEST).write_bytes(text)
    (tmp_path / MANIFEST).chmod(0o644)
    with pytest.raises(InstallError, match="is not valid"):
        read_manifest(tmp_path)


@pytest.mark.parametrize("kind", ["group", "others", "link", "pipe", "directory"])
def test_manifest_of_others_or_of_another_type_is_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / MANIFEST
    write_manifest(tmp_path, Manifest())
    if kind in {"group", "others"}:
        path.chmod(0o664 if kind == "group" else 0o646)
    else:
        path.rename(tmp_path / "real")
    if kind == "link":
        path.symlink_to("real")
    elif kind == "pipe":
        os.mkfifo(path, 0o600)
    elif kind == "directory":
        path.mkdir()
    with pytest.raises(InstallError):
        read_manifest(tmp_path)


@pytest.mark.parametrize("name", ["data", "pyvenv.cfg", "bin/nodeagent"])
def test_directory_with_other_content_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "tools" / name).parent.mkdir(parents=True)
    (tmp_path / "tools" / name).touch()
    (tmp_path / "link").symlink_to(tmp_path)
    for place_of, text in (
        ("tools", "not an installation"),
        (f"tools/{name}", "not an installation"),
        ("link", "a symbolic link"),
    ):
        with pytest.raises(InstallError, match=text):
            admit(tmp_path / place_of)
    assert admit(tmp_path / "absent") == Manifest()
