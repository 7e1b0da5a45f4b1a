"""Tests of ``make install`` and ``make uninstall`` as root, on a temporary overlay of the system directories."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from tests.support.system_overlay import SystemOverlay, unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

UNIT = "/etc/systemd/system/nodeagent.service"
COMMAND = "/usr/local/bin/nodeagent"
MANIFEST = "/opt/nodeagent/nodeagent-manifest.json"
LISTING = (
    r"find /etc /opt /run /var/lib /usr/local /usr/bin /usr/lib/python3* /usr/lib/systemd -xdev "
    r"\( -name '*.pyc' -o -name __pycache__ -o -path '/etc/g*-' -o -path /var/lib/systemd/catalog \) -prune "
    r"-o -printf '%p %y %s %l\n' | grep -v '^[^ ]* d ' | sort"
)
"""Command that lists files and links, except bytecode, the journal catalog and the backups of groupdel."""
SYSTEM = (
    *("/", "/usr", "/usr/local", "/usr/local/bin", "/usr/local/lib/nodeagent", "/usr/lib/python3", "/etc/nodeagent"),
    *("/bin", "/opt", "/var/lib", "/var/lib/nodeagent", "/root", "opt/nodeagent", "/opt/../usr", "", "/opt/a b"),
)
PLANT = """
mkdir -p /opt/hostile && cd /opt/hostile && for name in nodeagent venv json structlog typer yaml pip ensurepip; do
    echo 'import posix; posix.mkdir("/opt/hostile/executed")' | tee $name.py >/dev/null
done
for name in systemctl journalctl systemd-sysusers systemd-tmpfiles getent groupdel python3 python; do
    printf '#!/bin/sh\\nmkdir -p /opt/hostile/executed\\n' >$name && chmod 755 $name
