"""Tests of installations in a virtual machine: dry run by default, upgrade from 0.2.0, and complete removal."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.support import images, reclaim, vm

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.vm import Node

pytestmark = pytest.mark.node

CONFIG = "/etc/nodeagent/config.toml"
FORMER = "2e3f6d06868887bac2659be4fd0a3fbe472f9676"
"""Commit of version 0.2.0."""
DROP_IN = """\
reload_grace = "5s"
[image_gc]
interval = "2s"
minimum_age = "0s"
maximum_unused_age = "1s"
irreplaceable = "ignore"
[container_gc]
enabled = false
"""
PLACES = "/etc /usr /opt /var/lib/nodeagent /var/lib/systemd"
LISTING = (
    rf"find {PLACES} -xdev \( -name __pycache__ -o -name '*.pyc' -o -path /usr/src \) -prune -o -print 2>/dev/null"
)
OF_SYSTEMD = ("/var/lib/systemd/catalog", "/var/lib/systemd/timers", "/var/lib/systemd/coredump")


def unit_type() -> str:
    """Return the type of the installed unit: reload notifications require systemd 253."""
    return "notify-reload" if vm.release().systemd >= 253 else "notify"


def listing(node: Node) -> set[str]:
    found = node.run(LISTING, check=False, timeout_s=300).stdout.splitlines()
    return {each for each in found if not each.startswith(OF_SYSTEMD)}


def assert_started(node: Node) -> None:
    shown = node.run("systemctl show nodeagent -p ActiveState,UnitFileState,Type --value").stdout.split()
    assert sorted(shown) == sorted([unit_type(), "active", "enabled"])
    assert node.run("cat /etc/debian_version").stdout.startswith(f"{vm.release().number}.")


def has_event(node: Node, event: str, *matches: str) -> bool:
    words = ["journalctl", "-o", "json", "--no-pager", f"NODEAGENT_EVENT={event}", *matches]
    return bool(node.run(words).stdout.strip())


def switch_to_active(node: Node) -> None:
    """Set ``dry_run = false`` in the configuration and reload the service."""
    node.run(f"sed -i 's/^dry_run = true/dry_run = false/' {CONFIG} && systemctl reload nodeagent", timeout_s=60)


def assert_dry_run_then_removal(node: Node, name: str) -> None:
    node.put("/etc/nodeagent/config.d/test.toml", DROP_IN)
    node.import_images(images.image(name, layers=[images.blob(name, 1 << 20)]))
    node.run("systemctl restart nodeagent", timeout_s=120)
    shown = f"IMAGE_REF={name}"
    reclaim.poll(
        "the removal is announced in the log",
        lambda: has_event(node, "would_remove", shown),
        timeout_s=120,
        interval_s=1,
    )
    assert name in node.run("ctr -n k8s.io images ls -q").stdout
    switch_to_active(node)
    reclaim.poll("it removes", lambda: has_event(node, "removal", shown, "OUTCOME=done"), timeout_s=120, interval_s=1)
    assert name not in node.run("ctr -n k8s.io images ls -q").stdout


GET = """\
import socket, sys
family, place = (socket.AF_UNIX, sys.argv[1]) if sys.argv[1][0] == "/" else (socket.AF_INET, ("127.0.0.1", 20310))
with socket.socket(family) as client:
    client.connect(place)
    client.sendall(f"GET {sys.argv[2]} HTTP/1.1\\r\\nHost: localhost\\r\\n\\r\\n".encode())
    print(b"".join(iter(lambda: client.recv(65536), b"")).decode())
