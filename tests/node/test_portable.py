"""Tests of the attached portable service: those of an installed package, without its own files on the host.

The build of the image takes minutes: ``make test-portable`` builds it and passes its path in
``NODEAGENT_TEST_PORTABLE``.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.node.test_install import (
    CONFIG,
    assert_dry_run_then_removal,
    assert_endpoints,
    listing,
)
from tests.support import reclaim, vm

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.vm import Node
    from tests.support.vm.node import Done

pytestmark = [
    pytest.mark.node,
    pytest.mark.long,
    pytest.mark.skipif("NODEAGENT_TEST_PORTABLE" not in os.environ, reason="NODEAGENT_TEST_PORTABLE is not set"),
]

PLACE = "/var/lib/portables"
COMMAND = "/usr/local/bin/nodeagent"
HOST_FILES = (
    "/etc/sysusers.d/nodeagent.conf",
    "/etc/tmpfiles.d/nodeagent.conf",
    "/etc/systemd/portable/profile/nodeagent",
    COMMAND,
)


@pytest.fixture(scope="module")
def image() -> Path:
    return Path(os.environ["NODEAGENT_TEST_PORTABLE"])


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the Debian package with portablectl, which the nodes of other tests do not need."""
    scratch = tmp_path_factory.mktemp("tools")
    options = ["--quiet", "--mode=chrootless", "--variant=extract", "--skip=download/empty"]
    copy = f'--extract-hook=cp "$1"/var/cache/apt/archives/systemd-container_*.deb {scratch}'
    command = ["mmdebstrap", *options, "--include=systemd-container", copy, vm.release().suite, str(scratch / "root")]
    subprocess.run(command, check=True, timeout=600, capture_output=True)
    (package,) = scratch.glob("*.deb")
    return package


@pytest.fixture(scope="module")
def host(node: Node, tools: Path, image: Path) -> Iterator[Node]:
    """Return the node without an installation, with portablectl and the image."""
    node.run(f"rm -rf {COMMAND} /etc/nodeagent /var/lib/nodeagent /run/nodeagent")
    node.put("/root/tools.deb", tools)
    # Extracted only: other programs of the package depend on further libraries.
    node.run("dpkg-deb --extract /root/tools.deb / && systemctl daemon-reload && systemctl reload dbus", timeout_s=300)
    node.put(f"{PLACE}/{image.name}", image)
    node.run("mkdir -p /var/log/pods")  # the unit has no write access to a directory created after its start
    yield node
    node.run("systemctl stop nodeagent", check=False, timeout_s=60)


def test_image_has_the_files_that_portablectl_requires(image: Path, tmp_path: Path) -> None:
    subprocess.run(["unsquashfs", "-quiet", "-no-progress", "-dest", tmp_path / "root", image], check=True)
    root = tmp_path / "root"
    units = root / "usr/lib/systemd/system"
    assert [each.name for each in units.iterdir() if each.is_file()] == ["nodeagent.service"]
    assert image.name.partition("_")[0] == "nodeagent"
    assert "PORTABLE_PREFIXES=nodeagent\n" in (root / "etc/os-release").read_text()
    assert [(root / "etc" / name).read_bytes() for name in ("machine-id", "resolv.conf", "hostname")] == [b""] * 3
    for name in ("proc", "sys", "dev", "run", "tmp", "var/tmp", "etc/nodeagent", "var/lib/nodeagent", "home", "root"):
        assert list((root / name).iterdir()) == [], name
    assert (root / "tmp").stat().st_mode & 0o7777 == 0o1777
    assert {(each.lstat().st_uid, each.lstat().st_gid) for each in [root, *root.rglob("*")]} == {(0, 0)}


