"""``nodeagent install`` and ``uninstall`` below another root: paths, upgrades, kept files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from nodeagent.host.installation import Part, launcher
from tests.support.command import nodeagent

ROOT = Path(__file__).parents[3]


def files(root: Path) -> set[str]:
    return {f"/{each.relative_to(root)}" for each in root.rglob("*") if not each.is_dir() or each.is_symlink()}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("root")
    ended = nodeagent("install", "--root", str(root), "--systemd", "252")
    assert ended.returncode == 0, ended.stderr
    reported = {line.split()[1] for line in ended.stdout.splitlines() if line.startswith("new ")}
    assert reported == files(root)
    assert [line for line in ended.stdout.splitlines() if len(line) > 80] == []
    return root


def test_files_are_placed_at_their_standard_paths(installed: Path) -> None:
    assert {
        "/etc/nodeagent/config.toml",
        "/etc/systemd/system/nodeagent.service",
        "/etc/sysusers.d/nodeagent.conf",
        "/etc/tmpfiles.d/nodeagent.conf",
        "/usr/lib/systemd/catalog/nodeagent.catalog",
        "/usr/local/bin/nodeagent",
        "/usr/local/share/man/man1/nodeagent.1",
        "/usr/local/share/nodeagent/nodeagent.rules.yml",
        "/usr/local/share/nodeagent/grafana-dashboard.json",
        "/usr/local/share/nodeagent/api-server.conf",
        "/usr/local/share/nodeagent/page-cache.conf",
        "/usr/local/share/man/man5/nodeagent.toml.5",
        "/usr/local/share/bash-completion/completions/nodeagent",
    } <= files(installed)
    assert (installed / "usr/local/share/zsh/site-functions/_nodeagent").read_text().startswith("#compdef nodeagent\n")
    assert (installed / "usr/local/bin/nodeagent").readlink() == Path("/opt/nodeagent/bin/nodeagent")


def test_first_configuration_is_a_dry_run(installed: Path) -> None:
    path = installed / "etc/nodeagent/config.toml"
    assert tomllib.loads(path.read_text()).pop("dry_run") is True
    assert nodeagent("config", "check", "--config", str(path)).returncode == 0


def test_unit_matches_the_version_of_systemd(tmp_path: Path, installed: Path) -> None:
    old = (installed / "etc/systemd/system/nodeagent.service").read_text()
    assert old == (ROOT / "systemd/nodeagent.service").read_text()
    nodeagent("install", "--root", str(tmp_path), "--systemd", "253", "--prefix", "/usr/lib/agent", "--packaged")
    new = (tmp_path / "usr/lib/systemd/system/nodeagent.service").read_text()
    assert "Type=notify-reload\n" in new
    assert "/bin/kill" not in new
    assert "ExecReload=/usr/lib/agent/bin/nodeagent config check --config /etc/nodeagent/config.toml\n" in new
    assert "ExecStart=/usr/lib/agent/bin/nodeagent run" in new
    assert "/opt/nodeagent" not in new
    assert not (tmp_path / "etc").exists()


def test_shell_scripts_have_valid_syntax(installed: Path) -> None:
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


def test_upgrade_and_uninstall_keep_files_of_the_operator(tmp_path: Path) -> None:
    nodeagent("install", "--root", str(tmp_path))
    config, unit = tmp_path / "etc/nodeagent/config.toml", tmp_path / "etc/systemd/system/nodeagent.service"
    other = tmp_path / "etc/systemd/system/kubepods.slice.d/90-mine.conf"
    state = tmp_path / "var/lib/nodeagent/nodeagent.db"
    for path in (config, other, state):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("mine = 1\n")
    manifest = tmp_path / "opt/nodeagent/nodeagent-manifest.json"
    recorded = json.loads(manifest.read_text())
    unit.write_text("old")
    recorded["files"]["/etc/systemd/system/nodeagent.service"] = [Part(unit, "old").fingerprint]
    manifest.write_text(json.dumps(recorded))
    ended = nodeagent("install", "--root", str(tmp_path))
    assert "replaced    /etc/systemd/system/nodeagent.service\n" in ended.stdout
    assert "kept        /etc/nodeagent/config.toml" in ended.stdout
    assert "unchanged   /etc/sysusers.d/nodeagent.conf\n" in ended.stdout
    former = tmp_path / "usr/local/share/man/man1/nodeagent-former.1"
    former.write_text('.TH NODEAGENT\\-FORMER 1 "" "nodeagent 0.0.9" "nodeagent"\n')
    recorded = json.loads(manifest.read_text())
    recorded["files"]["/usr/local/share/man/man1/nodeagent-former.1"] = [Part(former, former.read_text()).fingerprint]
    manifest.write_text(json.dumps(recorded))
    removed = nodeagent("uninstall", "--root", str(tmp_path))
    assert (removed.returncode, "--purge" in removed.stderr) == (0, True)
    kept = {"/" + str(each.relative_to(tmp_path)) for each in (config, other, state)}
    assert files(tmp_path) == kept
    assert nodeagent("uninstall", "--root", str(tmp_path), "--purge").returncode == 0
    assert files(tmp_path) == {"/etc/systemd/system/kubepods.slice.d/90-mine.conf"}


def test_upgrade_removes_drop_ins_of_former_versions_and_saves_edited_ones(tmp_path: Path) -> None:
    nodeagent("install", "--root", str(tmp_path))
    manifest = tmp_path / "opt/nodeagent/nodeagent-manifest.json"
    recorded, text = json.loads(manifest.read_text()), "[Unit]\nDefaultDependencies=no\n"
    for name, added in (("kubepods.slice.d", ""), ("kubepods-.slice.d", "Wants=mine.service\n")):
        former = tmp_path / "etc/systemd/system" / name / "50-nodeagent.conf"
        former.parent.mkdir()
        former.write_text(text + added)
        recorded["files"][f"/{former.relative_to(tmp_path)}"] = [Part(former, text).fingerprint]
    manifest.write_text(json.dumps(recorded))
    ended = nodeagent("install", "--root", str(tmp_path))
    assert "removed     /etc/systemd/system/kubepods.slice.d/50-nodeagent.conf\n" in ended.stdout
    assert "kubepods-.slice.d/50-nodeagent.conf, kept as" in ended.stdout
    left = [each for each in files(tmp_path) if "slice" in each]
    assert left != []
    assert not any(each.endswith(".conf") for each in left), "systemd reads no saved file"


def test_prefix_with_another_environment_is_kept(tmp_path: Path) -> None:
    place = tmp_path / "opt/nodeagent/bin"
    place.mkdir(parents=True)
    (place / "nodeagent").write_text("mine")
    ended = nodeagent("uninstall", "--root", str(tmp_path), "--purge")
    assert "no virtual environment of the agent" in ended.stdout
    assert (place / "nodeagent").exists()
    (place.parent / "pyvenv.cfg").touch()  # now a virtual environment, but without the package nodeagent
    assert "no virtual environment of the agent" in nodeagent("uninstall", "--root", str(tmp_path)).stdout
    assert (place / "nodeagent").read_text() == "mine"
    refused = nodeagent("install", "--root", str(tmp_path))
    assert (refused.returncode, "/opt/nodeagent is not empty and not an installation" in refused.stderr) == (
        1,
        True,
    )
    assert files(tmp_path) == {"/opt/nodeagent/bin/nodeagent", "/opt/nodeagent/pyvenv.cfg"}


@pytest.mark.parametrize("prefix", ["/", "/opt", "opt/nodeagent", "/opt/../x", "/usr/local", "/usr/lib/x", "/etc/x"])
def test_system_directory_as_prefix_is_refused(tmp_path: Path, prefix: str) -> None:
    for command in ("install", "uninstall"):
        ended = nodeagent(command, "--root", str(tmp_path), "--prefix", prefix)
        assert (ended.returncode, "--prefix" in ended.stderr) == (2, True)


def test_unwritable_path_exits_with_1(tmp_path: Path) -> None:
    (tmp_path / "etc").write_text("a file")
    ended = nodeagent("install", "--root", str(tmp_path))
    assert (ended.returncode, "cannot install: " in ended.stderr) == (1, True)
    assert "Traceback" not in ended.stderr


def test_installed_files_without_a_manifest_are_kept(tmp_path: Path) -> None:
    nodeagent("install", "--root", str(tmp_path))
    (tmp_path / "opt/nodeagent/nodeagent-manifest.json").unlink()
    (tmp_path / "etc/systemd/system/nodeagent.service").write_text("of an unknown version\n")
    before = files(tmp_path)
    ended = nodeagent("install", "--root", str(tmp_path))
    assert (ended.returncode, "nodeagent.service: exists, not installed by" in ended.stderr) == (1, True)
    assert files(tmp_path) == before


def test_install_over_a_foreign_command_places_nothing(tmp_path: Path) -> None:
    command = tmp_path / "usr/local/bin/nodeagent"
    command.parent.mkdir(parents=True)
    command.write_text("mine")
    ended = nodeagent("install", "--root", str(tmp_path))
    assert (ended.returncode, "/usr/local/bin/nodeagent: exists, not installed by" in ended.stderr) == (1, True)
    assert files(tmp_path) == {"/usr/local/bin/nodeagent"}
    removed = nodeagent("uninstall", "--root", str(tmp_path), "--purge")
    assert "kept        /usr/local/bin/nodeagent (not installed by nodeagent)\n" in removed.stdout
    assert files(tmp_path) == {"/usr/local/bin/nodeagent"}


@pytest.mark.parametrize(
    ("link", "commands"),
    [
        ("etc", ("install", "uninstall --purge")),
        ("etc/systemd", ("install", "uninstall --purge")),
        ("etc/nodeagent", ("install",)),
        ("usr/local", ("install", "uninstall --purge")),
        ("var", ("uninstall --purge",)),
        ("run", ("uninstall --purge",)),
    ],
)
def test_symbolic_link_out_of_the_root_is_refused(tmp_path: Path, link: str, commands: tuple[str, ...]) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    for name in ("config.toml", "lib/nodeagent/nodeagent.db", "nodeagent/config.toml"):
        (outside / name).parent.mkdir(parents=True, exist_ok=True)
        (outside / name).touch()
    before = files(outside)
    (root / link).parent.mkdir(parents=True)
    (root / link).symlink_to(outside)
    for command in commands:
        ended = nodeagent(*command.split(), "--root", str(root))
        assert (ended.returncode, "resolves outside" in ended.stderr) == (1, True)
    assert files(outside) == before
    assert files(root) == {f"/{link}"}


def test_uninstall_completes_with_a_closed_standard_output(tmp_path: Path) -> None:
    nodeagent("install", "--root", str(tmp_path))
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-I", "-m", "nodeagent", "uninstall", "--purge", "--root", str(tmp_path)]
    with os.fdopen(writer, "wb") as closed:
        subprocess.run(command, stdout=closed, stderr=subprocess.DEVNULL, timeout=60, check=False)
    assert files(tmp_path) == set()


def test_interrupted_installation_can_be_repeated(tmp_path: Path) -> None:
    unit = tmp_path / "etc/systemd/system/nodeagent.service"
    blocked = tmp_path / "usr/local/share/zsh"
    blocked.parent.mkdir(parents=True)
    blocked.write_text("a file in place of a directory")
    assert nodeagent("install", "--root", str(tmp_path)).returncode == 1
    assert unit.exists()
    blocked.unlink()
    ended = nodeagent("install", "--root", str(tmp_path))
    assert (ended.returncode, "unchanged   /etc/systemd/system/nodeagent.service\n" in ended.stdout) == (0, True)
    assert nodeagent("uninstall", "--root", str(tmp_path), "--purge").returncode == 0
    assert files(tmp_path) == set()


def test_launcher_of_the_packages_is_the_isolated_one() -> None:
    script = (ROOT / "systemd/environment.sh").read_text()
    _, _, rest = script.partition('cat >"$fresh/bin/nodeagent" <<LAUNCHER\n')
    assert rest.partition("\nLAUNCHER\n")[0] + "\n" == launcher("$fresh")


def test_scripts_start_python_in_isolated_mode() -> None:
    scripts = [ROOT / "systemd/debian" / name for name in ("preinst", "postinst", "prerm", "postrm", "build")]
    scripts += [ROOT / "systemd/rpm" / name for name in ("nodeagent.spec.in", "build", "try")]
    for path in (*scripts, ROOT / "systemd/environment.sh", ROOT / ".ci/setup"):
        python_lines = [line for line in path.read_text().splitlines() if " -m " in line or " -c '" in line]
        assert [line for line in python_lines if "python" in line and " -I " not in line] == [], path


def test_kept_file_with_an_undecodable_name_is_reported_escaped(tmp_path: Path) -> None:
    place = tmp_path / "opt/nodeagent"
    assert nodeagent("install", "--root", str(tmp_path)).returncode == 0
    names = (b"\xff\x1b]0;x", b"two\nlines")
    for name in names:
        Path(os.fsdecode(os.fsencode(place) + b"/" + name)).touch()
    ended = nodeagent("uninstall", "--root", str(tmp_path))
    assert ended.returncode == 0, ended.stderr
    assert f"kept        {place}/\\udcff\\x1b]0;x (" in ended.stdout
    assert f"kept        {place}/two\\nlines (" in ended.stdout


def test_new_version_beside_an_edited_unit_is_kept_until_the_edit_is_reverted(tmp_path: Path) -> None:
    nodeagent("install", "--root", str(tmp_path))
    unit, manifest = (
        tmp_path / "etc/systemd/system/nodeagent.service",
        tmp_path / "opt/nodeagent/nodeagent-manifest.json",
    )
    recorded, new = json.loads(manifest.read_text()), unit.read_text()
    recorded["files"]["/etc/systemd/system/nodeagent.service"] = [Part(unit, "old").fingerprint]
    manifest.write_text(json.dumps(recorded))
    unit.write_text("edited")
    beside = unit.with_name("nodeagent.service.nodeagent-dist")
    for _ in range(2):
        nodeagent("install", "--root", str(tmp_path))
        assert (unit.read_text(), beside.read_text()) == ("edited", new)
    unit.write_text(new)
    nodeagent("install", "--root", str(tmp_path))
    assert (unit.read_text(), beside.exists()) == (new, False)
