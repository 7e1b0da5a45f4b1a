"""Identity, resources and addresses of the machine, from files in a temporary tree."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from nodeagent.host.machine import choose_addresses, default_interfaces, interface_addresses, read_machine
from tests.support.kernel_tree import UNUSED_MEMORY, VMSTAT

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("proc")
FILES = {
    "etc/machine-id": "abc123\n",
    "etc/os-release": 'NAME="Debian"\nPRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\n',
    "proc/meminfo": f"MemTotal: 4194304 kB\nMemFree: 1 kB\n{UNUSED_MEMORY}SwapTotal: 1024 kB\nSwapFree: 0 kB\n",
    "proc/vmstat": VMSTAT,
    "proc/sys/kernel/random/boot_id": "b00t\n",
    "proc/net/route": (
        "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n"
        "wlan0\t00000000\t0101A8C0\t0003\t0\t0\t600\t00000000\t0\t0\t0\n"
        "eth0\t00000000\t0101A8C0\t0003\t0\t0\t100\t00000000\t0\t0\t0\n"
        "eth1\t0000A8C0\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0\n"
    ),
    "proc/net/ipv6_route": (
        f"{'0' * 32} 00 {'0' * 32} 00 {'0' * 32} ffffffff 00000001 00000000 00200200       lo\n"
        f"{'0' * 32} 00 {'0' * 32} 00 fe80{'0' * 28} 00000400 00000001 00000000 00000003     eth0\n"
    ),
    "sys/class/dmi/id/product_uuid": "u-u-i-d\n",
    "sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages": "3\n",
    "sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages": "0\n",
}
ADDRESSES = {
    "lo": ["127.0.0.1", "::1"],
    "cni0": ["10.88.0.1", "fe80::1%cni0"],
    "eth0": ["192.0.2.10", "198.51.100.1", "fe80::2%eth0", "2001:db8::10"],
}


def tree(root: Path, changes: dict[str, str | None] | None = None) -> Path:
    for name, text in {**FILES, **(changes or {})}.items():
        if text is not None:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
    return root


def test_machine_is_read_from_kernel_and_distribution(tmp_path: Path) -> None:
    machine = read_machine(tree(tmp_path), lambda: ADDRESSES)
    assert (machine.cpu_millis, machine.memory_bytes, machine.swap_bytes) == (
        (os.cpu_count() or 0) * 1000,
        4 << 30,
        1 << 20,
    )
    assert machine.hugepages == ((2 << 20, 6 << 20), (1 << 30, 0))
    assert (machine.machine_id, machine.system_uuid, machine.boot_id) == ("abc123", "u-u-i-d", "b00t")
    assert (machine.kernel_version, machine.os_image) == (os.uname().release, "Debian GNU/Linux 12 (bookworm)")
    assert machine.addresses == ("192.0.2.10", "2001:db8::10")
    assert machine.unread == ()


def test_unreadable_values_are_absent_and_listed(tmp_path: Path) -> None:
    machine = read_machine(tmp_path, dict)
    assert (machine.memory_bytes, machine.swap_bytes, machine.addresses, machine.machine_id) == (None, None, (), "")
    assert machine.os_image == "Linux"
    assert len(machine.unread) == 1


@pytest.mark.parametrize(
    ("limits", "memory_bytes", "cpu_millis"),
    [
        ({"memory.max": "max\n", "cpu.max": "max 100000\n"}, 4 << 30, (os.cpu_count() or 0) * 1000),
        ({"memory.max": f"{1 << 30}\n", "cpu.max": "50000 100000\n"}, 1 << 30, 500),
        ({"memory.max": f"{1 << 40}\n", "cpu.max": "1 0\n"}, 4 << 30, None),
        ({"memory.max": "lots\n", "cpu.max": "50000 100000\n"}, None, 500),
    ],
    ids=["unlimited", "lower", "malformed-cpu", "malformed-memory"],
)
def test_memory_and_cpus_are_at_most_the_limits_above_the_pods(
    tmp_path: Path, limits: dict[str, str], memory_bytes: int | None, cpu_millis: int | None
) -> None:
    files = {f"sys/fs/cgroup/{name}": text for name, text in limits.items()}
    machine = read_machine(tree(tmp_path, {**files, "sys/fs/cgroup/kubepods/memory.max": "1\n"}), dict)
    assert (machine.memory_bytes, machine.cpu_millis) == (memory_bytes, cpu_millis)
    assert machine.swap_bytes == 1 << 20
    assert len(machine.unread) == (memory_bytes, cpu_millis).count(None)


def test_machine_without_dmi_has_its_machine_id_as_system_uuid(tmp_path: Path) -> None:
    machine = read_machine(tree(tmp_path, {"sys/class/dmi/id/product_uuid": None}), dict)
    assert machine.system_uuid == "abc123"


def test_default_route_with_the_lowest_metric_decides_on_the_interface(tmp_path: Path) -> None:
    assert default_interfaces(tree(tmp_path)) == ("eth0", "eth0")
    assert default_interfaces(tmp_path / "absent") == ("", "")


@pytest.mark.parametrize(
    ("interfaces", "defaults", "expected"),
    [
        (ADDRESSES, ("eth0", "eth0"), ("192.0.2.10", "2001:db8::10")),
        (ADDRESSES, ("", ""), ("2001:db8::10",)),
        ({"eth0": ["192.0.2.10"]}, ("", ""), ("192.0.2.10",)),
        ({"eth0": ["169.254.0.1", "0.0.0.0", "224.0.0.1", "no address"]}, ("eth0", ""), ()),
        ({}, ("eth7", "eth7"), ()),
    ],
    ids=["by-route", "several-without-route", "only-one", "none-global", "absent-interface"],
)
def test_addresses_of_the_node(
    interfaces: dict[str, list[str]], defaults: tuple[str, str], expected: tuple[str, ...]
) -> None:
    assert choose_addresses(interfaces, defaults) == expected


def test_addresses_of_this_machine_are_read_without_netlink(tmp_path: Path) -> None:
    lasting, temporary = "20010db8000000000000000000000010", "20010db8000000000000000000000099"
    files: dict[str, str | None] = {
        "proc/net/dev": "Inter-|\n face |\n    lo: 1 2\n  eth9: 0\n",
        "proc/net/if_inet6": f"{temporary} 02 40 00 01     eth9\n{lasting} 02 40 00 80     eth9\nmalformed\n",
    }
    found = interface_addresses(tree(tmp_path, files))
    assert found == {"lo": ["127.0.0.1"], "eth9": ["2001:db8::10"]}
