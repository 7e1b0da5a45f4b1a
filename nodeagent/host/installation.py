"""Files of an installation: their paths, content and recognition; and the source of its virtual environment.

An installation consists of a virtual environment in a directory of its own, the prefix, and of files in the directories
of systemd, the shells and man. A distribution package has its files below /usr; ``nodeagent install`` places the files
in /etc and /usr/local, where they take precedence.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from nodeagent.errors import InstallError
from nodeagent.host.environment import begin, copy_packages, install_checkout, make_venv, write_launcher
from nodeagent.host.placement import Change, Part, below, check_parents, read_fingerprint
from nodeagent.host.prefix import DEFAULT_PREFIX
from nodeagent.host.processes import run

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

_RELOADABLE: Final = 253
"""The first version of systemd with ``Type=notify-reload``. Source: systemd NEWS."""
_SOURCES: Final = "share/nodeagent"
UNIT: Final = "nodeagent.service"


@dataclass(frozen=True, slots=True)  # not a Record: installation imports only the standard library
class Layout:
    """Absolute paths of the files and directories of an installation."""

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
_FORMER: Final = ("kubepods.slice.d/50-nodeagent.conf", "kubepods-.slice.d/50-nodeagent.conf")
"""Drop-ins of versions up to 0.2; the daemon now writes them to /run while it will stop the pods at a shutdown."""
_SECTIONS: Final = ("man1", "man5", "man7")
_PAGE: Final = re.compile(r"nodeagent(-[a-z]+)*\.1|nodeagent\.toml\.5|nodeagent(-[a-z]+)+\.7")
_MONITORING: Final = ("nodeagent.rules.yml", "grafana-dashboard.json")
"""Files for Prometheus and Grafana on other machines, installed for copying."""
_OPTIONAL: Final = ("api-server.conf", "page-cache.conf")
"""Drop-ins of the unit for optional functions, installed for copying."""


def parts(
    layout: Layout, prefix: Path, *, systemd: int, pages: dict[str, str], completions: dict[str, str]
) -> Iterator[Part]:
    """Yield the files of an installation except its configuration.

    Args:
        layout: paths of the files.
        prefix: directory of the virtual environment.
        systemd: major version of systemd on the node; 0 without systemd.
        pages: manual pages by file name.
        completions: scripts by shell: bash, zsh, fish.

    Raises:
        InstallError: a file that ships with the agent is missing.
    """
    unit = _source("nodeagent.service").replace(f"{DEFAULT_PREFIX}/", f"{prefix}/")
    if systemd >= _RELOADABLE:
        unit = re.sub(r"^ExecReload=/bin/kill .*\n", "", unit, flags=re.MULTILINE)
        unit = re.sub(r"^# Made notify-reload .*\n", "", unit, flags=re.MULTILINE)
        unit = unit.replace("\nType=notify\n", "\nType=notify-reload\n")
    yield Part(layout.units / UNIT, unit)
    yield Part(layout.sysusers, _source("nodeagent.sysusers"))
    yield Part(layout.tmpfiles, _source("nodeagent.tmpfiles"))
    yield Part(layout.catalog, _source("nodeagent.catalog"))
    for name in (*_MONITORING, *_OPTIONAL):
        yield Part(layout.shared / name, _source(name))
    for name, text in pages.items():
        yield Part(layout.manual / f"man{name.rpartition('.')[2]}" / name, text)
    for shell, text in completions.items():
        yield Part({"bash": layout.bash, "zsh": layout.zsh, "fish": layout.fish}[shell], text)
    yield Part(layout.command, link=str(prefix / "bin/nodeagent"))


# ---- recognition of installed files


def known_places(layout: Layout) -> tuple[Path, ...]:
    """Return the paths of an installation's files, except the manual pages of single commands and of documents."""
    return (
        layout.units / UNIT,
        *former_places(layout),
        *(layout.sysusers, layout.tmpfiles, layout.catalog),
        *(layout.shared / name for name in (*_MONITORING, *_OPTIONAL)),
        *(layout.manual / "man1/nodeagent.1", layout.manual / "man5/nodeagent.toml.5"),
        *(layout.bash, layout.zsh, layout.fish, layout.command),
    )


def former_places(layout: Layout) -> tuple[Path, ...]:
    """Return the paths of files that earlier versions installed, removed by an upgrade."""
    return tuple(layout.units / name for name in _FORMER)


def is_page(layout: Layout, path: Path) -> bool:
    """Return whether a path is a manual page of any version of the agent."""
    return path.parent in {layout.manual / each for each in _SECTIONS} and bool(_PAGE.fullmatch(path.name))


_COMPLETION: Final = r"^# \w+ completion of nodeagent$|_NODEAGENT_COMPLETE"
"""Pattern of current and former completion scripts."""


def is_recognised(layout: Layout, path: Path, prefix: Path, root: Path) -> bool:
    """Return whether a file has the content common to all its versions; units and links must refer to ``prefix``."""
    place = below(root, path)
    try:
        if path == layout.command:
            return place.is_symlink() and place.readlink() == prefix / "bin/nodeagent"
        text = "" if place.is_symlink() or not place.is_file() else place.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return False
    return bool(re.search(_signature(layout, path, prefix), text, re.MULTILINE))


