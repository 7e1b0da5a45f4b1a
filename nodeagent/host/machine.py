"""Identity, resources and addresses of this machine, from files of the kernel and the distribution."""

from __future__ import annotations

import fcntl
import ipaddress
import os
import re
import shlex
import socket
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import psutil

from nodeagent.errors import ObservationError
from nodeagent.host.cgroup_limits import PodsCgroups, find_pods_cgroups
from nodeagent.host.meminfo import read_totals
from nodeagent.host.node import boot_id, node_name
from nodeagent.model.kubernetes import Machine

_ROOT: Final = Path("/")
_KIB: Final = 1024
_MAX_TEXT: Final = 256
_UP, _REJECT = 0x1, 0x200
_NOT_LASTING: Final = 0x01 | 0x20 | 0x40
_SIOCGIFADDR: Final = 0x8915
_HUGEPAGES: Final = re.compile(r"hugepages-(\d{1,12})kB", re.ASCII)
_ARCHITECTURES: Final = {
    "x86_64": "amd64",
    "i386": "386",
    "i686": "386",
    "aarch64": "arm64",
    "armv6l": "arm",
    "armv7l": "arm",
    "mips64": "mips64le",
}
"""Go architecture names by uname(2) machine name, where both differ. Source: Go, GOARCH."""


def read_machine(
    root: Path = _ROOT, list_addresses: Callable[[], Mapping[str, Sequence[str]]] | None = None
) -> Machine:
    """Return the facts of this machine; an unreadable value is omitted and listed in ``unread``.

    Args:
        root: parent of ``etc``, ``proc`` and ``sys`` for the values that psutil does not return.
        list_addresses: returns the IP addresses by network interface; by default the addresses of this machine.
    """
    totals, cpus, unread = None, psutil.cpu_count(), list[str]()
    groups = find_pods_cgroups(root)
    memory_bytes, cpu_millis = None, None if cpus is None else cpus * 1000
    try:
        totals = read_totals()
        memory_bytes = _bounded(totals.memory, groups, "memory.max")
    except ObservationError as error:
        unread.append(str(error))
    try:
        cpu_millis = None if cpu_millis is None else _bounded(cpu_millis, groups, "cpu.max")
    except ObservationError as error:
        unread.append(str(error))
        cpu_millis = None
    names = os.uname()
    interfaces = interface_addresses(root) if list_addresses is None else list_addresses()
    return Machine(
        name=node_name(),
        addresses=choose_addresses(interfaces, default_interfaces(root)),
        cpu_millis=cpu_millis,
        memory_bytes=memory_bytes,
        swap_bytes=None if totals is None else totals.swap,
        hugepages=_hugepages(root),
        machine_id=_first_text(root, "etc/machine-id", "var/lib/dbus/machine-id"),
        system_uuid=_first_text(root, "sys/class/dmi/id/product_uuid", "etc/machine-id"),
        boot_id=boot_id(root),
        kernel_version=names.release,
        os_image=_os_image(root),
        architecture=_ARCHITECTURES.get(names.machine, names.machine),
        unread=tuple(unread),
    )


def _bounded(total: int, groups: PodsCgroups, file: str) -> int:
    """Return an amount of the machine, or the lowest limit of the cgroups that contain the pods if it is lower."""
    return min((total, *(each.value for each in groups.limits(file))))


def interface_addresses(root: Path = _ROOT) -> dict[str, list[str]]:
    """Return the IP addresses of this machine by network interface: the first IPv4 address, then the IPv6 addresses.

    Netlink, from which psutil reads addresses, is denied by the unit's ``RestrictAddressFamilies=``. Temporary,
    deprecated and tentative addresses are omitted.

    Source: netdevice(7), ``SIOCGIFADDR``; kernel ``if_inet6``: address, index, prefix, scope, flags, interface.
    """
    found: dict[str, list[str]] = {}
    for line in _lines(root / "proc/net/dev")[2:]:
        name = line.partition(":")[0].strip()
        address = _ipv4_address(name)
        found[name] = [address] if address else []
    for line in _lines(root / "proc/net/if_inet6"):
        words = line.split()
        if len(words) == 6 and len(words[0]) == 32 and not _hex(words[4]) & _NOT_LASTING:
            found.setdefault(words[5], []).append(str(ipaddress.IPv6Address(_hex(words[0]))))
    return found