"""


def assert_endpoints(node: Node) -> None:
    """Assert that the hardened unit serves metrics and health probes, on loopback and on a socket of the group."""

    def get(place: str, path: str) -> str:
        return node.run(["/opt/nodeagent/bin/python", "-c", GET, place, path], check=False, timeout_s=60).stdout

    reclaim.poll("the agent is ready", lambda: "200 OK" in get("loopback", "/readyz"), timeout_s=120, interval_s=1)
    before = rss_mib(node)
    metrics = get("loopback", "/metrics")
    for line in ("nodeagent_runtime_up 1.0", 'nodeagent_memory_persistent{part="history"} 1.0'):
        assert line in metrics, metrics
    print(f"resident before the first scrape {before:.1f} MiB, after it {rss_mib(node):.1f} MiB")
    node.put("/etc/nodeagent/config.d/metrics.toml", '[metrics]\nlisten = "unix:///run/nodeagent/metrics.sock"\n')
    node.run("systemctl reload nodeagent", timeout_s=60)
    place = "/run/nodeagent/metrics.sock"
    reclaim.poll(
        "the metrics listen on the new socket", lambda: "200 OK" in get(place, "/healthz"), timeout_s=60, interval_s=1
    )
    assert node.run(f"stat -c '%a %U %G' {place}").stdout.split() == ["660", "root", "nodeagent"]
    assert get("loopback", "/healthz") == ""


def rss_mib(node: Node) -> float:
    pid = node.run("systemctl show nodeagent -p MainPID --value").stdout.strip()
    return int(node.run(f"grep VmRSS /proc/{pid}/status").stdout.split()[1]) / 1024


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("packages")
    script = vm.CHECKOUT / "systemd/debian/build"
    subprocess.run([script, sys.executable, output], check=True, timeout=600, capture_output=True)
    (built,) = output.glob(f"*deb{vm.release().number}_*.deb")
    return built


@pytest.fixture(scope="module")
def former(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with version 0.2.0 and, in ``wheels``, the locked wheels of both versions."""
    place = tmp_path_factory.mktemp("former")
    archived = subprocess.run(["git", "archive", FORMER], cwd=vm.CHECKOUT, capture_output=True, check=False, timeout=60)
    if archived.returncode:
        pytest.skip(f"history without version 0.2.0: {archived.stderr.decode(errors='replace').strip()}")
    subprocess.run(["tar", "-x", "-C", place], input=archived.stdout, check=True, timeout=60)
    python = vm.release().python
    platforms = [f"--platform=manylinux{version}_x86_64" for version in ("_2_34", "_2_28", "_2_17", "2014")]
    only = ["--only-binary=:all:", "--implementation=cp", f"--python-version={python}", *platforms]
    download = [sys.executable, "-I", "-m", "pip", "download", "--quiet", "--dest", str(place / "wheels"), *only]
    for each in (place, vm.CHECKOUT):
        locked = ["--require-hashes", "-r", str(each / "requirements.lock")]
        subprocess.run([*download, *locked], check=True, timeout=600)
    subprocess.run([*download, "setuptools>=77"], check=True, timeout=600)
    return place


@pytest.fixture(scope="module")
def bare(node: Node) -> Iterator[Node]:
    """Return the node with only the agent's virtual environment, as before ``nodeagent install``."""
    node.run("rm -f /usr/local/bin/nodeagent")
    yield node
    node.run("systemctl stop nodeagent", check=False, timeout_s=60)


def run_as(node: Node, user: str, command: str) -> tuple[int, str]:
    """Run a ``nodeagent`` command as a user; return its exit code and output."""
    done = node.run(f"runuser -u {user} -- nodeagent {command}", check=False, timeout_s=120)
    return done.code, done.stdout + done.stderr


def assert_access_rights(node: Node) -> None:
    """Assert the access rights of root, of the group without and with ``group_may_act``, and of other users."""
    node.run("useradd -G nodeagent member && useradd stranger")
    code, output = run_as(node, "root", "status")
    assert code == 0, output
    assert "running (pid " in output
    assert "containerd 1." in output
    code, output = run_as(node, "stranger", "status")
    assert (code, "only root and members of group nodeagent have access" in output) == (1, True), output
    code, output = run_as(node, "member", "status -o json")
    assert code == 0, output
    assert json.loads(output)["agent"]["ready"], output
    assert run_as(node, "member", "gc all --dry-run")[0] == 0
    assert run_as(node, "member", "history")[0] == 0
    for refused in ("trigger images", "pause --for 5m", "gc all --yes", "hold add app:v1 --for 5m --why x", "reload"):
        code, output = run_as(node, "member", refused)
        assert (code, "control.group_may_act = true lets them act" in output) == (1, True), (refused, output)
    node.put("/etc/nodeagent/config.d/rights.toml", "[control]\ngroup_may_act = true\n")
    code, output = run_as(node, "root", "reload")
    expected = ["Configuration reloaded: 1 setting changed", "  control.group_may_act: false -> true"]
    assert (code, output.splitlines()[:2]) == (0, expected), output
    code, output = run_as(node, "member", "trigger images --wait")
    assert (code, output.partition(":")[0]) == (0, "images"), output
    assert run_as(node, "member", "pause --for 5m --why maintenance")[0] == 0
    assert "paused (" in run_as(node, "root", "status")[1]
    node.run("systemctl restart nodeagent", timeout_s=120)
    assert "paused (" in run_as(node, "root", "status")[1]
    assert run_as(node, "member", "resume") == (0, "resumed\n")
    output = node.run("journalctl NODEAGENT_EVENT=control_request NODEAGENT_USER=member -o cat --no-pager").stdout
    assert "Pause by member" in output
    node.run("userdel member && userdel stranger")


