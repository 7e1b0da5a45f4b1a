"""Stored outputs of commands on a real node: format of the files, and replacement of text that differs between runs.

Columns of a table are detected by the spaces common to all lines, so that a misaligned line ends the table and changes
the output. Cells of volatile columns are replaced by constants, and every column is printed with minimum width.
"""

from __future__ import annotations

import re
from itertools import groupby
from typing import TYPE_CHECKING, Final

from nodeagent import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

_GAP: Final = 2
_HEADING: Final = re.compile(r"[A-Z#][A-Z# ]*(  +[A-Z#…][A-Z# …]*)+")
_BAR: Final = re.compile(r"([█░!X]*[█░][█░!X]*)( +)(\d+%)")
_READING: Final = re.compile(r"[-<>≥]?[\d.,]+\S*")
_SHORT_AGE: Final = re.compile(r"(?<!\S)(\d{1,2}(m\d{1,2})?s|\d{1,2}m|\d{1,3}ms|now$)\b")


def _bar(cell: str) -> str:
    """Return a usage bar and its percentage as constants of equal width, without spaces between them."""
    return _BAR.sub(lambda found: f"{'▒' * len(found[1])}{'·' * len(found[2])}{'9' * (len(found[3]) - 1)}%", cell)


def _reading(cell: str) -> str:
    return _READING.sub("9.99", cell)


def _age(cell: str) -> str:
    return _SHORT_AGE.sub("9s", re.sub(r"^now(?= )", "9s ", cell))  # beside the rest of a cut column


_CELLS: Final[Mapping[str, Callable[[str], str]]] = {
    **dict.fromkeys(("AVAILABLE", "THRESHOLD", "DISTANCE", "MEMORY", "USES", "DISK"), _reading),
    **dict.fromkeys(("LAST RUN", "NEXT", "LAST PASSES", "LAST USED", "DETECTED", "EXPIRES IN", "AGE"), _age),
    "DURATION": lambda cell: re.sub(r"\d+ms|\b0s", "9ms", cell),
    "RUNS": lambda _: "9",
    "HOLD": lambda cell: "9" if cell.isdigit() else cell,
    "TREND": lambda cell: "steady" if cell.strip("-") else cell,
    "CATEGORY": lambda cell: re.sub(r"(?<= )/\S*(/|…\S*)", "/run/node/", cell),
    "USED": lambda cell: re.sub(r"·+9+%", "··99%", cell),
}
"""For each heading of a column that differs between runs, the function that replaces its cells."""

