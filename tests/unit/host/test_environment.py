"""The agent's files in a virtual environment, and their removal at uninstallation."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.errors import InstallError
from nodeagent.host.environment import (
    admit,
    begin,
    copy_packages,
    finish,
    is_installation,
    launcher,
    remove_environment,
)
from nodeagent.host.environment_files import own_files, remove_files
from nodeagent.host.manifest import NAME, Manifest, read_manifest, write_manifest

SITE = "lib/python3.11/site-packages"


def put(path: Path, text: str = "x") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def package(prefix: Path, name: str, *files: str, requires: tuple[str, ...] = ()) -> None:
    """Write the files, METADATA and RECORD of a package, as pip does."""
    info = f"{name}-1.0.dist-info"
    listed = [f"{name}/__init__.py", *files, f"{info}/METADATA", f"{info}/RECORD"]
    for each in listed:
        put(Path(os.path.normpath(prefix / SITE / each)), f"{name}: {each}")
    lines = ["Metadata-Version: 2.1", f"Name: {name}", "Version: 1.0", *(f"Requires-Dist: {each}" for each in requires)]
    put(prefix / SITE / info / "METADATA", "\n".join(lines) + "\n")
    put(prefix / SITE / info / "RECORD", "".join(f"{each},,\n" for each in listed))


def agent(prefix: Path) -> Path:
    """Write a virtual environment with nodeagent and its dependencies."""
    put(prefix / "pyvenv.cfg")
    for name in ("python", "python3", "python3.11", "activate", "activate.fish", "Activate.ps1"):
        put(prefix / "bin" / name)
    (prefix / "lib64").symlink_to("lib")
    (prefix / "include/python3.11").mkdir(parents=True)
    package(
        prefix,
        "nodeagent",
        *("../../../bin/nodeagent", "../../../share/nodeagent/unit", "nodeagent/cli/main.py", "../../../../outside"),
        requires=("Some_Lib>=1", "typer>=0.15; python_version > '3'", "extra-lib; extra == 'x'"),
    )
    (prefix.parent / "outside").write_text("not ours")
    package(prefix, "some.lib", "single.py", requires=("deep",))
    package(prefix, "deep")
    package(prefix, "pip", "../../../bin/pip")
    return prefix


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    return agent(tmp_path / "opt/agent")


def tree(directory: Path) -> set[str]:
    return {str(each.relative_to(directory)) for each in directory.rglob("*") if each.is_symlink() or not each.is_dir()}


def test_own_files_are_those_of_venv_pip_the_agent_and_its_libraries(prefix: Path) -> None:
    everything = tree(prefix)
    package(prefix, "ansible", "../../../bin/ansible")
    package(prefix, "extra_lib")
    for name in ("notes.txt", "bin/mine", "bin/pythonx-mine", f"{SITE}/mine.py", "include/mine.h", "lib/mine"):
        put(prefix / name)
    assert own_files(prefix) == everything


def test_installation_without_a_manifest_is_removed_completely(prefix: Path) -> None:
    for name in ("nodeagent/__pycache__/__init__.cpython-311.pyc", "__pycache__/single.cpython-311.opt-1.pyc"):
        put(prefix / SITE / name)
    assert is_installation(prefix)
    assert remove_environment(prefix) == []
    assert not prefix.exists()
    assert (prefix.parent / "outside").read_text() == "not ours"


def test_files_of_operators_are_kept_and_reported(prefix: Path) -> None:
    mine = {"notes.txt", "bin/mine", f"{SITE}/mine.py", f"{SITE}/nodeagent/plugin.py", "include/python3.11/mine.h"}
    mine |= {f"{SITE}/__pycache__/mine.cpython-311.pyc", f"{SITE}/nodeagent/__pycache__/plugin.cpython-311.pyc"}
    begin(prefix)
    finish(prefix, {})
    for name in mine:
        put(prefix / name, "mine")
    (prefix / "empty").mkdir()
    package(prefix, "ansible")
    begin(prefix)  # an upgrade; must not add the operator's files to the manifest
    finish(prefix, {})
    kept = remove_environment(prefix)
    ansible = {name for name in tree(prefix) if "ansible" in name}
    assert len(ansible) == 3
    assert tree(prefix) == mine | ansible
    assert {str(each.relative_to(prefix)) for each in kept} == mine | ansible | {"empty"}
    assert not (prefix / "bin/python").exists()


def test_environment_with_other_packages_and_no_manifest_is_kept(prefix: Path) -> None:
    package(prefix, "ansible")
    before = tree(prefix)
    assert not is_installation(prefix)
    with pytest.raises(InstallError, match=r"also contains other packages \(ansible\)"):
        admit(prefix)
    remove_environment(prefix)
    assert tree(prefix) == before


@pytest.mark.parametrize("name", ["data", "pyvenv.cfg", "bin/nodeagent"])
def test_directory_that_is_not_an_installation_is_refused(tmp_path: Path, name: str) -> None:
    put(tmp_path / "tools" / name)
    with pytest.raises(InstallError, match="nothing was changed"):
        admit(tmp_path / "tools")
    assert not is_installation(tmp_path / "tools")
    assert remove_environment(tmp_path / "tools")
    assert tree(tmp_path / "tools") == {name}


def test_absent_and_empty_directories_are_accepted(tmp_path: Path) -> None:
    assert admit(tmp_path / "absent") is None
    assert admit(tmp_path) is None


def test_link_and_file_are_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    put(tmp_path / "file")
    for name, text in (("link", "symbolic link to real"), ("file", "not a directory")):
        with pytest.raises(InstallError, match=text):
            admit(tmp_path / name)
        assert not is_installation(tmp_path / name)


def test_interrupted_installation_can_be_repeated_and_removed(tmp_path: Path) -> None:
    prefix = tmp_path / "agent"
    begin(prefix)
    found = admit(prefix)
    assert found is not None
    assert not found.complete
    put(prefix / "pyvenv.cfg")
    put(prefix / "bin/python3")
    package(prefix, "pip")
    put(prefix / "notes")
    assert is_installation(prefix)
    assert remove_environment(prefix) == [prefix / "notes"]


def test_interrupted_first_installation_with_other_packages_is_kept(prefix: Path) -> None:
    package(prefix, "ansible")
    before = tree(prefix)
    written = Manifest(environment=frozenset({"pyvenv.cfg"}))
    write_manifest(prefix, written)
    remove_environment(prefix)
    assert tree(prefix) == before


def test_files_of_a_former_library_remain_listed(prefix: Path) -> None:
    package(prefix, "former")
    metadata = prefix / SITE / "deep-1.0.dist-info/METADATA"
    metadata.write_text(metadata.read_text() + "Requires-Dist: former\n")
    begin(prefix)
    finish(prefix, {})
    metadata.write_text(metadata.read_text().replace("Requires-Dist: former\n", ""))
    begin(prefix)
    finish(prefix, {})
    assert remove_environment(prefix) == []


def test_only_files_of_a_complete_manifest_are_removed(prefix: Path) -> None:
    begin(prefix)
    finish(prefix, {})
    package(prefix, "deep2")
    metadata = prefix / SITE / "deep-1.0.dist-info/METADATA"
    metadata.write_text(metadata.read_text() + "Requires-Dist: deep2\n")
    assert len(remove_environment(prefix)) == 3


def test_environment_is_removed_despite_a_manifest_without_it(tmp_path: Path) -> None:
    prefix = tmp_path / "opt/agent"
    begin(prefix, {Path("/etc/x"): "a"}, venv=False)
    finish(prefix, {Path("/etc/x"): "a"})
    agent(prefix)
    assert remove_environment(prefix) == []
    assert not prefix.exists()


def test_manifest_lists_both_fingerprints_until_an_upgrade_is_complete(prefix: Path) -> None:
    unit, page = Path("/etc/unit"), Path("/usr/page")
    begin(prefix, {unit: "1", page: "p"})
    finish(prefix, {unit: "1", page: "p"})
    begin(prefix, {unit: "2"})
    during = read_manifest(prefix)
    assert during is not None
    assert during.files == {unit: {"1", "2"}, page: {"p"}}
    finish(prefix, {unit: "2"})
    after = read_manifest(prefix)
    assert after is not None
    assert after.files == {unit: {"2"}, page: {"p"}}


def test_files_behind_a_link_are_not_removed(tmp_path: Path) -> None:
    put(tmp_path / "elsewhere/share/file")
    put(tmp_path / "elsewhere/cache/module.cpython-311.pyc")
    prefix = tmp_path / "prefix"
    put(prefix / "module.py")
    (prefix / "share").symlink_to(tmp_path / "elsewhere/share")
    (prefix / "__pycache__").symlink_to(tmp_path / "elsewhere/cache")
    remove_files(prefix, ["share/file", "module.py"])
    assert tree(tmp_path / "elsewhere") == {"share/file", "cache/module.cpython-311.pyc"}
    assert tree(prefix) == {"share", "__pycache__"}


@given(
    st.sets(st.sampled_from(["a", "b/c", "b/d.py", "e/f/g", "h"])),
    st.sets(st.sampled_from(["a", "b", "b/c", "b/d.py", "e/f/g", "e/f", "../out", "/etc/passwd", "b/../h", "no"])),
)
def test_only_listed_files_are_removed(
    tmp_path_factory: pytest.TempPathFactory, present: set[str], listed: set[str]
) -> None:
    directory = tmp_path_factory.mktemp("p")
    put(directory / "out")
    for name in present:
        put(directory / "prefix" / name)
    remove_files(directory / "prefix", listed)
    assert tree(directory) == {"out", *(f"prefix/{name}" for name in present - listed)}


def test_copy_replaces_the_agents_packages_and_keeps_those_of_operators(tmp_path: Path) -> None:
    source, target = agent(tmp_path / "a/source"), agent(tmp_path / "b/target")
    package(target, "nodeagent", "nodeagent/former.py", requires=("some-lib", "former"))
    package(target, "former")
    package(target, "ansible")
    package(source, "pytest")
    put(target / SITE / "mine.py", "mine")
    put(source / SITE / "nodeagent/cli/main.py", "new")
    copy_packages(source, target)
    assert (target / SITE / "nodeagent/cli/main.py").read_text() == "new"
    assert (target / SITE / "mine.py").read_text() == "mine"
    names = tree(target)
    assert f"{SITE}/ansible/__init__.py" in names
    assert f"{SITE}/pip/__init__.py" in names
    assert not {name for name in names if "former" in name or "pytest" in name}


def test_source_without_a_record_of_the_agent_is_refused(tmp_path: Path) -> None:
    source = agent(tmp_path / "a/source")
    (source / SITE / "nodeagent-1.0.dist-info/RECORD").unlink()
    with pytest.raises(InstallError, match="has no record"):
        copy_packages(source, tmp_path / "target")
    assert not (tmp_path / "target").exists()


def test_directory_that_cannot_be_written_is_reported(prefix: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    begin(prefix)
    monkeypatch.setattr(Path, "unlink", fail)
    with pytest.raises(InstallError, match=r"cannot remove .*: Permission denied"):
        remove_environment(prefix)
    assert (prefix / NAME).exists()


def test_launcher_runs_python_in_isolated_mode() -> None:
    assert launcher("/opt/x").startswith("#!/opt/x/bin/python -I\n")
