"""Installing below another root: what is put where, upgrades, and that nothing is left but what is told."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def nodeagent(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "nodeagent", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=ROOT,
    )


def files(root: Path) -> set[str]:
    return {f"/{each.relative_to(root)}" for each in root.rglob("*") if not each.is_dir() or each.is_symlink()}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("root")
    ended = nodeagent("install", "--root", str(root), "--systemd", "252")
    assert ended.returncode == 0, ended.stderr
    told = {line.split()[1] for line in ended.stdout.splitlines() if line.startswith("new ")}
    assert told == files(root)
    return root


def test_everything_is_where_it_is_looked_for(installed: Path) -> None:
    assert {
        "/etc/nodeagent/config.toml",
        "/etc/systemd/system/nodeagent.service",
        "/etc/systemd/system/kubepods.slice.d/50-nodeagent.conf",
        "/etc/sysusers.d/nodeagent.conf",
        "/etc/tmpfiles.d/nodeagent.conf",
        "/usr/lib/systemd/catalog/nodeagent.catalog",
        "/usr/local/bin/nodeagent",
        "/usr/local/share/man/man1/nodeagent.1",
        "/usr/local/share/nodeagent/nodeagent.rules.yml",
        "/usr/local/share/nodeagent/grafana-dashboard.json",
        "/usr/local/share/man/man5/nodeagent.toml.5",
        "/usr/local/share/bash-completion/completions/nodeagent",
    } <= files(installed)
    assert (installed / "usr/local/share/zsh/site-functions/_nodeagent").read_text().startswith("#compdef nodeagent\n")
    assert (installed / "usr/local/bin/nodeagent").readlink() == Path("/opt/nodeagent/bin/nodeagent")


def test_the_first_configuration_removes_nothing(installed: Path) -> None:
    path = installed / "etc/nodeagent/config.toml"
    assert tomllib.loads(path.read_text()).pop("dry_run") is True
    assert nodeagent("config", "check", "--config", str(path)).returncode == 0


def test_the_unit_is_for_the_systemd_that_is_there(tmp_path: Path, installed: Path) -> None:
    old = (installed / "etc/systemd/system/nodeagent.service").read_text()
    assert old == (ROOT / "systemd/nodeagent.service").read_text()
    nodeagent("install", "--root", str(tmp_path), "--systemd", "253", "--prefix", "/srv/agent", "--packaged")
    new = (tmp_path / "usr/lib/systemd/system/nodeagent.service").read_text()
    assert "Type=notify-reload\n" in new
    assert "ExecReload" not in new
    assert "ExecStart=/srv/agent/bin/nodeagent run" in new
    assert "/opt/nodeagent" not in new
    assert not (tmp_path / "etc").exists()


def test_scripts_are_scripts(installed: Path) -> None:
    packaging = ROOT / "systemd/debian"
    scripts = [packaging / name for name in ("preinst", "postinst", "prerm", "postrm")]
    for shell, path in (
        ("bash", installed / "usr/local/share/bash-completion/completions/nodeagent"),
        ("bash", packaging / "build"),
        *(("sh", script) for script in scripts),
    ):
        ended = subprocess.run([shell, "-n", path], capture_output=True, text=True, check=False, timeout=30)
        assert (ended.returncode, ended.stderr) == (0, ""), path
    assert all(script.stat().st_mode & 0o111 for script in scripts)


def test_an_upgrade_keeps_what_is_the_operators(tmp_path: Path) -> None:
    nodeagent("install", "--root", str(tmp_path))
    config, unit = tmp_path / "etc/nodeagent/config.toml", tmp_path / "etc/systemd/system/nodeagent.service"
    other = tmp_path / "etc/systemd/system/kubepods.slice.d/90-mine.conf"
    state = tmp_path / "var/lib/nodeagent/nodeagent.db"
    state.parent.mkdir(parents=True)
    for path in (config, other, state):
        path.write_text("mine = 1\n")
    unit.write_text("old")
    ended = nodeagent("install", "--root", str(tmp_path))
    assert "replaced    /etc/systemd/system/nodeagent.service\n" in ended.stdout
    assert "kept        /etc/nodeagent/config.toml" in ended.stdout
    assert "as it was   /etc/sysusers.d/nodeagent.conf\n" in ended.stdout
    (tmp_path / "usr/local/share/man/man1/nodeagent-former.1").write_text("of an old version")
    removed = nodeagent("uninstall", "--root", str(tmp_path))
    assert (removed.returncode, "--purge" in removed.stderr) == (0, True)
    kept = {"/" + str(each.relative_to(tmp_path)) for each in (config, other, state)}
    assert files(tmp_path) == kept
    assert nodeagent("uninstall", "--root", str(tmp_path), "--purge").returncode == 0
    assert files(tmp_path) == {"/etc/systemd/system/kubepods.slice.d/90-mine.conf"}


def test_a_prefix_that_is_not_the_agents_stays(tmp_path: Path) -> None:
    place = tmp_path / "opt/nodeagent/bin"
    place.mkdir(parents=True)
    (place / "nodeagent").write_text("mine")
    ended = nodeagent("uninstall", "--root", str(tmp_path), "--purge")
    assert "no virtual environment of the agent" in ended.stderr
    assert (place / "nodeagent").exists()
    (place.parent / "pyvenv.cfg").touch()
    nodeagent("uninstall", "--root", str(tmp_path))
    assert not place.parent.exists()


@pytest.mark.parametrize("prefix", ["/", "/opt", "opt/nodeagent", "/opt/../x"])
def test_a_prefix_that_would_be_dangerous_is_refused(tmp_path: Path, prefix: str) -> None:
    for command in ("install", "uninstall"):
        ended = nodeagent(command, "--root", str(tmp_path), "--prefix", prefix)
        assert (ended.returncode, "--prefix" in ended.stderr) == (2, True)


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "etc").write_text("a file")
    ended = nodeagent("install", "--root", str(tmp_path))
    assert (ended.returncode, "cannot be written" in ended.stderr) == (1, True)
    assert "Traceback" not in ended.stderr