_MACHINE: Final = (
    *("Name", "Hostname", "InternalIP", "cpu", "memory", r"ephemeral-storage", r"hugepages-\w+", "Machine ID"),
    *("System UUID", "Boot ID", "Kernel Version", "OS Image", "Architecture", "Container Runtime Version"),
    "Kubelet Version",
)
"""Labels of the lines of ``node describe`` that contain facts of the machine."""
_MACHINE_CHECKS: Final = (
    *("clock", "cgroups", "pressure-stalls", "memory-thresholds", "cache-reclaim", "logind-delay", "inhibitor"),
    *("journal", "unit", "filesystems", "containerd-config"),
)
"""Checks of ``doctor`` that depend only on the machine, or name temporary files."""
_TEXTS: Final[tuple[tuple[re.Pattern[str], str], ...]] = tuple(
    (re.compile(pattern, re.MULTILINE), constant)
    for pattern, constant in (
        (r"\b(memory\.available|MemAvailable|vm\.min_free_kbytes) [\d.]+ [GM]iB", r"\1 #.# GiB"),
        (rf"^( *(?:{'|'.join(_MACHINE)}): +).*$", r"\1..."),
        (r"/tmp/golden-\w{8}", "/var/lib/agent"),
        (rf"\bnodeagent {re.escape(__version__)}\b", "nodeagent 9.9.9"),
        (r"\bcontainerd \d[\w.~+-]*", "containerd 9.9.9"),
        (r"\s+\(pid\s+\d+,\s+up\s+\S+?\)", " (pid 99, up 9s)"),  # line breaks depend on the length of both values
        (r"(?<=up 9s\))\s+dry\s+run:\s+nothing\s+is\s+removed", "  dry run: nothing is removed"),
        (r"\bpid \d+", "pid 99"),
        (r"\b\d{8}T\d{6}Z-[0-9a-f]{6}\b", "20260304T120000Z-0a1b2c"),
        (r"\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", "2026-03-04T12:00:00.000000Z"),
        (r"^(  /run/node/\S* +)\S+iB", r"\1 9.99KiB"),
        (r"\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", "2026-03-04T12:00:00.000Z"),
        (r"\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", "2026-03-04T12:00:00Z"),
        (r"\b\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC\b", "2026-03-04 12:00:00 UTC"),
        (r"\b(AGE|LAST USED|EXPIRES IN|DURATION) \d\w*\b", r"\1 9s"),
        (r"\b[0-9a-f]{64}\b", "0123456789abcdef" * 4),
        (r"(?<=\b2026…)[0-9a-f]{5}\b", "ab34c"),
        (r"(?<![\w-])(?!123456789012\b)[0-9a-f]{12}(?![\w-])", "0123456789ab"),
        (r"\bobserved\s+since\s+[\d-]+\s+[\d:]+\s+UTC\s+\(\d\w*\)", "observed since 2026-03-04 12:00:00 UTC (9s)"),
        (rf"^\w+ +({'|'.join(_MACHINE_CHECKS)}) .*\n((?: {{20}}|  fix: | {{7}}\S).*\n)*", ""),
        (r"^(\d+ checks:) .*$", r"\1 ..."),
        (r"\bdetected( +)\d+s ago, (?=last used|no use)", r"detected\1 9s ago, "),
        (r", last used \d+s ago", ", last used 9s ago"),
        (r"(?<=iB) +\d+m?s(?=  (?:keep|remove)  )", "  9s"),  # a list without headings
        (r"\b(removed|restored)\s+in\s+[\dmsh.]+", r"\1 in 9ms"),
        (r"\(59m\d\ds left\)", "(59m59s left)"),
        (r"^warning: deleted files that are open: .*\n", ""),  # depends on the privileges of the tests
        (r"^(?:memory|io|cpu)\.psi\.\w+ .*\n", ""),
        (r"^(nodefs|memory|pids) +[█░!X].*(?:\n  .*)*$", r"\1 ..."),
        (r"^(imagefs(?: = nodefs)?) +[█░\[\]!X]+ +(\d+%)  \S+ of", r"\1 ... \2  ### of"),
        (r"^(imagefs(?: = nodefs)? \.\.\. .* of \S+ \wiB)\s+(?=images:|pods:|exceeded:)", r"\1  "),
        (r"^(imagefs(?: = nodefs)? \.\.\. .*?) {2,}inodes .*$", r"\1"),  # where they fit
        (r"^nodefs inodes .*\n(?:  .*\n)*", ""),
        (r"^(eviction +)(?:waiting|running|paused) .*$", r"\1..."),
        (r"^eviction: maintenance of .*\n(?:  .*\n)*", ""),
        (r"\bhold \d\b", "hold 9"),
        (r"^(imagefs +[█░]+ +\d+%) \S+ MiB of", r"\1 ### MiB of"),
        (r"(?<=, inodes )\d+%", "9%"),
        (r"^(?:pod-volumes|runtime-state|agent-state) .*\n", ""),
        (r"^(runtime metadata|host files|unexplained|free) +\S+ +\S+(?: +-)?$", r"\1 ###"),
        (r"(?<=target )\S+ MiB", "##.# MiB"),
        (r"(?<=threshold: )\S+ MiB", "##.# MiB"),
        (r"\S+ MiB (?=short of the low)", "##.# MiB "),
        (r"(?<=expires in )\S+(?=:)", "9s"),
    )
)