def _ipv4_address(interface: str) -> str:
    """Return the first IPv4 address of an interface; empty without an IPv4 address."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
            answer = fcntl.ioctl(any_socket, _SIOCGIFADDR, struct.pack("256s", os.fsencode(interface)[:15]))
    except OSError:
        return ""
    return socket.inet_ntoa(answer[20:24])


def default_interfaces(root: Path = _ROOT) -> tuple[str, str]:
    """Return the interfaces of the IPv4 and the IPv6 default route with the lowest metric; empty without a route.

    Source: proc(5), ``/proc/net/route``; kernel ``ipv6_route``: destination, length, ..., metric, flags, interface.
    """
    four: list[tuple[int, str]] = []
    for line in _lines(root / "proc/net/route")[1:]:
        words = line.split()
        if len(words) > 7 and words[1] == words[7] == "00000000" and _hex(words[3]) & _UP and words[6].isdecimal():
            four.append((int(words[6]), words[0]))
    six: list[tuple[int, str]] = []
    for line in _lines(root / "proc/net/ipv6_route"):
        words = line.split()
        if len(words) > 9 and words[0].strip("0") == "" and words[1] == "00":
            flags = _hex(words[8])
            if flags & _UP and not flags & _REJECT and words[9] != "lo":
                six.append((_hex(words[5]), words[9]))
    return min(four, default=(0, ""))[1], min(six, default=(0, ""))[1]


def choose_addresses(interfaces: Mapping[str, Sequence[str]], defaults: tuple[str, str]) -> tuple[str, ...]:
    """Return the addresses of the node: of each family the first address on the interface of its default route.

    Without a default route of a family, the global address of that family is returned only if exactly one exists.

    Source: kubelet ``resolveAddress``, apimachinery ``ResolveBindAddress``.
    """
    chosen = []
    for version, interface in zip((4, 6), defaults, strict=True):
        own = {name: _global_addresses(found, version) for name, found in interfaces.items()}
        if interface:
            chosen += own.get(interface, [])[:1]
        else:
            all_of_family = [each for found in own.values() for each in found]
            chosen += all_of_family if len(all_of_family) == 1 else []
    return tuple(chosen)


def _global_addresses(texts: Sequence[str], version: int) -> list[str]:
    found = []
    for text in texts:
        try:
            address = ipaddress.ip_address(text.partition("%")[0])
        except ValueError:
            continue
        excluded = address.is_loopback or address.is_link_local or address.is_multicast or address.is_unspecified
        if address.version == version and not excluded:
            found.append(str(address))
    return found


def _hugepages(root: Path) -> tuple[tuple[int, int], ...]:
    """Return page size and reserved bytes for each huge page size. Source: kernel hugetlbpage, ``nr_hugepages``."""
    directory = root / "sys/kernel/mm/hugepages"
    try:
        names = os.listdir(directory)  # noqa: PTH208 - names only
    except OSError:
        return ()
    found = []
    for name in names:
        size = _HUGEPAGES.fullmatch(name)
        count = _text(directory / name / "nr_hugepages")
        if size is not None and count.isdecimal():
            size_bytes = int(size[1]) * _KIB
            found.append((size_bytes, int(count) * size_bytes))
    return tuple(sorted(found))


def _os_image(root: Path) -> str:
    """Return the name of the distribution. Source: os-release(5), ``PRETTY_NAME``."""
    for name in ("etc/os-release", "usr/lib/os-release"):
        for line in _lines(root / name):
            key, _, value = line.partition("=")
            if key.strip() == "PRETTY_NAME":
                try:
                    return "".join(shlex.split(value)[:1])[:_MAX_TEXT]
                except ValueError:
                    return value.strip()[:_MAX_TEXT]
    return "Linux"


def _first_text(root: Path, *names: str) -> str:
    return next((text for name in names if (text := _text(root / name)[:_MAX_TEXT])), "")


def _lines(path: Path) -> list[str]:
    return _text(path).splitlines()


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _hex(text: str) -> int:
    try:
        return int(text, 16)
    except ValueError:
        return 0