def test_attached_service_runs_is_attached_again_starts_at_boot_and_is_detached(host: Node, image: Path) -> None:
    before = listing(host)
    place = f"{PLACE}/{image.name}"
    host.run(f"mount -o ro {place} /mnt && cp -rn /mnt/usr/share/nodeagent/host/. / && umount /mnt", timeout_s=120)
    host.run("systemd-sysusers nodeagent.conf && systemd-tmpfiles --create nodeagent.conf")
    host.run(f"portablectl attach --profile=nodeagent --enable --now {place}", timeout_s=300)
    reclaim.poll("it is ready", lambda: host.run("nodeagent status", check=False).code == 0, timeout_s=120)
    assert_service(host, image)
    assert_doctor(host)
    assert_endpoints(host)
    assert_dry_run_then_removal(host, "node.test/portable:v1")
    assert_logs_are_writable_and_the_root_is_not(host)
    assert_command_without_the_service(host)
    assert_group_has_access(host)
    pid = host.run("systemctl show nodeagent -p MainPID --value").stdout
    host.run(f"portablectl reattach --profile=nodeagent --enable --now {place}", timeout_s=300)
    assert host.run("systemctl is-active nodeagent").stdout.strip() == "active"
    assert host.run("systemctl show nodeagent -p MainPID --value").stdout != pid
    assert host.run(f"grep -c 'dry_run = false' {CONFIG}").stdout.strip() == "1"
    host.poweroff(timeout_s=300)
    host.start()
    assert host.run("systemctl is-active nodeagent").stdout.strip() == "active"
    host.run(f"portablectl detach --enable --now {place}", timeout_s=300)
    assert host.run("systemctl cat nodeagent", check=False).code != 0
    assert host.run("pgrep -f '[n]odeagent run'", check=False).stdout == ""
    assert "nodeagent" not in host.run("losetup -a; systemd-inhibit --list --no-pager").stdout
    assert host.run(f"test -e {CONFIG} && test -e /var/lib/nodeagent/history.db", check=False).code == 0
    host.run(f"rm -r /etc/nodeagent /var/lib/nodeagent /run/nodeagent {' '.join(HOST_FILES)}")
    assert {each for each in listing(host) - before if "nodeagent" in each} == set()


def assert_service(host: Node, image: Path) -> None:
    """Assert that the unit of the image runs with the inhibitor lock, and from the image."""
    log = host.run("journalctl -u nodeagent --no-pager | tail -n 40").stdout
    shown = host.run("systemctl show nodeagent -p ActiveState,Type --value").stdout.split()
    assert shown == ["notify", "active"], log
    assert host.run("systemctl show nodeagent -p RootImage --value").stdout.strip() == f"{PLACE}/{image.name}"
    assert host.run("systemctl show nodeagent -p NRestarts --value").stdout.strip() == "0", log
    pid = host.run("systemctl show nodeagent -p MainPID --value").stdout.strip()
    assert "squashfs" in host.run(f"grep ' / / ' /proc/{pid}/mountinfo").stdout
    assert "nodeagent" in host.run("systemd-inhibit --list --no-pager").stdout
    security = host.run("systemd-analyze security nodeagent --no-pager", timeout_s=120).stdout.splitlines()[-1]
    print(security)
    assert host.run("stat -c '%a %U %G' /run/nodeagent").stdout.split() == ["2750", "root", "nodeagent"]
    assert host.run("stat -c '%a %U %G' /run/nodeagent/control.sock").stdout.split() == ["660", "root", "nodeagent"]


def assert_doctor(host: Node) -> None:
    document = json.loads(host.run("nodeagent doctor -o json", check=False, timeout_s=120).stdout)
    verdicts = {each["check"]: each["verdict"] for each in document["findings"]}
    print(json.dumps(document["findings"]))
    expected = ("configuration", "agent", "control-group")
    assert {name: verdicts[name] for name in expected} == dict.fromkeys(expected, "ok")


def assert_logs_are_writable_and_the_root_is_not(host: Node) -> None:
    pid = host.run("systemctl show nodeagent -p MainPID --value").stdout.strip()
    python = f"nsenter --target {pid} --mount --root --wd=/ -- /usr/bin/python3 -I -S -c"
    write = 'import sys; open(sys.argv[1], \\"w\\").close()'

    def writable(path: str) -> bool:
        return host.run(f'{python} "{write}" {path} && rm {path}', check=False).code == 0

    assert writable("/var/log/pods/probe")
    for path in ("/var/log/probe", "/var/lib/containerd/probe", "/etc/nodeagent/probe", "/usr/probe", "/run/probe"):
        assert not writable(path), path


def assert_group_has_access(host: Node) -> None:
    """Assert the access rights at the control socket with the command of a checkout; that of the host requires root."""
    host.run("useradd -G nodeagent member && useradd stranger")

    def run_as(user: str, *command: str) -> Done:
        return host.run(["runuser", "-u", user, "--", "/opt/nodeagent/bin/nodeagent", *command], check=False)

    assert run_as("member", "status").code == 0
    assert run_as("stranger", "status").code == 1
    refused = run_as("member", "trigger", "images")
    assert (refused.code, "control.group_may_act" in refused.stdout + refused.stderr) == (1, True), refused
    host.run("userdel member && userdel stranger")


def assert_command_without_the_service(host: Node) -> None:
    host.run("systemctl stop nodeagent", timeout_s=120)
    checked = host.run("nodeagent config check", check=False, timeout_s=120)
    assert checked.code == 0, checked
    host.run("systemctl start nodeagent", timeout_s=120)
    reclaim.poll("it is ready", lambda: host.run("nodeagent status", check=False).code == 0, timeout_s=120)
