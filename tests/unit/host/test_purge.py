"""Purge of configuration, state and runtime directories, by the script of the agent and of the packages."""

from __future__ import annotations

import os
import re
import socket
import subprocess
from pathlib import Path

import pytest

from nodeagent.host.logind_config import own_drop_in

CHECKOUT = Path(__file__).parents[3]
OWN = (
    *("etc/nodeagent/config.toml", "etc/nodeagent/config.d/10-a.toml", "etc/nodeagent/config.d/b.toml"),
    *("var/lib/nodeagent/nodeagent.db", "var/lib/nodeagent/nodeagent.db-wal", "var/lib/nodeagent/nodeagent.db-shm"),
    "var/lib/nodeagent/trend.db",
    *("var/lib/nodeagent/history.db", "var/lib/nodeagent/history.db.corrupt-20260101T101010"),
    *("var/lib/nodeagent/history.db.corrupt-20260101T101010-wal", "var/lib/nodeagent/holds.json"),
    *("var/lib/nodeagent/holds.lock", "var/lib/nodeagent/pause.json", "var/lib/nodeagent/shutdown.json"),
    *("var/lib/nodeagent/boot.json", "var/lib/nodeagent/shutdown.lock", "var/lib/nodeagent/pass.lock"),
    *("var/lib/nodeagent/evictions.json", "var/lib/nodeagent/mode.json", "var/lib/nodeagent/plan.key"),
    *("var/lib/nodeagent/.holds.json-a1_b2c3d", "var/lib/nodeagent/.plan.key-a1_b2c3d"),
    "var/lib/nodeagent/daemon.lock",
    *("var/lib/nodeagent/last-settings.toml", "var/lib/nodeagent/.last-settings.toml-a1_b2c3d"),
    *("var/lib/nodeagent/api-pods.json", "var/lib/nodeagent/.api-pods.json-a1_b2c3d"),
    *("var/lib/nodeagent/api-client.pem", "var/lib/nodeagent/api-client-next.pem"),
    *("var/lib/nodeagent/.api-client-next.pem-a1_b2c3d", "var/lib/nodeagent/api-client-request.json"),
    *("run/nodeagent/shutdown.json", "run/nodeagent/.shutdown.json-a1_b2c3d", "run/nodeagent/shutdown.lock"),
)
FOREIGN = (
    *("etc/nodeagent/kubelet.key", "etc/nodeagent/config.toml.bak", "etc/nodeagent/config.d/.hidden.toml"),
    *("etc/nodeagent/config.d/README", "etc/nodeagent/config.d/deep/x.toml", "etc/nodeagent/tls/config.toml"),
    *("var/lib/nodeagent/backup.tar", "var/lib/nodeagent/nodeagent.db.bak", "var/lib/nodeagent/my/nodeagent.db"),
    *("var/lib/nodeagent/history.db.corrupt-mine", "var/lib/nodeagent/.ssh", "run/nodeagent/mine"),
    *("etc/systemd/logind.conf.d/50-nodeagent.conf", "etc/systemd/logind.conf.d/mynodeagent.conf"),
)


def create_files(root: Path) -> None:
    for name in (*OWN, *FOREIGN):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("[Login]\nInhibitDelayMaxSec=60\n")
    drop_in = own_drop_in(60, root)
    drop_in.path.write_text(drop_in.text)
    for name in ("run/nodeagent/control.sock", "run/nodeagent/.control.sock.d/s", "run/nodeagent/prometheus"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        here = Path.cwd()
        os.chdir((root / name).parent)  # socket paths are limited to 107 bytes
        try:
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind((root / name).name)
        finally:
            os.chdir(here)


def purge(root: Path) -> str:
    script = '. "$0"; purge "$1"'
    done = subprocess.run(
        ["sh", "-euc", script, CHECKOUT / "systemd/purge.sh", root],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stderr == ""
    return done.stdout


def files(root: Path) -> set[str]:
    return {str(each.relative_to(root)) for each in root.rglob("*") if each.is_symlink() or not each.is_dir()}


def test_purge_removes_the_agents_files_and_reports_all_others(tmp_path: Path) -> None:
    create_files(tmp_path)
    report = purge(tmp_path)
    assert files(tmp_path) == set(FOREIGN)
    for name in FOREIGN:
        top = "/".join(name.split("/")[: 4 if name.startswith("var") or "config.d" in name else 3])
        assert f"/{top}" in report, report


def test_purge_removes_emptied_directories(tmp_path: Path) -> None:
    create_files(tmp_path)
    for name in FOREIGN:
        (tmp_path / name).unlink()
    for name in ("etc/nodeagent/config.d/deep", "etc/nodeagent/tls", "var/lib/nodeagent/my"):
        (tmp_path / name).rmdir()
    purge(tmp_path)
    assert not [name for name in ("etc/nodeagent", "var/lib/nodeagent", "run/nodeagent") if (tmp_path / name).exists()]


@pytest.mark.parametrize("name", ["etc/nodeagent", "var/lib/nodeagent", "etc/nodeagent/config.d", "run/nodeagent"])
def test_purge_follows_no_link(tmp_path: Path, name: str) -> None:
    create_files(tmp_path)
    (tmp_path / name).rename(tmp_path / "elsewhere")
    (tmp_path / name).symlink_to(tmp_path / "elsewhere")
    before = files(tmp_path / "elsewhere")
    report = purge(tmp_path)
    assert files(tmp_path / "elsewhere") == before
    assert (tmp_path / name).is_symlink()
    assert f"/{name}" in report


def test_purge_keeps_the_target_of_a_link(tmp_path: Path) -> None:
    (tmp_path / "etc/nodeagent").mkdir(parents=True)
    (tmp_path / "srv").write_text("mine")
    (tmp_path / "etc/nodeagent/config.toml").symlink_to(tmp_path / "srv")
    purge(tmp_path)
    assert files(tmp_path) == {"srv"}


def test_purge_without_files_changes_nothing(tmp_path: Path) -> None:
    purge(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_every_file_of_the_stores_is_recognised_as_own() -> None:
    named = {"pass.lock", "holds.lock"}
    for module in (CHECKOUT / "nodeagent").rglob("*.py"):
        named |= set(re.findall(r'^[A-Z_]*FILE(?:_NAME)?: Final = "([^"]+)"', module.read_text(), re.MULTILINE))
    assert {"nodeagent.db", "history.db", "holds.json"} <= named
    assert named <= {Path(name).name for name in OWN}


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        (own_drop_in(45).text, False),
        (own_drop_in(45).text.replace("45", "60") + "# a note\n\n", False),
        (own_drop_in(45).text + "HandlePowerKey=ignore\n", True),
        ("[Login]\nInhibitDelayMaxSec=60\n", True),
        ("", True),
    ],
)
def test_drop_in_is_removed_unless_a_setting_was_added(tmp_path: Path, text: str, kept: bool) -> None:
    drop_in = own_drop_in(45, tmp_path).path
    drop_in.parent.mkdir(parents=True)
    drop_in.write_text(text)
    purge(tmp_path)
    assert drop_in.exists() is kept


def test_purge_of_the_debian_package_is_the_same_function() -> None:
    script = (CHECKOUT / "systemd/debian/postrm").read_text()
    assert "\n# @PURGE@\n" in script
    assert '    purge "$root"\n' in script
