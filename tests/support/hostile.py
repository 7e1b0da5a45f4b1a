"""Simulated node with hostile names, chosen by tenants: ``python -m tests.support.hostile DIR``.

DIR contains the runtime's socket ``s``, the log roots and a configuration; the runtime is served until SIGTERM.
"""

from __future__ import annotations

import asyncio
import grp
import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from nodeagent.model.runtime import ContainerState
from tests.sim.clock import SimClock
from tests.sim.content import Layer
from tests.sim.node import PAUSE, SimNode
from tests.support.serving import serve

NAMES: Final = (
    "[/x]",
    "[bold]b[/bold]",
    "[link=http://example.invalid]l[/link]",
    "e\x1b[31mred\x1b]0;title\x07",
    "n\nnodeagent: all is well",
    "r\rt\tv\x0bf\x0cz\x00",
    "d\x7fc\x9b31m\x85",
    "o\u202egpj.exe\u2066\u200e",
    "w\u200bi\ufeffd\u00ad\u3164\ufe0f",
    "l\u2028p\u2029",
    "t\U000e0041\U000e0101",
    ":skull:",
    "{0.__class__}%s%(x)s{x!r}",
    "\\x1b[31m\\n",
    "umläut→",
)
"""Hostile names. All are valid in a protobuf string, even with NUL."""

UID: Final = "0f1e2d3c-4b5a-4968-8778-695a4b3c2d1e"
DIRECTORIES: Final = (
    b"ns\xff_pod\x80_" + UID.encode(),
    b"[red]\x1b[31m_\n\xe2\x80\xae_" + UID[::-1].encode(),
    b"\xfe\xff no pod [y]",
)
"""Directory names below the pod log root; the first two are of deleted pods."""

LINKS: Final = (b"w\xff_ns_app-" + b"ab" * 32 + b".log", b"[b]\x1b[2J\n.log")
TARGET: Final = b"/nonexistent/\xff\x1b[31m[/z]"

_OLD_S: Final = 30 * 86_400.0


def hostile_node(root: Path) -> SimNode:
    """Return the simulated node; some containers run, some containers are dead, some images are unused."""
    node = SimNode(clock=SimClock(datetime.now(UTC)), root_path=str(root))
    node.add_image(PAUSE, layers=[Layer("pause", 4096)], pinned=True, age_s=_OLD_S)
    for number, name in enumerate(NAMES):
        used, unused = (f"registry.example/{kind}/{name}:{name}" for kind in ("used", "unused"))
        node.add_image(used, layers=[Layer("base", 1 << 20), Layer(f"used {number}", 1 << 20)], age_s=_OLD_S)
        node.add_image(unused, layers=[Layer("base", 1 << 20), Layer(f"unused {number}", 1 << 20)], age_s=_OLD_S)
        labels = {"io.kubernetes.container.name": name, name or "x": name}
        pod = node.add_pod(name, namespace=name, uid=f"uid-{name}", age_s=_OLD_S, labels=labels, annotations=labels)
        node.add_container(pod, name, used, age_s=_OLD_S)
        for attempt in range(2):
            node.add_container(
                pod, name, used, state=ContainerState.EXITED, age_s=_OLD_S + attempt, ended_s=_OLD_S / 2, exit_code=1
            )
        node.add_pod(f"gone {name}", namespace=name, uid=f"gone-{name}", age_s=_OLD_S, ready=False)
    node.pod_log_root = str(root / "pods")
    node.fill_to(95)
    return node


def write_logs(pods: Path, links: Path) -> None:
    """Write old directories and links with names that a kubelet would never create."""
    for root in (pods, links):
        root.mkdir(exist_ok=True)
    for name in DIRECTORIES:
        path = os.fsencode(pods) + b"/" + name
        os.mkdir(path)  # noqa: PTH102 - a name in bytes
        with open(path + b"/0\xff.log", "wb") as log:  # noqa: PTH123 - a name in bytes
            log.write(b"x" * 10_000)
    for name in LINKS:
        path = os.fsencode(links) + b"/" + name
        os.symlink(TARGET, path)  # noqa: PTH211 - a name in bytes
        os.utime(path, (0, 0), follow_symlinks=False)
    for name in DIRECTORIES:
        path = os.fsencode(pods) + b"/" + name
        os.utime(path + b"/0\xff.log", (0, 0))
        os.utime(path, (0, 0))


def write_config(directory: Path) -> Path:
    """Write a configuration that removes as many items as possible, with write access for the user of the test."""
    path = directory / "config.toml"
    group = grp.getgrgid(os.getgid()).gr_name
    path.write_text(
        f'role = "standalone"\n[runtime]\nendpoint = "unix://{directory}/s"\n[state]\ndirectory = "{directory}/state"\n'
        f'[container_gc]\npod_log_root = "{directory}/pods"\ncontainer_log_root = "{directory}/containers"\n'
        'minimum_age = "0s"\nmax_per_pod_container = 0\nlog_minimum_age = "0s"\n'  # ctime cannot be set
        '[image_gc]\nhigh_threshold_percent = 1\nlow_threshold_percent = 0\nminimum_age = "0s"\n'
        'irreplaceable = "ignore"\n'
        f'[control]\nsocket = "{directory}/control.sock"\ngroup = "{group}"\ngroup_may_act = true\n'
        '[metrics]\nlisten = "off"\n[shutdown]\nenabled = "off"\n'
    )
    return path


def main(directory: Path) -> None:
    node = hostile_node(directory)
    Path(node.imagefs_path).mkdir(parents=True, exist_ok=True)
    write_logs(directory / "pods", directory / "containers")
    write_config(directory)
    asyncio.run(serve(node, directory / "s"))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
