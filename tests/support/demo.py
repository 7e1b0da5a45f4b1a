"""Demo on a real containerd: a tour of screens of 80 x 24; all resources are removed at the end.

``python -m tests.support.demo --picture FILE`` also writes the screens of the README as an SVG picture.
"""

from __future__ import annotations

import fcntl
import io
import os
import re
import struct
import subprocess
import sys
import tempfile
import termios
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from rich.console import Console
from rich.terminal_theme import SVG_EXPORT_THEME
from rich.text import Text

from tests.support import reclaim
from tests.support.containerd import Containerd, LoopFs, unavailable
from tests.support.simulated_demo import run_demo
from tests.support.worn_node import WornNode, wear

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

COLUMNS: Final = 80
ROWS: Final = 24
_IMAGEFS: Final = LoopFs(351, "ext4")  # 12 % of it are the six images that are removed
_USED_PERCENT: Final = 91.6  # shown as 92 %, also after some more blocks of metadata
_LOW_PERCENT: Final = 80
_READING_S: Final = 5.0
_STYLE: Final = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_REMOVED: Final = "registry.example.com/batch/report:v1"  # not one of the six images
_SVG: Final = """\
<svg viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg" xml:space="preserve">
<style>
.{unique_id}-matrix {{ font: {char_height}px ui-monospace, Menlo, Consolas, monospace; white-space: pre; }}
.{unique_id}-title {{ font: bold 18px sans-serif; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal"><rect width="{terminal_width}" height="{terminal_height}"/></clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""
"""Template of rich without fonts from the network."""


class Screen(NamedTuple):
    """Step of the demo tour.

    Attributes:
        sentence: purpose of the step, printed first.
        arguments: arguments of the ``nodeagent`` command.
        codes: exit codes that count as success.
        images: whether the command has the option ``--minimum-age``.
        pictured: whether the picture of the README contains the screen.
    """

    sentence: str
    arguments: tuple[str, ...]
    codes: tuple[int, ...] = (0,)
    images: bool = False
    pictured: bool = False


class Shown(NamedTuple):
    """Screen with its output: lines with the colours of a terminal."""

    screen: Screen
    lines: list[str]


SCREENS: Final = (
    Screen(
        "A preview lists every removal with its reason, and changes nothing.",
        ("gc", "images", "--dry-run"),
        images=True,
        pictured=True,
    ),
    Screen(
        "A removal can be undone for ten minutes.",
        ("gc", "images", "--only", _REMOVED, "--yes"),
        images=True,
    ),
    Screen(
        "The history of an item has time and reason of its removal.",
        ("explain", _REMOVED),
        pictured=True,
    ),
    Screen("An undo restores the images of the last pass, with all their names.", ("gc", "undo"), pictured=True),
    Screen(
        "A rehearsal of an eviction, with 50 MiB of available memory.",
        ("evict", "--dry-run", "--simulate", "memory.available=50Mi"),
        (0, 3),
    ),
    Screen("A rehearsal of a shutdown: its phases with their pods and times.", ("shutdown", "--dry-run")),
    Screen(
        "The run ends at the low threshold.",
        ("gc", "images", "--yes", "--undo-window", "0s"),
        images=True,
        pictured=True,
    ),
)


def main(arguments: list[str]) -> int:
    """Show the demo tour; show the simulated node if no containerd can run. Return the exit code.

    With ``--picture FILE`` the tour is recorded; without containerd this is an error.
    """
    path = Path(arguments[1]) if arguments[:1] == ["--picture"] else None
    reason = unavailable()
    if reason is not None and path is not None:
        print(f"demo: no picture without a real containerd: {reason}", file=sys.stderr)
        return 1
    if reason is not None:
        print(f"no real containerd here ({reason}); showing the simulated node instead")
        return run_demo()
    print("nodeagent demo: a REAL containerd of its own on a small loop-mounted image filesystem, removed afterwards")
    reclaim.sweep()
    print("making images that share layers, a running pod, a crash loop, a deleted pod ...", flush=True)
    shown: list[Shown] = []
    with tempfile.TemporaryDirectory(prefix="demo-") as directory, Containerd(imagefs=_IMAGEFS) as containerd:
        node = wear(containerd, used_percent=_USED_PERCENT)
        socket = Path(directory, "cri.sock")  # so that the path fits into a line
        socket.symlink_to(containerd.socket)
        config = node.config.read_text().replace('enabled = "off"', 'enabled = "auto"')
        config = config.replace(str(containerd.socket), str(socket))
        node.config.write_text(f"{config}[image_gc]\nlow_threshold_percent = {_LOW_PERCENT}\n")
        problems = list(_show(node, shown, is_recorded=path is not None))
        if node.used_percent != _LOW_PERCENT:
            problems.append(f"the image filesystem is {node.used_percent}% full at the end, not {_LOW_PERCENT}%")
    for each in problems:
        print(f"demo: {each}", file=sys.stderr)
    if path is not None and not problems:
        path.write_text(picture([each for each in shown if each.screen.pictured]), encoding="utf-8")
    return 1 if problems else 0


def _show(node: WornNode, shown: list[Shown], *, is_recorded: bool) -> Iterator[str]:
    """Print the screens and add them to ``shown``; yield an error for each failed command and too large screen."""
    for number, screen in enumerate(SCREENS, 1):
        age = ("--minimum-age", node.minimum_age) if screen.images else ()
        arguments = (*screen.arguments, *age, "--config", str(node.config))
        code, output = _on_terminal(*arguments, has_colour=is_recorded or sys.stdout.isatty())
        shown.append(Shown(screen, output.rstrip().splitlines()))
        title = f"{number} of {len(SCREENS)}: {screen.sentence}"
        lines = [title, f"$ nodeagent {' '.join(screen.arguments)}", "", *shown[-1].lines]
        print("\n" + "\n".join(lines), flush=True)
        if code not in screen.codes:
            yield f"screen {number}: exit code {code}"
        if len(lines) >= ROWS or any(len(_STYLE.sub("", each)) > COLUMNS for each in lines):
            yield f"screen {number}: larger than {COLUMNS} x {ROWS}"
        if sys.stdout.isatty() and not is_recorded and number < len(SCREENS):
            time.sleep(_READING_S)


def picture(shown: Sequence[Shown]) -> str:
    """Return an SVG picture of the screens in a terminal window; it refers to no other file."""
    console = Console(
        record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, color_system="truecolor", highlight=False
    )
    for number, each in enumerate(shown):
        console.print(
            *([""] if number else []),
            Text(f"# {each.screen.sentence}", "bright_black"),
            Text(f"$ nodeagent {' '.join(each.screen.arguments)}", "bold"),
            *map(Text.from_ansi, each.lines),
            sep="\n",
        )
    return console.export_svg(title="nodeagent", theme=SVG_EXPORT_THEME, code_format=_SVG, unique_id="tour")


def _on_terminal(*arguments: str, has_colour: bool) -> tuple[int, str]:
    """Run a command on a terminal of 80 x 24; return its exit code and output, followed by its error output."""
    master, slave = os.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    environment = {**os.environ, "COLUMNS": str(COLUMNS), "LINES": str(ROWS)}
    if not has_colour:
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
    sys.exit(main(sys.argv[1:]))