def normalised(text: str) -> str:
    """Return an output in which text that differs between runs or machines is replaced by constants."""
    lines = list(_tables(text.split("\n")))
    text = "\n".join(lines)
    for pattern, constant in _TEXTS:
        text = pattern.sub(constant, text)
    return text


def _tables(lines: Sequence[str]) -> Iterator[str]:
    """Yield the lines, with constants in the volatile columns of tables."""
    number = 0
    while number < len(lines):
        if not _HEADING.fullmatch(lines[number]):
            yield lines[number]
            number += 1
            continue
        barred = [_bar(line) for line in lines[number:]]
        starts, rows = _columns(barred)
        volatile = _volatile(lines[number])
        yield from _rewritten(barred[:rows], starts) if volatile else lines[number : number + rows]
        number += rows


def _volatile(heading: str) -> bool:
    return any(_rewrites(title, heading) is not str for title in re.split(r"  +", heading.strip()))


def _rewrites(title: str, heading: str) -> Callable[[str], str]:
    """Return the function for the cells of a column; its heading may be cut by a narrow terminal.

    FREES is memory of processes in the table of ``top`` only.
    """
    if title == "FREES" and "MEMORY" in heading:
        return _reading
    start = title.removesuffix("…")
    found = (each for name, each in _CELLS.items() if name == title or (start != title and name.startswith(start)))
    return next(found, str) if start else str


def _columns(lines: Sequence[str]) -> tuple[list[int], int]:
    """Return the start positions of a table's columns, and the number of its lines including the heading."""
    width = max(map(len, lines))
    blank = [each == " " for each in lines[0].ljust(width)]
    wanted = len(_gaps(blank))
    rows = 1
    for line in lines[1:]:
        both = [a and b == " " for a, b in zip(blank, line.ljust(width), strict=False)]
        if not line or len(_gaps(both)) != wanted:
            break
        blank, rows = both, rows + 1
    return [0, *(end for _, end in _gaps(blank))], rows


def _gaps(blank: Sequence[bool]) -> list[tuple[int, int]]:
    """Return the start and end positions of the runs of spaces between columns."""
    found, place = [], 0
    for is_blank, run in groupby(blank):
        length = len(list(run))
        if is_blank and length >= _GAP and 0 < place < len(blank) - length:
            found.append((place, place + length))
        place += length
    return found


def _rewritten(lines: Sequence[str], starts: Sequence[int]) -> Iterator[str]:
    ends = [*starts[1:], max(map(len, lines)) + 1]
    columns = []
    for start, end in zip(starts, ends, strict=True):
        cells = [line[start:end].rstrip() for line in lines]
        title = cells[0].strip()
        is_right = any(cell.startswith(" ") for cell in cells)
        is_right &= title != "CATEGORY"
        texts = [cell.strip() if is_right else cell for cell in cells]
        texts = [title, *map(_rewrites(title, lines[0]), texts[1:])]
        width = max(map(len, texts))
        columns.append([text.rjust(width) if is_right else text.ljust(width) for text in texts])
    for row in zip(*columns, strict=True):
        yield "  ".join(row).rstrip()


def stored_form(outputs: Mapping[str, str]) -> str:
    """Return the file text for the outputs of one command: each distinct output once, below its roles and widths."""
    circumstances: dict[str, list[str]] = {}
    for circumstance, text in outputs.items():
        circumstances.setdefault(text, []).append(circumstance)
    return "\n".join(f"==== {'; '.join(names)}\n{text}" for text, names in circumstances.items())


def joined(out: str, err: str, code: int) -> str:
    """Return standard output, the lines of standard error with a prefix, and the exit code unless it is 0."""
    marked: Iterable[str] = (f"stderr: {line}\n" for line in err.splitlines())
    return "".join([out, *marked, f"exit code {code}\n" if code else ""])
