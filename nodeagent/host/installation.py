"""Where the parts of an installation lie, and putting them there: each file whole or not at all.

An installation has two halves: a virtual environment in a directory of its own, the prefix, and files where systemd,
the shells and man look for theirs. A package brings its own environment and has its files below /usr; what an operator
installs by hand goes to /etc and /usr/local, where it takes precedence.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import sysconfig
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Final

from nodeagent.errors import InstallError
from nodeagent.host.processes import python_command, run

if TYPE_CHECKING:
    from collections.abc import Iterator

DEFAULT_PREFIX: Final = Path("/opt/nodeagent")
_RELOADABLE: Final = 253
"""The first systemd that knows ``Type=notify-reload``. Source: systemd's NEWS."""
_SOURCES: Final = "share/nodeagent"


class Change(StrEnum):
    """What became of a file."""

    NEW = "new"
    REPLACED = "replaced"
    SAME = "as it was"
    KEPT = "kept"
    REMOVED = "removed"


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the files go, all absolute."""

    units: Path
    sysusers: Path
    tmpfiles: Path
    manual: Path
    bash: Path
    zsh: Path
    fish: Path
    command: Path
    shared: Path
    catalog: Path = Path("/usr/lib/systemd/catalog/nodeagent.catalog")


BY_HAND: Final = Layout(
    units=Path("/etc/systemd/system"),
    sysusers=Path("/etc/sysusers.d/nodeagent.conf"),
    tmpfiles=Path("/etc/tmpfiles.d/nodeagent.conf"),
    manual=Path("/usr/local/share/man"),
    bash=Path("/usr/local/share/bash-completion/completions/nodeagent"),
    zsh=Path("/usr/local/share/zsh/site-functions/_nodeagent"),
    fish=Path("/usr/local/share/fish/vendor_completions.d/nodeagent.fish"),
    command=Path("/usr/local/bin/nodeagent"),
    shared=Path("/usr/local/share/nodeagent"),
)
BY_PACKAGE: Final = Layout(
    units=Path("/usr/lib/systemd/system"),
    sysusers=Path("/usr/lib/sysusers.d/nodeagent.conf"),
    tmpfiles=Path("/usr/lib/tmpfiles.d/nodeagent.conf"),
    manual=Path("/usr/share/man"),
    bash=Path("/usr/share/bash-completion/completions/nodeagent"),
    zsh=Path("/usr/share/zsh/vendor-completions/_nodeagent"),
    fish=Path("/usr/share/fish/vendor_completions.d/nodeagent.fish"),
    command=Path("/usr/bin/nodeagent"),
    shared=Path("/usr/share/nodeagent"),
)
_OF_ALL: Final = frozenset(
    Path(name)
    for name in (
        *("/etc/systemd/system", "/etc/sysusers.d", "/etc/tmpfiles.d", "/usr/local/bin", "/usr/local/share"),
        *("/usr/local/share/man", "/usr/lib/systemd/catalog", "/etc", "/"),
    )
)
"""Directories that stay when they are empty."""
_SLICES: Final = ("kubepods.slice.d", "kubepods-.slice.d")
_MONITORING: Final = ("nodeagent.rules.yml", "grafana-dashboard.json")
"""For Prometheus and Grafana, which are elsewhere: they are put where they can be found and copied."""


@dataclass(frozen=True, slots=True)
class Part:
    """A file to be placed; ``link`` is where a symbolic link leads, empty for a file with ``text``."""

    path: Path
    text: str = ""
    link: str = ""


def parts(
    layout: Layout, prefix: Path, *, systemd: int, pages: dict[str, str], completions: dict[str, str]
) -> Iterator[Part]:
    """Yield the files of an installation, but for the configuration.

    Args:
        layout: where they go.
        prefix: where the environment is.
        systemd: the version of systemd on the node; 0 where there is none.
        pages: manual pages by file name.
        completions: scripts by shell: bash, zsh, fish.

    Raises:
        InstallError: what came with the agent is incomplete.
    """
    unit = _source("nodeagent.service").replace(f"{DEFAULT_PREFIX}/", f"{prefix}/")
    if systemd >= _RELOADABLE:
        unit = re.sub(r"^ExecReload=.*\n", "", unit, flags=re.MULTILINE)
        unit = re.sub(r"^# Made notify-reload .*\n", "", unit, flags=re.MULTILINE)
        unit = unit.replace("\nType=notify\n", "\nType=notify-reload\n")
    yield Part(layout.units / "nodeagent.service", unit)
    for name in _SLICES:
        yield Part(layout.units / name / "50-nodeagent.conf", _source(f"{name}/50-nodeagent.conf"))
    yield Part(layout.sysusers, _source("nodeagent.sysusers"))
    yield Part(layout.tmpfiles, _source("nodeagent.tmpfiles"))
    yield Part(layout.catalog, _source("nodeagent.catalog"))
    for name in _MONITORING:
        yield Part(layout.shared / name, _source(name))
    for name, text in pages.items():
        yield Part(layout.manual / f"man{name.rpartition('.')[2]}" / name, text)
    for shell, text in completions.items():
        yield Part({"bash": layout.bash, "zsh": layout.zsh, "fish": layout.fish}[shell], text)
    yield Part(layout.command, link=str(prefix / "bin/nodeagent"))


def below(root: Path, path: Path) -> Path:
    """Return where a path of the node is below another root."""
    return root / path.relative_to("/")


def place(part: Part, root: Path) -> Change:
    """Put a file in its place below ``root``, whole or not at all.

    Raises:
        InstallError: it cannot be written; what was there stays.
    """
    path = below(root, part.path)
    try:
        was = os.path.lexists(path)
        if was and _is(path, part):
            return Change.SAME
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".nodeagent-") as directory:
            fresh = Path(directory) / "fresh"
            if part.link:
                fresh.symlink_to(part.link)
            else:
                fresh.write_text(part.text, encoding="utf-8")
                fresh.chmod(0o644)
            fresh.replace(path)
    except OSError as error:
        raise InstallError(f"{path} cannot be written: {error.strerror or error}") from error
    return Change.REPLACED if was else Change.NEW


def take_away(part: Part, root: Path) -> Change | None:
    """Remove a file, and directories that are left empty and were made for it; ``None`` if it was not there.

    Raises:
        InstallError: it cannot be removed.
    """
    path = below(root, part.path)
    try:
        path.unlink()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise InstallError(f"{path} cannot be removed: {error.strerror or error}") from error
    with suppress(OSError):  # others have files there
        for above in part.path.parents:
            if above in _OF_ALL:
                break
            below(root, above).rmdir()
    return Change.REMOVED


def systemd_version() -> int:
    """Return the version of systemd; 0 where there is none."""
    done = run("systemctl", "--version")
    found = re.match(r"systemd (\d+)", done.stdout) if done is not None else None
    return int(found[1]) if found else 0


def is_booted_with_systemd() -> bool:
    """Return whether systemd runs this machine. Source: sd_booted(3)."""
    return Path("/run/systemd/system").is_dir()


# ---- the environment


def is_our_environment(prefix: Path) -> bool:
    """Return whether a directory is a virtual environment with the agent in it."""
    return (prefix / "pyvenv.cfg").is_file() and os.path.lexists(prefix / "bin/nodeagent")


def make_environment(prefix: Path) -> Change:
    """Make a virtual environment with this very agent, or bring the one that is there up to date.

    From a checkout it is installed with pip; else what is installed here is copied, without any download.

    Raises:
        InstallError: something else is in the prefix, or it cannot be made; the text says what was tried.
    """
    if Path(sys.prefix).resolve() == prefix.resolve():
        return Change.SAME
    was = prefix.exists()
    if was and any(prefix.iterdir()) and not (prefix / "pyvenv.cfg").is_file():
        raise InstallError(f"{prefix} is there and no virtual environment: give another --prefix, or move it away")
    checkout = _checkout()
    if checkout is None and sys.prefix == sys.base_prefix:
        raise InstallError(
            "the agent runs outside a virtual environment, which cannot be copied: make one with it first"
        )
    base = getattr(sys, "_base_executable", None) or sys.executable
    _must(*python_command("-m", "venv", "--without-pip", str(prefix), interpreter=base))
    if checkout is not None:
        pip = python_command("-m", "pip", "--python", str(prefix / "bin/python"), "--disable-pip-version-check")
        _must(*pip, "install", "--quiet", "--root-user-action=ignore", str(checkout))
    else:
        _copy_packages(prefix)
    return Change.REPLACED if was else Change.NEW


def _checkout() -> Path | None:
    """Return the directory with the agent's sources, if it runs from them."""
    top = Path(__file__).resolve().parents[2]
    return top if (top / "pyproject.toml").is_file() else None