def test_manually_installed_agent_runs_and_is_uninstalled(bare: Node) -> None:
    before = listing(bare)
    done = bare.run("/opt/nodeagent/bin/nodeagent install --enable", timeout_s=300)
    assert f"new         {CONFIG} (dry_run = true: nothing is removed)" in done.stdout
    assert_started(bare)
    assert "nodeagent:" in bare.run("getent group nodeagent").stdout
    assert bare.run("stat -c '%a %U %G' /run/nodeagent").stdout.split() == ["2750", "root", "nodeagent"]
    assert bare.run("stat -c '%a %U %G' /run/nodeagent/control.sock").stdout.split() == ["660", "root", "nodeagent"]
    findings = {
        each["check"]: each for each in json.loads(bare.run("nodeagent doctor -o json", check=False).stdout)["findings"]
    }
    assert findings["unit"]["verdict"] == "ok", findings
    assert findings["configuration"]["verdict"] == "ok"
    assert findings["agent"]["verdict"] == findings["control-group"]["verdict"] == "ok", findings
    assert_endpoints(bare)
    assert_dry_run_then_removal(bare, "node.test/by-hand:v1")
    assert_access_rights(bare)
    again = bare.run("nodeagent install", timeout_s=300)
    assert f"kept        {CONFIG}" in again.stdout
    assert bare.run("systemctl is-active nodeagent").stdout.strip() == "active"
    kept = bare.run("nodeagent uninstall", timeout_s=300)
    assert "kept        /etc/nodeagent\n" in kept.stdout
    left = {each for each in listing(bare) - before if not each.startswith(("/etc/nodeagent", "/var/lib/nodeagent"))}
    assert {each for each in left if "nodeagent" in each} == set()
    assert bare.run(f"grep -c 'dry_run = false' {CONFIG}").stdout.strip() == "1"
    assert bare.run("systemctl cat nodeagent", check=False).code != 0
    assert bare.run("test -x /opt/nodeagent/bin/python", check=False).code == 0, "made by pip, not by make install"


@pytest.mark.long
def test_installed_package_runs_is_upgraded_and_purged(bare: Node, package: Path) -> None:
    bare.run("rm -rf /etc/nodeagent /var/lib/nodeagent /run/nodeagent && (groupdel nodeagent || true)")
    before = listing(bare)
    bare.put("/root/nodeagent.deb", package)
    bare.run("dpkg -i /root/nodeagent.deb", timeout_s=600)
    assert_started(bare)
    assert_dry_run_then_removal(bare, "node.test/packaged:v1")
    environment = bare.run("readlink /usr/lib/nodeagent/venv").stdout
    pid = bare.run("systemctl show nodeagent -p MainPID --value").stdout
    bare.run("dpkg -i /root/nodeagent.deb", timeout_s=600)
    assert bare.run("readlink /usr/lib/nodeagent/venv").stdout != environment
    assert bare.run("systemctl show nodeagent -p MainPID --value").stdout != pid
    assert bare.run(f"grep -c 'dry_run = false' {CONFIG}").stdout.strip() == "1"
    assert bare.run("ls -d /usr/lib/nodeagent/venv-*").stdout.count("\n") == 1
    bare.run("dpkg -r nodeagent", timeout_s=300)
    assert bare.run("systemctl is-active nodeagent", check=False).stdout.strip() == "inactive"
    assert bare.run(f"test -e {CONFIG} && test -e /var/lib/nodeagent/history.db", check=False).code == 0
    bare.run("dpkg -P nodeagent", timeout_s=300)
    assert {each for each in listing(bare) - before if "nodeagent" in each} == set()
    assert bare.run("getent group nodeagent", check=False).code != 0


