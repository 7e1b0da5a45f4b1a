"""``nodeagent install`` and ``uninstall`` below another root: paths, upgrades, kept files."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from nodeagent.host.installation import launcher
from nodeagent.settings.loading import load
from nodeagent.settings.settings import Config
from tests.support.command import nodeagent

ROOT = Path(__file__).parents[3]


def fingerprint(text: str) -> str:
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


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
    command = installed / "usr/local/bin/nodeagent"
    assert (command.read_text(), command.stat().st_mode & 0o777) == (launcher("/opt/nodeagent"), 0o755)


def test_first_configuration_is_a_dry_run_with_the_defaults_in_15_lines(installed: Path, tmp_path: Path) -> None:
    path, uncommented = installed / "etc/nodeagent/config.toml", tmp_path / "config.toml"
    text = path.read_text()
    assert len(text.splitlines()) <= 15
    uncommented.write_text(re.sub(r"^#(?=\w+ = )", "", text, flags=re.MULTILINE))
    assert tomllib.loads(uncommented.read_text()) != tomllib.loads(text)
    assert load(path).config == load(uncommented).config == Config(dry_run=True)


def test_unit_matches_the_version_of_systemd(tmp_path: Path, installed: Path) -> None:
    old = (installed / "etc/systemd/system/nodeagent.service").read_text()
    assert old == (ROOT / "systemd/nodeagent.service").read_text()
    nodeagent("install", "--root", str(tmp_path), "--systemd", "253", "--prefix", "/srv/agent")
    new = (tmp_path / "etc/systemd/system/nodeagent.service").read_text()
    assert "Type=notify-reload\n" in new
    assert "/bin/kill" not in new
    assert "ExecReload=/srv/agent/bin/nodeagent config check --config /etc/nodeagent/config.toml\n" in new
    assert "ExecStart=/srv/agent/bin/nodeagent run" in new
    assert "/opt/nodeagent" not in new


def test_shell_scripts_have_valid_syntax(installed: Path) -> None:
    packaging = ROOT / "systemd/debian"
    scripts = [packaging / name for name in ("preinst", "postinst", "prerm", "postrm")]
    for shell, path in (
        ("bash", installed / "usr/local/share/bash-completion/completions/nodeagent"),
        ("bash", packaging / "build"),
        *(("sh", script) for script in (*scripts, ROOT / "systemd/purge.sh")),
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
    recorded["files"]["/etc/systemd/system/nodeagent.service"] = [fingerprint("old")]
    manifest.write_text(json.dumps(recorded))
    ended = nodeagent("install", "--root", str(tmp_path))
    assert "replaced    /etc/systemd/system/nodeagent.service\n" in ended.stdout
    assert "kept        /etc/nodeagent/config.toml" in ended.stdout
    assert "unchanged   /etc/sysusers.d/nodeagent.conf\n" in ended.stdout
    former = tmp_path / "usr/local/share/man/man1/nodeagent-former.1"
    former.write_text('.TH NODEAGENT\\-FORMER 1 "" "nodeagent 0.0.9" "nodeagent"\n')
    recorded = json.loads(manifest.read_text())
    recorded["files"]["/usr/local/share/man/man1/nodeagent-former.1"] = [fingerprint(former.read_text())]
    manifest.write_text(json.dumps(recorded))
    removed = nodeagent("uninstall", "--root", str(tmp_path))
    hint = f"remove them with: rm -r {tmp_path}/etc/nodeagent {tmp_path}/var/lib/nodeagent\n"
    assert (removed.returncode, hint in removed.stderr) == (0, True)
    kept = {"/" + str(each.relative_to(tmp_path)) for each in (config, other, state)}
    assert files(tmp_path) == kept
    nodeagent("install", "--root", str(tmp_path))
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
        recorded["files"][f"/{former.relative_to(tmp_path)}"] = [fingerprint(text)]
    manifest.write_text(json.dumps(recorded))
    ended = nodeagent("install", "--root", str(tmp_path))
    assert "removed     /etc/systemd/system/kubepods.slice.d/50-nodeagent.conf\n" in ended.stdout
    assert "kubepods-.slice.d/50-nodeagent.conf, kept as" in ended.stdout
    left = [each for each in files(tmp_path) if "slice" in each]
    assert left != []
    assert not any(each.endswith(".conf") for each in left), "systemd reads no saved file"


@pytest.mark.parametrize("name", ["bin/nodeagent", "pyvenv.cfg"])
def test_prefix_of_others_is_refused(tmp_path: Path, name: str) -> None:
    place = tmp_path / "opt/nodeagent" / name
    place.parent.mkdir(parents=True)
    place.write_text("mine")
    for command in (("install",), ("uninstall",), ("uninstall", "--purge")):
        refused = nodeagent(*command, "--root", str(tmp_path))
        assert (refused.returncode, "an installation of nodeagent; nothing was changed" in refused.stderr) == (1, True)
    assert files(tmp_path) == {f"/opt/nodeagent/{name}"}


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


def test_node_with_a_package_of_the_agent_is_refused_before_any_change(tmp_path: Path) -> None:
    unit = tmp_path / "usr/lib/systemd/system/nodeagent.service"
    unit.parent.mkdir(parents=True)
    unit.touch()
    ended = nodeagent("install", "--root", str(tmp_path))
    assert (ended.returncode, "is installed as a package" in ended.stderr) == (1, True)
    assert files(tmp_path) == {"/usr/lib/systemd/system/nodeagent.service"}


@pytest.mark.parametrize("link", ["etc", "etc/systemd", "usr/local", "var", "run", "opt"])
@pytest.mark.parametrize("command", ["install", "uninstall", "uninstall --purge"])
def test_symbolic_link_out_of_the_root_is_refused(tmp_path: Path, link: str, command: str) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    for name in ("var/lib/nodeagent", "run/nodeagent"):
        (root / name).mkdir(parents=True)
        (root / name / "shutdown.json").touch()
    assert nodeagent("install", "--root", str(root)).returncode == 0
    (root / link).rename(outside)
    (root / link).symlink_to(outside)
    before = files(outside), files(root)
    ended = nodeagent(*command.split(), "--root", str(root))
    if command == "install" and link in {"var", "run"}:  # has no file there
        assert ended.returncode == 0
        return
    assert (ended.returncode, "resolves outside" in ended.stderr) == (1, True), ended.stderr
    assert (files(outside), files(root)) == before


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


def test_name_of_a_kept_file_is_reported_escaped(tmp_path: Path) -> None:
    place = tmp_path / "opt/nodeagent"
    assert nodeagent("install", "--root", str(tmp_path)).returncode == 0
    names = (b"\xff\x1b]0;x", b"two\nlines", "zero\u200bwidth\u3164".encode())
    for name in names:
        Path(os.fsdecode(os.fsencode(place) + b"/" + name)).touch()
    ended = nodeagent("uninstall", "--root", str(tmp_path))
    assert ended.returncode == 0, ended.stderr
    assert f"kept        {place}/\\xff\\x1b]0;x (" in ended.stdout
    assert f"kept        {place}/two\\nlines (" in ended.stdout
    assert f"kept        {place}/zero\\u200bwidth\\u3164 (" in ended.stdout


def test_edited_unit_is_kept_until_it_is_removed_or_the_edit_is_reverted(tmp_path: Path) -> None:
    nodeagent("install", "--root", str(tmp_path))
    unit = tmp_path / "etc/systemd/system/nodeagent.service"
    manifest = tmp_path / "opt/nodeagent/nodeagent-manifest.json"
    recorded, new = json.loads(manifest.read_text()), unit.read_text()
    recorded["files"]["/etc/systemd/system/nodeagent.service"] = [fingerprint("old")]
    manifest.write_text(json.dumps(recorded))
    unit.write_text("edited")
    for _ in range(2):
        kept = nodeagent("install", "--root", str(tmp_path))
        assert (
            "kept        /etc/systemd/system/nodeagent.service (edited since it was installed; remove it" in kept.stdout
        )
        assert unit.read_text() == "edited"
    unit.unlink()
    assert "new         /etc/systemd/system/nodeagent.service\n" in nodeagent("install", "--root", str(tmp_path)).stdout
    assert unit.read_text() == new


def test_uninstallation_removes_its_directories_and_keeps_those_of_the_system(tmp_path: Path) -> None:
    nodeagent("install", "--root", str(tmp_path))
    before = {"/usr/local/share/zsh/mine"}
    (tmp_path / "usr/local/share/zsh/mine").mkdir()
    assert nodeagent("uninstall", "--root", str(tmp_path), "--purge").returncode == 0
    left = {f"/{each.relative_to(tmp_path)}" for each in tmp_path.rglob("*")}
    assert {each for each in left if each.count("/") > 3} == {"/usr/local/share/man", "/usr/local/share/zsh"} | before
    assert {"/etc/systemd/system", "/etc/sysusers.d", "/usr/local/bin", "/opt"} <= left


def test_kept_configuration_is_not_reported_as_a_dry_run(tmp_path: Path) -> None:
    first = nodeagent("install", "--root", str(tmp_path)).stdout
    assert "new         /etc/nodeagent/config.toml (dry_run = true: nothing is removed)\n" in first
    (tmp_path / "etc/nodeagent/config.toml").write_text("dry_run = false\n")
    assert "kept        /etc/nodeagent/config.toml\n" in nodeagent("install", "--root", str(tmp_path)).stdout


def test_files_and_manifest_of_version_0_2_0_are_taken_over(tmp_path: Path) -> None:
    """The command was a link, and the new unit of an edited one was placed beside it."""
    nodeagent("install", "--root", str(tmp_path))
    manifest = tmp_path / "opt/nodeagent/nodeagent-manifest.json"
    command = tmp_path / "usr/local/bin/nodeagent"
    beside = tmp_path / "etc/systemd/system/nodeagent.service.nodeagent-dist"
    command.unlink()
    command.symlink_to("/opt/nodeagent/bin/nodeagent")
    beside.write_text("unit")
    former = json.loads(manifest.read_text())
    former["files"] |= {
        "/usr/local/bin/nodeagent": ["link:/opt/nodeagent/bin/nodeagent"],
        "/etc/systemd/system/nodeagent.service.nodeagent-dist": [fingerprint("unit")],
    }
    del former["foreign"]
    manifest.write_text(json.dumps({**former, "version": "0.2.0"}))
    ended = nodeagent("install", "--root", str(tmp_path))
    assert "replaced    /usr/local/bin/nodeagent\n" in ended.stdout
    assert "removed     /etc/systemd/system/nodeagent.service.nodeagent-dist\n" in ended.stdout
    assert (command.is_symlink(), command.read_text()) == (False, launcher("/opt/nodeagent"))
    assert nodeagent("uninstall", "--root", str(tmp_path), "--purge").returncode == 0
    assert files(tmp_path) == set()