def _copy_packages(prefix: Path) -> None:
    here = {Path(sysconfig.get_path(name)) for name in ("purelib", "platlib")}
    try:
        for source in here:
            target = prefix / source.relative_to(sys.prefix)
            fresh, old = (target.with_name(f"{target.name}.{end}") for end in ("fresh", "old"))
            for leftover in (fresh, old):
                shutil.rmtree(leftover, ignore_errors=True)
            shutil.copytree(source, fresh, symlinks=True)
            target.rename(old)
            fresh.rename(target)
            shutil.rmtree(old)
        shutil.copytree(Path(sys.prefix) / _SOURCES, prefix / _SOURCES, dirs_exist_ok=True)
        script = prefix / "bin/nodeagent"
        script.write_text(
            f"#!{prefix}/bin/python -I\nimport sys\n\nfrom nodeagent.cli.start import main\n\nsys.exit(main())\n"
        )
        script.chmod(0o755)
    except OSError as error:
        raise InstallError(f"{prefix} cannot be made: {error}") from error


def _must(*words: str) -> None:
    done = run(*words)
    if done is None or done.returncode:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:] if done is not None else ["no answer"]
        raise InstallError(f"{' '.join(words)} failed: {''.join(said)}")


def _source(name: str) -> str:
    checkout = _checkout()
    path = (Path(sys.prefix) / _SOURCES if checkout is None else checkout / "systemd") / name
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise InstallError(f"{path} should have come with the agent: {error.strerror or error}") from error


def _is(path: Path, part: Part) -> bool:
    if part.link:
        return path.is_symlink() and str(path.readlink()) == part.link
    if path.is_symlink() or not path.is_file():
        return False
    return path.read_bytes() == part.text.encode()
