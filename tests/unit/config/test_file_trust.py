"""Configuration files and drop-in directories that users other than root can write."""

from __future__ import annotations

import os
import subprocess
import sys
from os import close
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nodeagent.config.files import open_trusted
from nodeagent.errors import ConfigError
from nodeagent.settings.loading import load
from tests.support.command import nodeagent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

OTHER = 54321
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="changing the owner of a file requires root")


@pytest.fixture
def config(tmp_path: Path) -> Path:
    directory = tmp_path / "etc"
    (directory / "config.d").mkdir(parents=True)
    for each in (directory, directory / "config.d"):
        each.chmod(0o755)
    for name, text in (("config.toml", "dry_run = true\n"), ("config.d/10.toml", "dry_run = false\n")):
        (directory / name).write_text(text)
        (directory / name).chmod(0o644)
    return directory / "config.toml"


def refusal(path: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        load(path, environment={})
    return str(caught.value)


def test_configuration_of_the_own_user_is_trusted(config: Path) -> None:
    assert load(config, environment={}).config.dry_run is False


@pytest.mark.parametrize("part", ["config.toml", "config.d", "config.d/10.toml", "."])
def test_configuration_writable_by_all_users_is_refused_with_the_path(config: Path, part: str) -> None:
    open_to_all = (config.parent / part).resolve()
    open_to_all.chmod(open_to_all.stat().st_mode | 0o002)
    assert f"{open_to_all} is writable by all users; run: chmod o-w {open_to_all}" in refusal(config)


def test_dropin_directory_with_sticky_bit_is_refused_since_all_users_can_add_files(config: Path) -> None:
    (config.parent / "config.d").chmod(0o1777)
    assert "config.d is writable by all users" in refusal(config)


def test_sticky_directory_above_is_trusted(config: Path) -> None:
    config.parent.parent.chmod(0o1777)
    assert str(config.parent / "config.d/10.toml") in load(config, environment={}).origins.values()


@AS_ROOT
@pytest.mark.parametrize("part", ["config.toml", "config.d", "config.d/10.toml", "."])
def test_configuration_of_another_user_is_refused_with_the_path(config: Path, part: str) -> None:
    os.chown(config.parent / part, OTHER, 0)
    correction = "use a directory of root" if part == "." else f"run: chown 0 {config.parent / part}"
    assert f"is owned by uid {OTHER}; {correction}" in refusal(config)


@AS_ROOT
@pytest.mark.parametrize(("group", "trusted"), [(OTHER, False), (0, True)])
def test_configuration_writable_by_a_group_is_refused_except_for_the_group_of_root(
    config: Path, group: int, *, trusted: bool
) -> None:
    os.chown(config, 0, group)
    config.chmod(0o664)
    if trusted:
        assert str(config.parent / "config.d/10.toml") in load(config, environment={}).origins.values()
    else:
        assert f"is writable by group {OTHER}" in refusal(config)


@AS_ROOT
def test_link_of_another_user_in_a_sticky_directory_is_refused(config: Path, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    (shared / "config.toml").symlink_to(config)
    assert load(shared / "config.toml", environment={}).source
    os.chown(shared / "config.toml", OTHER, OTHER, follow_symlinks=False)
    assert f"{shared}/config.toml is owned by uid {OTHER}" in refusal(shared / "config.toml")


def test_target_of_a_link_is_checked_with_its_directories(config: Path, tmp_path: Path) -> None:
    (tmp_path / "first").symlink_to("etc")
    (tmp_path / "second.toml").symlink_to("first/../first/config.toml")
    assert load(tmp_path / "second.toml", environment={}).source
    config.parent.chmod(0o777)
    assert f"{config.parent} is writable by all users" in refusal(tmp_path / "second.toml")


@pytest.fixture
def mounted(config: Path) -> Iterator[Path]:
    """Mount the configuration directory as a volume writable by all users; yield the configuration file."""
    config.parent.chmod(0o777)
    directory = str(config.parent)
    if subprocess.run(["mount", "--bind", directory, directory], capture_output=True, check=False).returncode:
        pytest.skip("bind mounts require root")
    yield config
    subprocess.run(["umount", directory], check=True)


def make_read_only(directory: Path) -> None:
    subprocess.run(["mount", "-o", "remount,bind,ro", str(directory)], check=True)


@AS_ROOT
def test_config_map_mounted_read_only_is_trusted(mounted: Path) -> None:
    (mounted.parent / "..data").symlink_to(".")
    assert "is writable by all users" in refusal(mounted)
    make_read_only(mounted.parent)
    assert load(mounted, environment={}).source


@AS_ROOT
def test_link_of_another_user_makes_no_config_map(mounted: Path) -> None:
    (mounted.parent / "..data").symlink_to(".")
    os.chown(mounted.parent / "..data", OTHER, OTHER, follow_symlinks=False)
    make_read_only(mounted.parent)
    assert "is writable by all users" in refusal(mounted)


@AS_ROOT
def test_hard_link_to_a_link_of_root_makes_no_config_map(mounted: Path) -> None:
    (mounted.parent / "link").symlink_to(".")
    (mounted.parent / "..data").hardlink_to(mounted.parent / "link")
    make_read_only(mounted.parent)
    assert "is writable by all users" in refusal(mounted)


@AS_ROOT
def test_ordinary_user_trusts_root_and_itself_only(config: Path) -> None:
    close(open_trusted(config, own_uid=OTHER))
    os.chown(config, OTHER, OTHER)
    config.chmod(0o664)
    close(open_trusted(config, own_uid=OTHER))
    with pytest.raises(ConfigError, match=f"owned by uid {OTHER}"):
        open_trusted(config, own_uid=OTHER + 1)


def test_refused_and_absent_paths_leave_no_descriptor_open(config: Path, tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    os.mkfifo(tmp_path / "fifo.toml")
    (tmp_path / "open.toml").touch()
    (tmp_path / "open.toml").chmod(0o666)
    before = len(list(Path("/proc/self/fd").iterdir()))
    for name in ("none.toml", "none/none.toml", "loop", "fifo.toml", "open.toml", "etc", "etc/config.toml/x"):
        refusal(tmp_path / name)
    load(config, environment={})
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.mark.parametrize(
    "target", ["//{}/etc/config.toml", "/../{}/etc//./config.toml", "{}/etc/config.d/../config.toml"]
)
def test_unusual_spelling_of_a_path_leads_to_the_same_file(config: Path, tmp_path: Path, target: str) -> None:
    (tmp_path / "link.toml").symlink_to(target.format(tmp_path))
    assert load(tmp_path / "link.toml", environment={}).config.dry_run is True
    config.parent.chmod(0o777)
    assert f"{config.parent} is writable by all users" in refusal(tmp_path / "link.toml")


class Interruption:
    """Runs an action, as by another user, directly before this process opens its n-th file."""

    def __init__(self) -> None:
        self.action: Callable[[], None] | None = None
        self.remaining = 0
        sys.addaudithook(self._hook)

    def _hook(self, event: str, _: object) -> None:
        if event == "open" and self.action is not None:
            self.remaining -= 1
            if self.remaining < 0:
                action, self.action = self.action, None
                action()


@pytest.fixture(scope="module")
def interruption() -> Interruption:
    return Interruption()  # one hook for all tests, since audit hooks cannot be removed


@AS_ROOT
@pytest.mark.parametrize("change", ["created", "linked", "replaced"])
def test_file_changed_by_another_user_between_any_two_steps_is_never_read(
    tmp_path: Path, interruption: Interruption, change: str
) -> None:
    own = tmp_path / "own.toml"
    own.write_text("dry_run = false\n")
    os.chown(own, OTHER, OTHER)
    interrupted = True
    step = 0
    while interrupted:
        shared = tmp_path / f"shared{step}"
        shared.mkdir()
        shared.chmod(0o1777)
        path = shared / "config.toml"
        if change == "replaced":
            path.symlink_to("/etc/os-release")
            os.chown(path, OTHER, OTHER, follow_symlinks=False)

        def act(path: Path = path) -> None:
            if change == "linked":
                path.symlink_to(own)
                os.chown(path, OTHER, OTHER, follow_symlinks=False)
                return
            own.with_suffix(".new").write_bytes(own.read_bytes())
            os.chown(own.with_suffix(".new"), OTHER, OTHER)
            own.with_suffix(".new").rename(path)

        interruption.remaining, interruption.action = step, act
        assert any(text in refusal(path) for text in ("no such file", "not trusted"))
        interrupted, interruption.action = interruption.action is None, None
        step += 1
    assert step > len(shared.parts)


def test_doctor_reports_the_writable_path_and_the_daemon_does_not_start(config: Path) -> None:
    (config.parent / "config.d").chmod(0o777)
    checked = nodeagent("doctor", "--config", str(config), "-o", "json")
    assert checked.returncode == 1
    assert f"not trusted: {config.parent}/config.d is writable by all users" in checked.stdout
    started = nodeagent("run", "--once", "--config", str(config))
    assert started.returncode == 2
    assert "is writable by all users" in started.stderr


def test_every_refused_file_is_reported_at_once(config: Path) -> None:
    for each in (config, config.parent / "config.d/10.toml"):
        each.chmod(0o666)
    assert len(refusal(config).splitlines()) == 2


@pytest.fixture
def in_deleted_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()


@pytest.mark.usefixtures("in_deleted_directory")
@pytest.mark.parametrize(
    "command", [("doctor",), ("config", "check"), ("config", "show", "role"), ("history", "--all"), ("report",)]
)
def test_absolute_path_is_read_in_a_deleted_working_directory(config: Path, command: tuple[str, ...]) -> None:
    config.write_text('role = "neither"\n')
    checked = nodeagent(*command, "--config", str(config))
    assert 'role = "neither": must be ' in checked.stdout + checked.stderr


@pytest.mark.usefixtures("in_deleted_directory")
def test_default_file_is_read_in_a_deleted_working_directory(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config.write_text('role = "standalone"\n')
    monkeypatch.setattr("nodeagent.config.files.DEFAULT_PATH", config)
    assert load(None, environment={}).config.role == "standalone"


@pytest.mark.usefixtures("in_deleted_directory")
def test_relative_path_in_a_deleted_working_directory_is_an_error_and_not_an_absent_file() -> None:
    assert "cannot resolve config.toml: current directory unavailable" in refusal(Path("config.toml"))


@pytest.mark.skipif(os.geteuid() != 0, reason="requires a mount namespace")
def test_file_that_cannot_be_read_without_proc_is_an_error_and_not_an_absent_one(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text("dry_run = true\n")
    tmp_path.chmod(0o700)
    code = f"""
import ctypes, sys
from nodeagent.settings.loading import load
from nodeagent.errors import ConfigError
from pathlib import Path
ctypes.CDLL(None).mount(b"none", b"/proc", b"tmpfs", 0, None) == 0 or sys.exit("no mount")
try:
    load(Path({str(config)!r}))
except ConfigError as error:
    print(error)
"""
    command = ["unshare", "--mount", sys.executable, "-I", "-c", code]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert "cannot be read without /proc" in done.stdout, done.stderr
