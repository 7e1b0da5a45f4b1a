"""Demo on a real containerd: a tour of six screens of 80 x 24; all resources are removed at the end."""

from __future__ import annotations

import fcntl
import os
import re
import struct
import subprocess
import sys
import termios
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from tests.support import reclaim
from tests.support.containerd import Containerd, LoopFs, unavailable
from tests.support.simulated_demo import run_demo
from tests.support.worn_node import WornNode, wear

if TYPE_CHECKING:
    from collections.abc import Iterator

COLUMNS: Final = 80
ROWS: Final = 24
_LOW_PERCENT: Final = 82  # so that the lists of a pass fit into the rows
_READING_S: Final = 5.0
_STYLE: Final = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_OLDEST: Final = "registry.example.com/shop/web:v1"


class Screen(NamedTuple):
    """Step of the demo tour.

    Attributes:
        sentence: purpose of the step, printed first.
        arguments: arguments of the ``nodeagent`` command.
        codes: exit codes that count as success.
        images: whether the command has the option ``--minimum-age``.
    """

    sentence: str
    arguments: tuple[str, ...]
    codes: tuple[int, ...] = (0,)
    images: bool = False


SCREENS: Final = (
    Screen(
        "A preview lists every removal with its reason, and changes nothing.",
        ("gc", "images", "--dry-run"),
        (0, 3),
        images=True,
    ),
    Screen(
        "The run removes these images; an undo is possible for ten minutes.",
        ("gc", "images", "--yes"),
        (0, 3),
        images=True,
    ),
    Screen("The history of an item has time and reason of its removal.", ("explain", _OLDEST)),
    Screen("An undo restores the images of the last pass, with all their names.", ("gc", "undo")),
    Screen(
        "A rehearsal of an eviction, with 50 MiB of available memory.",
        ("evict", "--dry-run", "--simulate", "memory.available=50Mi"),
        (0, 3),
    ),
    Screen("A rehearsal of a shutdown: its phases with their pods and times.", ("shutdown", "--dry-run")),
)


def main() -> int:
    """Show the demo tour; show the simulated node if no containerd can run. Return the exit code."""
    reason = unavailable()
    if reason is not None:
        print(f"no real containerd here ({reason}); showing the simulated node instead")
        return run_demo()
    print("nodeagent demo: a REAL containerd of its own on a small loop-mounted image filesystem, removed afterwards")
    reclaim.sweep()
    print("making images that share layers, a running pod, a crash loop, a deleted pod ...", flush=True)
    with Containerd(imagefs=LoopFs(420, "ext4")) as containerd:
        node = wear(containerd)
        config = node.config.read_text().replace('enabled = "off"', 'enabled = "auto"')
        node.config.write_text(f"{config}[image_gc]\nlow_threshold_percent = {_LOW_PERCENT}\n")
        problems = list(_show(node))
    for each in problems:
        print(f"demo: {each}", file=sys.stderr)
    return 1 if problems else 0


def _show(node: WornNode) -> Iterator[str]:
    """Print the screens; yield an error for each failed command and for each screen larger than 80 x 24."""
    for number, screen in enumerate(SCREENS, 1):
        age = ("--minimum-age", node.minimum_age) if screen.images else ()
        code, output = _on_terminal(*screen.arguments, *age, "--config", str(node.config))
        title = f"{number} of {len(SCREENS)}: {screen.sentence}"
        lines = [title, f"$ nodeagent {' '.join(screen.arguments)}", "", *output.rstrip().splitlines()]
        print("\n" + "\n".join(lines), flush=True)
        if code not in screen.codes:
            yield f"screen {number}: exit code {code}"
        if len(lines) >= ROWS or any(len(_STYLE.sub("", each)) > COLUMNS for each in lines):
            yield f"screen {number}: larger than {COLUMNS} x {ROWS}"
        if sys.stdout.isatty() and number < len(SCREENS):
            time.sleep(_READING_S)


def _on_terminal(*arguments: str) -> tuple[int, str]:
    """Run a command on a terminal of 80 x 24; return its exit code and output, followed by its error output."""
    master, slave = os.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    environment = {**os.environ, "COLUMNS": str(COLUMNS), "LINES": str(ROWS)}
    if not sys.stdout.isatty():
        environment["NO_COLOR"] = "1"
    command = [sys.executable, "-m", "nodeagent", *arguments]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=slave, stderr=subprocess.PIPE, env=environment
    ) as process:
        os.close(slave)
        received = b""
        with suppress(OSError):  # EIO: the command has closed the terminal
            while part := os.read(master, 1 << 16):
                received += part
        errors = process.stderr.read() if process.stderr is not None else b""
    os.close(master)
    return process.returncode, (received + errors).decode().replace("\r\n", "\n")


if __name__ == "__main__":
    sys.exit(main())