def make(node: Node, directory: str, *words: str) -> str:
    """Run the Makefile of a checkout in the node, which has no network; return its output."""
    environment = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "/root/former/wheels"}
    return node.run(["make", "-C", directory, *words], env=environment, timeout_s=1800).stdout


def kept_state(node: Node) -> dict[str, Any]:
    """Return state, configuration, holds, pause and history, without readings that change with the time."""

    def document(command: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(node.run(f"nodeagent {command} -o json", timeout_s=120).stdout)
        return found

    return {
        "configuration": node.run(f"cat {CONFIG} /etc/nodeagent/config.d/*").stdout,
        "history": [
            {**each, "freed_bytes": None} for each in document("history")["passes"]
        ],  # may be reported as unknown
        "holds": [{**each, "seconds_left": 0} for each in document("hold list")["holds"]],
        "first detections": {each["id"]: each["first_detected"] for each in document("images")["images"]},
        "pause": node.run("cat /var/lib/nodeagent/pause.json").stdout,
    }


@pytest.mark.long
def test_version_0_2_0_is_upgraded_with_its_state_uninstalled_and_purged(bare: Node, former: Path) -> None:
    bare.run("mv /opt/nodeagent /opt/harness/environment && rm -rf /etc/nodeagent /var/lib/nodeagent /run/nodeagent")
    bare.run("groupdel nodeagent", check=False)
    packed = subprocess.run(["tar", "-c", "."], cwd=former, capture_output=True, check=True, timeout=60).stdout
    bare.run("mkdir /root/former && tar -x -C /root/former", stdin=packed, timeout_s=300)
    before = listing(bare)

    make(bare, "/root/former", "install", "ENABLE=1")
    assert "nodeagent 0.2.0" in bare.run("nodeagent version").stdout
    assert_dry_run_then_removal(bare, "node.test/former:v1")
    bare.run("echo >/etc/nodeagent/config.d/test.toml && systemctl reload nodeagent", timeout_s=60)  # keeps new images
    bare.import_images(images.image("node.test/held:v1", layers=[images.blob("held", 1 << 20)]))
    bare.run("nodeagent hold add node.test/held:v1 --for 5h --why upgrade", timeout_s=60)
    bare.run("nodeagent trigger images --wait && nodeagent pause --for 5h --why upgrade", timeout_s=300)
    state = kept_state(bare)
    assert state["history"], state
    assert any(state["first detections"].values()), state
    pid = bare.run("systemctl show nodeagent -p MainPID --value").stdout

    make(bare, "/usr/src/nodeagent", "install")
    assert_started(bare)
    assert bare.run("systemctl show nodeagent -p MainPID --value").stdout != pid
    reclaim.poll("the new daemon answers", lambda: bare.run("nodeagent status", check=False).code == 0, interval_s=1)
    assert kept_state(bare) == state

    kept = make(bare, "/usr/src/nodeagent", "uninstall")
    assert "kept        /etc/nodeagent\nkept        /var/lib/nodeagent\n" in kept
    assert bare.run(f"grep -c 'dry_run = false' {CONFIG}").stdout.strip() == "1"
    left = {each for each in listing(bare) - before if not each.startswith(("/etc/nodeagent", "/var/lib/nodeagent"))}
    assert left <= {"/etc/sysusers.d"}  # a directory of the system

    make(bare, "/usr/src/nodeagent", "install", "ENABLE=1")
    assert_started(bare)
    bare.run("touch /etc/nodeagent/mine.key /opt/nodeagent/notes")
    purged = make(bare, "/usr/src/nodeagent", "uninstall", "PURGE=1")
    assert "kept        /etc/nodeagent/mine.key (not a file of nodeagent)\n" in purged
    assert "kept        /opt/nodeagent/notes (not installed by nodeagent)\n" in purged
    bare.run("rm -r /etc/nodeagent /opt/nodeagent")
    assert listing(bare) - {"/etc/sysusers.d"} == before - {"/etc/sysusers.d"}
    assert bare.run("getent group nodeagent", check=False).code != 0
    assert bare.run("systemctl cat nodeagent", check=False).code != 0