def _signature(layout: Layout, path: Path, prefix: Path) -> str:
    if path == layout.units / UNIT:
        return rf"^ExecStart={re.escape(str(prefix))}/bin/nodeagent run\b"
    return {
        **dict.fromkeys(former_places(layout), r"^DefaultDependencies=no$"),
        layout.sysusers: r"^g nodeagent ",
        layout.tmpfiles: r"^d /run/nodeagent ",
        layout.catalog: r"^Defined-By: nodeagent$",
        layout.shared / _MONITORING[0]: r"^  - name: nodeagent$",
        layout.shared / _MONITORING[1]: r'^  "uid": "nodeagent",$',
        **dict.fromkeys((layout.shared / name for name in _OPTIONAL), r"^# Optional drop-in of nodeagent\.service,"),
        layout.bash: _COMPLETION,
        layout.zsh: _COMPLETION,
        layout.fish: _COMPLETION,
    }.get(path, r'^\.TH \S+ [157] "" "nodeagent [0-9]' if is_page(layout, path) else r"(?!)")


def find_pages(layout: Layout, root: Path) -> Iterator[Path]:
    """Yield the manual pages of all versions below a root."""
    for section in _SECTIONS:
        directory = below(root, layout.manual / section)
        for path in sorted(directory.glob("nodeagent*")) if directory.is_dir() else ():
            if is_page(layout, layout.manual / section / path.name):
                yield layout.manual / section / path.name


def check_foreign(
    layout: Layout, paths: Iterable[Path], prefix: Path, root: Path, recorded: Mapping[Path, object]
) -> None:
    """Refuse to overwrite files that the agent did not install.

    Args:
        layout: paths of the installation's files.
        paths: files to be placed.
        prefix: directory of the virtual environment.
        root: directory used as the node's root.
        recorded: the paths listed in the manifest.

    Raises:
        InstallError: a path exists and was not placed by any version of the agent; nothing was changed.
    """
    foreign = []
    for path in paths:
        check_parents(root, path)
        if path in recorded or read_fingerprint(root, path) is None or is_recognised(layout, path, prefix, root):
            continue
        foreign.append(str(path))
    if not foreign:
        return
    other = other_prefix(layout, prefix, root)
    hint = f"an installation in {other} exists: nodeagent uninstall --prefix {other}" if other else "move it away"
    raise InstallError(f"{', '.join(foreign)}: exists, not installed by this installation; {hint}; nothing was changed")


def other_prefix(layout: Layout, prefix: Path, root: Path) -> Path | None:
    """Return the prefix of another installation by its unit; ``None`` without another installation."""
    place = below(root, layout.units / UNIT)
    try:
        text = "" if place.is_symlink() or not place.is_file() else place.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None
    found = re.search(r"^ExecStart=(/\S+)/bin/nodeagent run\b", text, re.MULTILINE)
    return Path(found[1]) if found is not None and Path(found[1]) != prefix else None


# ---- systemd


def systemd_version() -> int:
    """Return the major version of systemd; 0 without systemd."""
    done = run("systemctl", "--version")
    found = re.match(r"systemd (\d+)", done.stdout) if done is not None else None
    return int(found[1]) if found else 0


def is_booted_with_systemd() -> bool:
    """Return whether systemd runs this machine. Source: sd_booted(3)."""
    return Path("/run/systemd/system").is_dir()


# ---- the environment


def check_sources() -> None:
    """Refuse an installation without a source for its virtual environment.

    Raises:
        InstallError: the agent runs neither from a checkout nor from a virtual environment.
    """
    if _checkout() is None and sys.prefix == sys.base_prefix:
        raise InstallError("the agent runs outside a virtual environment and cannot be copied: install it in one first")


def make_environment(prefix: Path, files: Mapping[Path, str]) -> Change:
    """Create a virtual environment with the running version of the agent, or upgrade the existing environment.

    A checkout is installed with pip; otherwise the running environment is copied, without a download.

    Args:
        prefix: a directory admitted by :func:`nodeagent.host.environment.admit`.
        files: the files to be placed outside the prefix, with their fingerprints, for the manifest.

    Raises:
        InstallError: the environment cannot be created; the text contains the failed command.
    """
    existed = (prefix / "pyvenv.cfg").is_file()
    begin(prefix, files)
    if Path(sys.prefix).resolve() == prefix.resolve():
        write_launcher(prefix)
        return Change.SAME
    checkout = _checkout()
    make_venv(prefix, pip=False)
    if checkout is not None:
        install_checkout(prefix, checkout)
    else:
        copy_packages(Path(sys.prefix), prefix)
    write_launcher(prefix)
    return Change.REPLACED if existed else Change.NEW


def _checkout() -> Path | None:
    """Return the checkout that the agent runs from; ``None`` if it is installed."""
    top = Path(__file__).resolve().parents[2]
    return top if (top / "pyproject.toml").is_file() else None


def _source(name: str) -> str:
    checkout = _checkout()
    path = (Path(sys.prefix) / _SOURCES if checkout is None else checkout / "systemd") / name
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise InstallError(f"cannot read {path}, which ships with the agent: {error.strerror or error}") from error