done
"""


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SystemOverlay]:
    """Return an overlay of the machine without an installed agent."""
    reason = unavailable()
    if reason is not None:
        if os.environ.get("CI") == "true":
            pytest.fail(f"system overlay unavailable, required in CI: {reason}", pytrace=False)
        pytest.skip(reason)
    with SystemOverlay(tmp_path_factory.mktemp("bare") / "o") as made:
        made.must("rm -rf /opt/nodeagent /etc/nodeagent /var/lib/nodeagent && userdel -f nodeagent 2>/dev/null; true")
        yield made


@pytest.fixture(scope="module")
def installed(bare: SystemOverlay, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SystemOverlay]:
    """Return an overlay of the machine after ``make install``."""
    with SystemOverlay(tmp_path_factory.mktemp("installed") / "o", bare) as made:
        output = made.must("make install")
        assert f"new         {UNIT}\n" in output
        assert f"new         {MANIFEST}\n" in output
        assert "nodeagent: installing the locked libraries in /opt/nodeagent from PyPI\n" in output
        yield made


@pytest.fixture
def clean(bare: SystemOverlay, tmp_path: Path) -> Iterator[SystemOverlay]:
    with SystemOverlay(tmp_path / "overlay", bare) as made:
        yield made


@pytest.fixture
def node(installed: SystemOverlay, tmp_path: Path) -> Iterator[SystemOverlay]:
    with SystemOverlay(tmp_path / "overlay", installed) as made:
        yield made


def refused(node: SystemOverlay, command: str, *words: str) -> None:
    """Run a command; assert that it fails, prints ``words`` and changes no file."""
    before = node.must(LISTING)
    done = node.run(command)
    assert done.returncode != 0, done.stdout
    for word in words:
        assert word in done.stdout
    assert "Traceback" not in done.stdout
    assert node.must(LISTING) == before


@pytest.mark.parametrize("target", ["install", "uninstall", "uninstall PURGE=1"])
def test_prefix_of_the_system_is_refused(clean: SystemOverlay, target: str) -> None:
    before = clean.must(LISTING)
    for prefix in SYSTEM:
        done = clean.run(f"make {target} PREFIX='{prefix}'")
        assert done.returncode != 0, (prefix, done.stdout)
        assert "--prefix" in done.stdout, (prefix, done.stdout)
    assert clean.must(LISTING) == before


def test_prefix_with_foreign_content_is_refused(clean: SystemOverlay) -> None:
    clean.must("mkdir -p /opt/tools/bin && echo data >/opt/tools/data && echo mine >/opt/tools/bin/nodeagent")
    refused(clean, "make install PREFIX=/opt/tools", "/opt/tools: neither empty nor an installation")
    refused(clean, "make uninstall PREFIX=/opt/tools PURGE=1", "/opt/tools is not an installation")


def test_foreign_virtual_environment_is_refused(clean: SystemOverlay) -> None:
    clean.must("python3 -m venv --without-pip /opt/tools && echo data >/opt/tools/data")
    refused(clean, "make install PREFIX=/opt/tools", "/opt/tools: neither empty nor an installation of nodeagent")
    refused(clean, "make uninstall PREFIX=/opt/tools", "not an installation")


def test_prefix_that_is_or_passes_a_link_into_the_system_is_refused(clean: SystemOverlay) -> None:
    clean.must("ln -s /usr /opt/link && mkdir /opt/real && ln -s /opt/real /opt/nodeagent")
    refused(clean, "make install PREFIX=/opt/link/nodeagent", "outside of system directories")
    refused(
        clean, "make install PREFIX=/opt/nodeagent", "/opt/nodeagent: neither empty nor an installation of nodeagent"
    )
    refused(clean, "make uninstall PREFIX=/opt/nodeagent", "not an installation")


def test_prefix_below_a_directory_of_another_user_is_refused(clean: SystemOverlay) -> None:
    clean.must("mkdir -p /opt/open /opt/theirs && chmod 777 /opt/open && chown 1000 /opt/theirs")
    refused(clean, "make install PREFIX=/opt/open/agent", "not trusted: /opt/open is writable by all users")
    refused(clean, "make install PREFIX=/opt/theirs/agent", "not trusted: /opt/theirs is owned by uid 1000")


@pytest.mark.parametrize(
    ("place", "plant"),
    [
        (COMMAND, f"printf '#!/bin/sh\\n' >{COMMAND}"),
        (COMMAND, f"ln -s /opt/other/nodeagent {COMMAND}"),
        (UNIT, f"printf '[Service]\\nExecStart=/opt/other/nodeagent\\n' >{UNIT}"),
        (UNIT, f"ln -s /dev/null {UNIT}"),
        ("/etc/tmpfiles.d/nodeagent.conf", "mkdir -p /etc/tmpfiles.d; echo 'd /srv/x' >/etc/tmpfiles.d/nodeagent.conf"),
    ],
    ids=["command", "link", "unit", "mask", "tmpfiles"],
)
def test_foreign_file_at_a_path_of_the_agent_is_refused_before_any_change(
    clean: SystemOverlay, place: str, plant: str
) -> None:
    clean.must(plant)
    refused(
        clean, "make install", f"{place}: exists, not installed by this installation; uninstall the other, or move it"
    )
    assert clean.run("test -e /opt/nodeagent").returncode == 1


def test_node_with_a_package_of_the_agent_is_refused_before_any_change(clean: SystemOverlay) -> None:
    clean.must("mkdir -p /usr/lib/systemd/system && touch /usr/lib/systemd/system/nodeagent.service")
    refused(clean, "make install", "the agent is installed as a package; upgrade or remove it with the package manager")


def test_interrupted_upgrade_keeps_the_agent_and_is_repeated(node: SystemOverlay) -> None:
    node.must("echo mine >/opt/nodeagent/notes")
    assert node.run("make install", PIP_NO_INDEX="1", PIP_FIND_LINKS="/nowhere").returncode != 0
    assert node.must("cd / && nodeagent --version").startswith("nodeagent ")
    refused(node, "make uninstall", "is incomplete: run make install again")
    node.must("make install && make uninstall PURGE=1")
    assert node.must("ls -A /opt/nodeagent") == "notes\n"


def test_installed_agent_runs_and_uninstall_removes_all_its_files(
    bare: SystemOverlay, node: SystemOverlay, tmp_path: Path
) -> None:
    assert node.must("cd / && nodeagent --version").startswith("nodeagent ")
    assert node.must("head -1 /opt/nodeagent/bin/nodeagent") == "#!/opt/nodeagent/bin/python -I\n"
    with SystemOverlay(tmp_path / "again", node) as again:
        output = again.must("make install")
        assert f"unchanged   {UNIT}\n" in output
        assert "kept        /etc/nodeagent/config.toml" in output
        output = again.must("make uninstall")
        assert "kept        /etc/nodeagent\n" in output
        assert again.must("ls -A /etc/nodeagent /var/lib/nodeagent").split()[1] == "config.toml"
        assert "configuration and state are kept, remove them with: rm -r /etc/nodeagent /var/lib/nodeagent" in output
        assert again.run("test -e /opt/nodeagent").returncode == 1
    output = node.must("make uninstall PURGE=1")
    assert "removed     /opt/nodeagent (virtual environment)\n" in output
    assert node.must(LISTING) == bare.must(LISTING)


def test_files_of_operators_are_kept_by_upgrade_and_purge(bare: SystemOverlay, node: SystemOverlay) -> None:
    mine = (
        *("/opt/nodeagent/notes.txt", "/opt/nodeagent/bin/mine", "/opt/nodeagent/lib/python3.11/site-packages/mine.py"),
        *("/etc/nodeagent/kubelet.key", "/etc/nodeagent/config.d/README", "/var/lib/nodeagent/backup.tar"),
        *("/etc/systemd/logind.conf.d/50-nodeagent.conf", "/usr/local/share/man/man1/nodeagent-exporter.1"),
        *("/etc/systemd/system/nodeagent.service.d/50-mine.conf", "/usr/local/share/nodeagent/mine.yml"),
    )
    node.must("".join(f"mkdir -p $(dirname {each}) && echo mine >{each}\n" for each in mine))
    before = bare.must(LISTING)
    node.must("make install")
    output = node.must("make uninstall PURGE=1")
    for each in (*mine[:6], mine[6]):
        assert f"kept        {each} (" in output
    left = set(node.must(LISTING).splitlines()) - set(before.splitlines())
    assert {line.split()[0] for line in left} == set(mine)


def test_links_to_state_and_configuration_are_not_followed(node: SystemOverlay) -> None:
    node.must(
        "mkdir -p /opt/data/state /opt/data/config.d && mv /etc/nodeagent/config.toml /opt/data/ "
        "&& rm -rf /etc/nodeagent /var/lib/nodeagent "
        "&& ln -s /opt/data /etc/nodeagent && ln -s /opt/data/state /var/lib/nodeagent "
        "&& touch /opt/data/state/nodeagent.db /opt/data/config.d/a.toml"
    )
    output = node.must("make uninstall PURGE=1")
    assert "kept        /etc/nodeagent (a symbolic link to /opt/data, not followed)\n" in output
    assert "kept        /var/lib/nodeagent (a symbolic link to /opt/data/state, not followed)\n" in output
    assert node.must("cd /opt/data && find . -type f | sort").split() == [
        *("./config.d/a.toml", "./config.toml", "./state/nodeagent.db")
    ]


def test_installation_without_a_manifest_is_kept(node: SystemOverlay) -> None:
    node.must(f"rm {MANIFEST} && touch /opt/nodeagent/notes")
    refused(node, "make install", "/opt/nodeagent: neither empty nor an installation of nodeagent")
    refused(node, "make uninstall PURGE=1", "not an installation")


def test_environment_made_by_pip_is_kept(node: SystemOverlay) -> None:
    node.must(f"rm {MANIFEST} && cd / && /opt/nodeagent/bin/nodeagent install")
    before = node.must("find /opt/nodeagent -type f -not -name '*.pyc' -not -name '*.json' | sort")
    output = node.must("cd / && /opt/nodeagent/bin/nodeagent uninstall")
    assert "kept        /opt/nodeagent/bin (not installed by nodeagent)\n" in output
    assert node.must("find /opt/nodeagent -type f -not -name '*.pyc' -not -name '*.json' | sort") == before
    assert node.run(f"test -e {UNIT} || test -e {COMMAND}").returncode == 1


def test_interrupted_installation_is_repeated_without_modules_of_the_callers_search_path(clean: SystemOverlay) -> None:
    assert clean.run("make install", PIP_NO_INDEX="1", PIP_FIND_LINKS="/nowhere").returncode != 0
    assert not json.loads(clean.must(f"cat {MANIFEST}"))["complete"]
    refused(clean, "make uninstall", "is incomplete: run make install again")
    clean.must(PLANT)
    clean.must("make install && make uninstall PURGE=1", PYTHONPATH="/opt/hostile")
    assert clean.run("test -e /opt/hostile/executed || test -e /opt/nodeagent").returncode == 1


def test_edited_unit_is_kept_by_an_upgrade_and_saved_by_uninstall(node: SystemOverlay) -> None:
    node.must(f"sed -i 's/^RestartSec=.*/RestartSec=9s/' {UNIT}")
    node.must("sed -i 's/^WatchdogSec=.*/WatchdogSec=61s/' systemd/nodeagent.service")
    assert f"kept        {UNIT} (edited since it was installed; remove it and" in node.must("make install")
    assert "RestartSec=9s\n" in node.must(f"cat {UNIT}")
    assert "WatchdogSec=61s\n" not in node.must(f"cat {UNIT}")
    output = node.must("make uninstall")
    assert f"removed     {UNIT}, kept as nodeagent.service.nodeagent-old" in output
    assert node.must(f"ls {UNIT}*") == f"{UNIT}.nodeagent-old\n"
    assert "RestartSec=9s\n" in node.must(f"cat {UNIT}.nodeagent-old")


def test_foreign_paths_in_a_manifest_are_not_removed(node: SystemOverlay, tmp_path: Path) -> None:
    text = json.loads(node.must(f"cat {MANIFEST}"))

    def forge(on: SystemOverlay, **changes: object) -> None:
        (tmp_path / "forged").write_text(json.dumps({**text, **changes}))
        on.must(f"cat {tmp_path}/forged >{MANIFEST}")

    forge(node, files={**text["files"], "/etc/../etc/passwd": []})
    refused(node, "make uninstall PURGE=1", "is not valid")
    forge(node)
    node.must(f"chmod 666 {MANIFEST}")
    refused(node, "make uninstall PURGE=1", "writable by all users")
    node.must(f"chmod 644 {MANIFEST} && chown 1000 {MANIFEST}")
    refused(node, "make uninstall", "owned by uid 1000")
    node.must(f"chown 0 {MANIFEST} && ln -s /etc /opt/nodeagent/etc && cp /etc/passwd /opt/passwd")
    known = {"/etc/passwd": [node.must("sha256sum /etc/passwd | sed 's/ .*//; s/^/sha256:/'").strip()]}
    outside = ["../../etc/passwd", "/etc/passwd", "lib/../../../etc/passwd", "", "etc/passwd", "lib"]
    forge(node, files={**text["files"], **known})
    refused(node, "make uninstall PURGE=1", "is not valid")
    forge(node, environment=[*text["environment"], *outside])
    node.must("make uninstall PURGE=1")
    node.must("cmp /etc/passwd /opt/passwd")
    assert node.must("ls -A /opt/nodeagent") == "etc\n"


def test_unit_of_another_prefix_is_not_replaced_or_removed(node: SystemOverlay) -> None:
    refused(
        node, "make install PREFIX=/opt/second", f"{UNIT}, ", "not installed by this installation; uninstall the other"
    )
    refused(node, "cd / && nodeagent uninstall --prefix /opt/second", "/opt/second is not an installation")


@pytest.mark.parametrize("path", ["/usr/bin:/bin", ".::/usr/local/sbin:/usr/sbin:/usr/bin:/bin"])
def test_install_and_uninstall_in_a_hostile_directory_execute_no_file_of_it(node: SystemOverlay, path: str) -> None:
    node.must(PLANT)
    copied = "cd /opt/hostile && /opt/nodeagent/bin/nodeagent"
    node.must(f"{copied} install", PATH=path, PYTHONPATH="/opt/hostile")
    node.must(f"{copied} uninstall --purge", PATH=path, PYTHONPATH="/opt/hostile")
    assert node.run("test -e /opt/hostile/executed").returncode == 1


def test_command_of_another_environment_is_refused(node: SystemOverlay) -> None:
    refused(node, "cd / && /opt/nodeagent/bin/nodeagent install --prefix /opt/second", "use /opt/second/bin/nodeagent")
