"""Installation: refused prefixes and manifests, placed and removed files, files of operators."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from nodeagent.errors import InstallError, UsageError
from nodeagent.host.installation import (
    MANIFEST,
    Manifest,
    admit,
    change,
    check_prefix,
    check_visible,
    environment_files,
    fingerprint,
    installed,
    read_manifest,
    record,
    remove_environment,
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
        (0, 50, 0o775, "writable by group 50"),
        (0, 0, 0o757, "writable by all users"),
        (0, 0, 0o1777, "writable by all users"),
        (1000, 0, 0o755, "owned by uid 1000"),
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
        with pytest.raises(InstallError, match=f"{parent} is {writer}"):
            check_prefix(parent / "nodeagent")


def test_prefix_that_resolves_into_the_system_is_refused(tmp_path: Path) -> None:
    for name in ("usr/lib", "opt"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "opt/link").symlink_to(tmp_path / "usr/lib")
    with pytest.raises(UsageError, match="outside of system directories"):
        check_prefix(Path("/opt/link/x"), tmp_path)


@pytest.mark.parametrize(
    ("directory", "is_hidden"),
    [
        ("/root/.local/share/uv/tools/nodeagent", True),
        ("/home/a/nodeagent", True),
        ("/run/user/0/agent", True),
        ("/opt/nodeagent", False),
        ("/rooted/x", False),
        ("/usr", False),
    ],
)
def test_environment_is_refused_below_directories_that_the_unit_hides(directory: str, is_hidden: bool) -> None:
    unit = (Path(__file__).parents[3] / "systemd/nodeagent.service").read_text()
    assert "\nProtectHome=tmpfs\n" in unit
    with pytest.raises(InstallError, match="the unit hides") if is_hidden else nullcontext():
        check_visible(Path("/usr"), Path(directory))


def test_link_to_a_hidden_interpreter_is_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/root/python")
    with pytest.raises(InstallError, match="the unit hides /root"):
        check_visible(tmp_path / "link")


def test_prefix_that_resolves_outside_the_root_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (tmp_path / "outside").mkdir()
    (root / "opt").mkdir(parents=True)
    (root / "opt/link").symlink_to(tmp_path / "outside")
    with pytest.raises(InstallError, match="resolves outside"):
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


UNIT = "/etc/systemd/system/nodeagent.service"


def known(tmp_path: Path, *texts: str) -> frozenset[str]:
    found = set()
    for text in texts:
        (tmp_path / "text").write_text(text)
        found.add(str(fingerprint(tmp_path / "text")))
    return frozenset(found)


@pytest.mark.parametrize(
    ("present", "recorded", "done", "left"),
    [
        (None, (), "new", "new"),
        ("new", (), "unchanged", "new"),
        ("old", ("old",), "replaced", "new"),
        ("edited", ("new",), "kept", "edited"),
        ("edited", ("old",), "kept", "edited"),
    ],
)
def test_edited_file_is_not_overwritten(
    tmp_path: Path, present: str | None, recorded: tuple[str, ...], done: str, left: str
) -> None:
    path = tmp_path / "root" / UNIT[1:]
    path.parent.mkdir(parents=True)
    if present is not None:
        path.write_text(present)
    former = {UNIT: known(tmp_path, *recorded)}
    assert [each for each, _ in change({UNIT: "new"}, former, tmp_path / "root")] == [done]
    assert {each.name: each.read_text() for each in path.parent.iterdir()} == {path.name: left}


@pytest.mark.parametrize("purge", [False, True])
@pytest.mark.parametrize("kind", ["edited", "link"])
def test_edited_file_is_saved_unless_purged(tmp_path: Path, purge: bool, kind: str) -> None:
    path = tmp_path / "root" / UNIT[1:]
    path.parent.mkdir(parents=True)
    if kind == "edited":
        path.write_text("edited")
    else:
        (tmp_path / "target").write_text("new")
        path.symlink_to(tmp_path / "target")
    list(change({}, {UNIT: known(tmp_path, "new")}, tmp_path / "root", purge=purge))
    assert [each.name for each in path.parent.glob("*")] == ([] if purge else ["nodeagent.service.nodeagent-old"])
    assert kind == "edited" or (tmp_path / "target").exists()


PATHS = [
    *("/etc/passwd", "/etc/systemd/system/ssh.service", "/usr/local/bin/nodeagentd", "/usr/local/share/man/man1/x.1"),
    *("/usr/local/share/nodeagent/../../bin/x", "/usr/local/share/bash-completion/completions/other", "/opt/nodeagent"),
    *("/usr/lib/systemd/catalog/systemd.catalog", "/etc/../opt/nodeagent", "etc/x/nodeagent", "/var/lib/nodeagent"),
    *("/usr/local/share/nodeagent/", "/usr/local/share/nodeagent/..", "/etc/nodeagent/sub/x", ""),
]


@pytest.mark.parametrize("name", PATHS)
def test_manifest_with_a_path_of_another_program_is_refused(tmp_path: Path, name: str) -> None:
    write_manifest(tmp_path, Manifest(files={name: frozenset({"sha256:0"})}))
    with pytest.raises(InstallError, match="a path that is not one of the agent"):
        read_manifest(tmp_path)


def test_record_has_former_and_new_fingerprints_until_the_files_are_placed(tmp_path: Path) -> None:
    prefix, path = tmp_path / "opt/nodeagent", tmp_path / UNIT[1:]
    path.parent.mkdir(parents=True)
    path.write_text("old")
    old, new, gone = known(tmp_path, "old"), known(tmp_path, "new"), "/usr/local/bin/nodeagent"
    former = Manifest(files={UNIT: old | {"sha256:older"}, gone: frozenset({"sha256:0"})}, foreign=frozenset())
    record(prefix, {UNIT: "new"}, former, tmp_path)
    recorded = installed(prefix)
    assert recorded.files == {UNIT: old | new}
    list(change({UNIT: "new"}, recorded.files, tmp_path))
    record(prefix, {UNIT: "new"}, recorded, tmp_path)
    assert installed(prefix).files == {UNIT: new}


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
    report = list(remove_environment(prefix, manifest))
    expected = {"mine", "lib/m", "link"} if made_by_install else {"pyvenv.cfg", "bin", "lib", "mine", "link"}
    assert set(report) == {("kept", f"{prefix / each} (not installed by nodeagent)") for each in expected}
    assert (tmp_path / "outside/module.py").exists()
    assert (prefix / "pyvenv.cfg").exists() is not made_by_install
    assert (prefix / "mine").exists()


def test_interrupted_installation_is_completed_and_keeps_files_that_existed_before_it(tmp_path: Path) -> None:
    prefix = tmp_path / "opt/nodeagent"
    prefix.mkdir(parents=True)
    (prefix / "notes").touch()
    write_manifest(prefix, Manifest(foreign=environment_files(prefix)))
    (prefix / "pyvenv.cfg").touch()
    with pytest.raises(InstallError, match="incomplete: run make install again"):
        installed(prefix)
    record(prefix, {}, admit(prefix), tmp_path)
    assert installed(prefix).environment == {"pyvenv.cfg"}
    assert list(remove_environment(prefix, installed(prefix))) == [
        ("kept", f"{prefix}/notes (not installed by nodeagent)")
    ]


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


@pytest.mark.skipif(os.geteuid() != 0, reason="only root refuses directories of others")
@pytest.mark.parametrize("kind", ["group", "others", "link to others", "pipe", "directory"])
def test_manifest_of_others_or_of_another_type_is_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / MANIFEST
    write_manifest(tmp_path, Manifest())
    if kind in {"group", "others"}:
        os.chown(path, 0, 50)
        path.chmod(0o664 if kind == "group" else 0o646)
    else:
        path.rename(tmp_path / "real")
    if kind == "link to others":
        (tmp_path / "real").chmod(0o666)
        path.symlink_to("real")
    elif kind == "pipe":
        os.mkfifo(path, 0o600)
    elif kind == "directory":
        path.mkdir()
    with pytest.raises(InstallError):
        read_manifest(tmp_path)


@pytest.mark.parametrize("is_environment", [False, True])
def test_prefix_of_the_interpreter_is_refused_unless_it_is_an_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_environment: bool
) -> None:
    (tmp_path / ("pyvenv.cfg" if is_environment else "bin")).touch()
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    if is_environment:
        assert admit(tmp_path) == Manifest()
        return
    with pytest.raises(InstallError, match="neither empty nor an installation"):
        admit(tmp_path)


@pytest.mark.parametrize("name", ["data", "pyvenv.cfg", "bin/nodeagent"])
def test_directory_with_other_content_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "tools" / name).parent.mkdir(parents=True)
    (tmp_path / "tools" / name).touch()
    (tmp_path / "link").symlink_to(tmp_path)
    for place_of, text in (
        ("tools", "neither empty nor an installation"),
        (f"tools/{name}", "neither empty nor an installation"),
        ("link", "neither empty nor an installation"),
    ):
        with pytest.raises(InstallError, match=text):
            admit(tmp_path / place_of)
    assert admit(tmp_path / "absent") == Manifest()
