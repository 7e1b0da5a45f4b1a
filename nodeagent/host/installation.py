"""Installation of the agent: a directory with its virtual environment, and files of systemd, the shells and man.

``make install`` runs this module with the system's interpreter before the agent's libraries are installed, so only the
standard library is imported. The manifest in the prefix lists the files of the environment, and the files elsewhere
with fingerprints. It is written before the first change, so that an interrupted installation can be repeated or
removed. A file that is not listed, or was edited, is never overwritten. Recognition of files by their content was
rejected: it needs a rule for each file and version, and guesses.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import pwd
import re
import stat
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from nodeagent import __version__
from nodeagent.errors import InstallError, NodeAgentError, UsageError
from nodeagent.files import replace_file, replace_link
from nodeagent.host.processes import run
from nodeagent.parsing import parse_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

DEFAULT_PREFIX: Final = Path("/opt/nodeagent")
MANIFEST: Final = "nodeagent-manifest.json"
UNIT: Final = Path("/etc/systemd/system/nodeagent.service")
_FORM: Final = re.compile(r"(?=.{1,100}\Z)(?!.*/\.\.?(/|\Z))(/[A-Za-z0-9._+-]+){2,}", re.ASCII)
"""Form of a prefix, which is written into a unit and a shebang line: kernels before 5.1 limit that to 127 bytes."""
_SYSTEM: Final = re.compile(
    r"/(bin|boot|dev|etc|lib|lib32|lib64|libx32|proc|run|sbin|sys)/.*|/var/lib(/(nodeagent|dpkg|kubelet|containerd)(/.*)?)?"
    r"|/usr/(?!local/).*|/usr/local/(bin|etc|games|include|lib|lib64|libexec|man|sbin|share|src)(/.*)?"
)
_KNOWN: Final = re.compile(
    r"(/etc/systemd/system/(nodeagent\.service|kubepods-?\.slice\.d/50-nodeagent\.conf)"
    r"|/etc/(sysusers|tmpfiles)\.d/nodeagent\.conf|/usr/lib/systemd/catalog/nodeagent\.catalog|/usr/local/bin/nodeagent"
    r"|/usr/local/share/(nodeagent/[a-z-]+(\.[a-z]+)+|bash-completion/completions/nodeagent|zsh/site-functions/_nodeagent"
    r"|fish/vendor_completions\.d/nodeagent\.fish|man/man[157]/nodeagent(-[a-z]+)*(\.toml)?\.[157]))(\.nodeagent-dist)?"
)
"""Paths of all versions: a listed file is removed only here, since the manifest may be forged or damaged."""


class Part(NamedTuple):
    """A file to be placed: a symbolic link to ``link``, or a regular file with ``text`` if ``link`` is empty."""

    path: Path
    text: str = ""
    link: str = ""

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the content or the link."""
        return f"link:{self.link}" if self.link else f"sha256:{hashlib.sha256(self.text.encode()).hexdigest()}"


class Manifest(NamedTuple):
    """The files of one installation.

    Attributes:
        environment: files of the virtual environment, relative to the prefix; empty unless ``make install`` made it.
        files: files outside the prefix with their possible fingerprints: during an upgrade the former and the new one.
        foreign: while packages are installed, the files of others in the prefix; afterwards ``None``.
    """

    environment: frozenset[str] = frozenset()
    files: Mapping[Path, frozenset[str]] = {}
    foreign: frozenset[str] | None = None


def below(top: Path, path: Path) -> Path:
    """Return a path of the node below another root."""
    return top / path.relative_to("/")


def parts(
    prefix: Path, systemd: int, pages: Mapping[str, str], completions: Mapping[str, str], *, packaged: bool = False
) -> list[Part]:
    """Return the files of an installation except its configuration, below /usr for a package.

    Args:
        prefix: directory of the virtual environment.
        systemd: major version of systemd on the node; 0 without systemd.
        pages: manual pages by file name.
        completions: scripts by shell: bash, zsh, fish.
        packaged: use the paths of a distribution package.

    Raises:
        InstallError: a file that ships with the agent is missing.
    """
    etc, local = (Path("/usr/lib"), Path("/usr")) if packaged else (Path("/etc"), Path("/usr/local"))
    unit = _source("nodeagent.service").replace(f"{DEFAULT_PREFIX}/", f"{prefix}/")
    if systemd >= 253:  # the first version with Type=notify-reload. Source: systemd NEWS.
        unit = re.sub(r"^(ExecReload=/bin/kill |# Made notify-reload ).*\n", "", unit, flags=re.MULTILINE)
        unit = unit.replace("\nType=notify\n", "\nType=notify-reload\n")
    scripts = {
        "bash": "bash-completion/completions/nodeagent",
        "zsh": f"zsh/{'vendor-completions' if packaged else 'site-functions'}/_nodeagent",
        "fish": "fish/vendor_completions.d/nodeagent.fish",
    }
    copied = ("nodeagent.rules.yml", "grafana-dashboard.json", "api-server.conf", "page-cache.conf")
    return [
        Part(etc / "systemd/system" / UNIT.name, unit),
        *(Part(etc / f"{each}.d/nodeagent.conf", _source(f"nodeagent.{each}")) for each in ("sysusers", "tmpfiles")),
        Part(Path("/usr/lib/systemd/catalog/nodeagent.catalog"), _source("nodeagent.catalog")),
        *(Part(local / "share/nodeagent" / name, _source(name)) for name in copied),
        *(Part(local / f"share/man/man{name[-1]}" / name, text) for name, text in pages.items()),
        *(Part(local / "share" / scripts[shell], text) for shell, text in completions.items()),
        Part(local / "bin/nodeagent", link=f"{prefix}/bin/nodeagent"),
    ]


def manual_pages() -> dict[str, str]:
    """Return the manual pages by file name, in alphabetical order."""
    return {name: _source(f"man/{name}") for name in sorted(path.name for path in (_sources() / "man").glob("*.?"))}


def _source(name: str) -> str:
    path = _sources() / name
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise InstallError(f"cannot read {path}, which ships with the agent: {error.strerror}") from error


def _sources() -> Path:
    checkout = Path(__file__).resolve().parents[2]
    return checkout / "systemd" if (checkout / "pyproject.toml").is_file() else Path(sys.prefix, "share/nodeagent")


# ---- checks before the first change


def check_prefix(prefix: Path, top: Path = Path("/")) -> None:
    """Refuse a prefix that is part of the system, by its path as given and with symbolic links resolved.

    Raises:
        UsageError: the prefix is a system directory, a home directory, the agent's state, or contains an interpreter,
            or cannot be written into a unit or a shebang line.
        InstallError: other users can replace the content of the directory.
    """
    if not _FORM.fullmatch(str(prefix)):
        raise UsageError(
            f"--prefix {str(prefix)!r}: must be an absolute path such as {DEFAULT_PREFIX}, two levels deep or more, of "
            "letters, digits and ._+- only, at most 100 characters"
        )
    real = below(top, prefix).parent.resolve() / prefix.name
    if not real.is_relative_to(top.resolve()):
        raise UsageError(f"--prefix {prefix}: resolves outside {top}, to {real}")
    others = {Path(each.pw_dir) for each in pwd.getpwall()}
    interpreters = {Path(each) for each in (sys.base_prefix, sys.base_exec_prefix, os.path.realpath(sys.base_prefix))}
    for each in dict.fromkeys((prefix, Path("/") / real.relative_to(top.resolve()))):
        resolution = "" if each == prefix else f" resolves to {each}"
        if _SYSTEM.fullmatch(str(each)):
            raise UsageError(f"--prefix {prefix}{resolution}: part of the system; use one such as {DEFAULT_PREFIX}")
        if each in others or any(one.is_relative_to(each) for one in interpreters):
            raise UsageError(f"--prefix {prefix}{resolution}: a home directory, or contains the Python interpreter")
    if top == Path("/") and os.geteuid() == 0:
        _check_owner(real)


def _check_owner(directory: Path) -> None:
    for each in (directory, *directory.parents):
        with suppress(FileNotFoundError):
            found = each.stat()
            writer = f"uid {found.st_uid}" if found.st_uid else ""
            if not writer and found.st_mode & stat.S_ISVTX == 0:
                by_group = found.st_mode & stat.S_IWGRP and found.st_gid != 0
                writer = "all users" if found.st_mode & stat.S_IWOTH else f"group {found.st_gid}" if by_group else ""
            if writer:
                raise InstallError(
                    f"{each} is writable by {writer}, who could run programs as root: use another --prefix, or change "
                    "its owner and mode; nothing was changed"
                )


def admit(prefix: Path) -> Manifest:
    """Return the manifest of a prefix; an empty one if it is absent, empty, or the environment of this process.

    Raises:
        InstallError: the directory has other content, is a link or a file, or its manifest is unusable.
    """
    if prefix.is_symlink():
        raise InstallError(f"{prefix} is a symbolic link to {prefix.readlink()}: give that directory as --prefix")
    found, running = read_manifest(prefix), prefix.resolve() == Path(sys.prefix).resolve()
    if found is None and prefix.exists() and not running and (not prefix.is_dir() or any(prefix.iterdir())):
        raise InstallError(
            f"{prefix} is not empty and not an installation of nodeagent: use another --prefix, or move it away; "
            "nothing was changed"
        )
    return found or Manifest()


def check_foreign(new: Iterable[Part], former: Manifest, prefix: Path, top: Path) -> None:
    """Refuse to overwrite files that the agent did not install.

    Raises:
        InstallError: a path exists and is neither listed in the manifest nor equal to the new file, or a directory
            resolves outside the root; nothing was changed.
    """
    foreign = []
    for part in new:
        check_parents(part.path, top)
        if part.path not in former.files and fingerprint(part.path, top) not in {None, part.fingerprint}:
            foreign.append(str(part.path))
    if foreign:
        other = other_prefix(prefix, top)
        hint = f"an installation in {other} exists: nodeagent uninstall --prefix {other}" if other else "move it away"
        paths = ", ".join(foreign)
        raise InstallError(f"{paths}: exists, not installed by this installation; {hint}; nothing was changed")


def check_parents(path: Path, top: Path) -> None:
    """Refuse a path below a symbolic link that resolves outside the root.

    Raises:
        InstallError: the parent directory resolves outside the root.
    """
    parent = below(top, path).parent.resolve()
    if not parent.is_relative_to(top.resolve()):
        raise InstallError(f"{path}: resolves outside {top}, to {parent}; nothing was changed")


def other_prefix(prefix: Path, top: Path) -> Path | None:
    """Return the prefix of another installation by its unit; ``None`` without another installation."""
    with suppress(OSError, ValueError):
        text = below(top, UNIT).read_text(encoding="utf-8")
        found = re.search(r"^ExecStart=(/\S+)/bin/nodeagent run\b", text, re.MULTILINE)
        return Path(found[1]) if found is not None and Path(found[1]) != prefix else None
    return None


def fingerprint(path: Path, top: Path) -> str | None:
    """Return ``sha256:HEX``, ``link:TARGET`` or ``other`` for a path of the node; ``None`` if it does not exist."""
    place = below(top, path)
    with suppress(FileNotFoundError, NotADirectoryError):
        mode = place.lstat().st_mode
        if stat.S_ISLNK(mode):
            return f"link:{place.readlink()}"
        return f"sha256:{hashlib.sha256(place.read_bytes()).hexdigest()}" if stat.S_ISREG(mode) else "other"
    return None


# ---- the manifest and the environment


def read_manifest(prefix: Path) -> Manifest | None:
    """Return the manifest in a prefix; ``None`` without a manifest.

    Raises:
        InstallError: the manifest cannot be read, other users have write access, or its content is not valid.
    """
    path = prefix / MANIFEST
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            found = os.fstat(file.fileno())
            if found.st_uid not in {0, os.geteuid()} or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                raise PermissionError(errno.EPERM, "writable by other users than root")
            document = parse_json(file.read(16 << 20))
            files = {Path(name): frozenset(values) for name, values in document["files"].items()}
            foreign = document.get("foreign")
            if document["format"] != 1 or not all(each.is_absolute() and ".." not in each.parts for each in files):
                raise ValueError("another format, or a path that is not absolute or not normal")  # noqa: TRY301 - one message
            environment = frozenset(str(each) for each in document["environment"])
            return Manifest(environment, files, None if foreign is None else frozenset(foreign))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, TypeError, LookupError, AttributeError) as error:
        raise InstallError(f"{path} is not valid: {error}; nothing was changed") from error


def write_manifest(prefix: Path, manifest: Manifest) -> None:
    """Write the manifest into a prefix atomically; create the prefix."""
    prefix.mkdir(mode=0o755, parents=True, exist_ok=True)
    document = {
        "format": 1,
        "version": __version__,
        "complete": manifest.foreign is None,
        "environment": sorted(manifest.environment),
        "files": {str(path): sorted(manifest.files[path]) for path in sorted(manifest.files)},
        **({} if manifest.foreign is None else {"foreign": sorted(manifest.foreign)}),
    }
    replace_file(prefix / MANIFEST, json.dumps(document, indent=1) + "\n", mode=0o644)


def environment_files(prefix: Path) -> frozenset[str]:
    """Return the files and links in a prefix except bytecode and the manifest, relative to the prefix."""
    found = (os.path.join(at, each) for at, inner, names in os.walk(prefix) for each in (*names, *inner))  # noqa: PTH118
    files = (each for each in found if os.path.islink(each) or not os.path.isdir(each))  # noqa: PTH112, PTH114
    names = {os.path.relpath(each, prefix) for each in files}
    return frozenset(each for each in names - {MANIFEST} if "__pycache__/" not in each)


def own_files(prefix: Path, manifest: Manifest) -> frozenset[str]:
    """Return the environment's files, relative to the prefix; without those of others while packages are installed."""
    return manifest.environment if manifest.foreign is None else environment_files(prefix) - manifest.foreign


def prepare(prefix: Path) -> None:
    """Check the prefix and all installation paths, and write the manifest: the first step of ``make install``.

    Raises:
        UsageError: the prefix is part of the system.
        InstallError: a path is occupied by a foreign file; nothing was changed.
    """
    check_prefix(prefix)
    former = admit(prefix)
    check_foreign(parts(prefix, systemd_version(), {}, {}), former, prefix, Path("/"))
    foreign = environment_files(prefix) - former.environment if former.foreign is None else former.foreign
    write_manifest(prefix, former._replace(foreign=foreign))
    sys.stderr.write(f"nodeagent: installing the locked libraries in {prefix} from PyPI\n")


def check_installed(prefix: Path) -> None:
    """Refuse a prefix that is not a complete installation of the agent: the first step of ``make uninstall``.

    Raises:
        UsageError: the prefix is part of the system.
        InstallError: the agent is not installed in the prefix, or only partly.
    """
    check_prefix(prefix)
    if prefix.is_symlink() or read_manifest(prefix) is None:
        raise InstallError(f"{prefix} is not an installation of nodeagent; nothing was changed")
    if not (prefix / "bin/nodeagent").is_file():
        raise InstallError(f"the installation in {prefix} is incomplete: run make install again, then make uninstall")


def launcher(prefix: str) -> str:
    """Return the console script of an environment, isolated from the caller's directory and variables."""
    return f"#!{prefix}/bin/python -I\nimport sys\n\nfrom nodeagent.cli.start import main\n\nsys.exit(main())\n"


def systemd_version() -> int:
    """Return the major version of systemd; 0 without systemd."""
    done = run("systemctl", "--version")
    found = re.match(r"systemd (\d+)", done.stdout) if done is not None else None
    return int(found[1]) if found else 0


# ---- changes


def place(part: Part, recorded: frozenset[str], top: Path) -> tuple[str, str, Part]:
    """Place a file atomically; if the present file was edited, place it beside that with the suffix .nodeagent-dist.

    Returns:
        The change for a report with its reason, and the part with its path.
    """
    present, change, reason = fingerprint(part.path, top), "replaced", ""
    if present == part.fingerprint:
        return "unchanged", "", part
    if present is None:
        change = "new"
    elif present not in recorded:
        change, reason = "kept", "edited since it was installed"
        is_placed = part.fingerprint in recorded or bool(part.link)
        part = part._replace(path=part.path.with_name(f"{part.path.name}.nodeagent-dist"))
        if is_placed:
            return change, reason, part
        reason = f"{reason}; the new version is beside it"
    path = below(top, part.path)
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    if part.link:
        replace_link(path, part.link)
    else:
        replace_file(path, part.text, mode=0o644)
    return change, reason, part


def withdraw(listed: Mapping[Path, frozenset[str]], top: Path, *, purge: bool = False) -> list[tuple[str, str]]:
    """Remove listed files; rename an edited one to .nodeagent-old, except for a purge.

    Returns:
        The change of each existing file for a report, and its text.
    """
    changes = []
    for path in listed:
        place, present, reason = below(top, path), fingerprint(path, top), " (edited since it was installed)"
        saved = place.with_name(f"{place.name}.nodeagent-old")
        if present is None:
            continue
        if not _KNOWN.fullmatch(str(path)):
            changes.append(("kept", f"{path} (listed in the manifest, but not a path of the installation)"))
        elif present in listed[path] or purge:
            place.unlink()
            with suppress(OSError):  # not empty
                for above in (each for each in path.parents if len(each.parts) > 4):
                    below(top, above).rmdir()
            changes.append(("removed", str(path)))
        elif os.path.lexists(saved):
            changes.append(("kept", f"{path}{reason}"))
        else:
            place.rename(saved)
            changes.append(("removed", f"{path}, kept as {saved.name}{reason}"))
    return changes


def clear(top: Path, is_own: Callable[[Path, str], bool]) -> list[Path]:
    """Remove own files and empty directories, without following links; return the kept paths.

    Args:
        top: the directory, removed if it becomes empty.
        is_own: whether a path, also given relative to ``top``, is removed.
    """
    kept = [top] if top.is_symlink() else []
    for at, inner, names in os.walk(top, topdown=False) if not kept else ():
        for path in sorted(Path(at, each) for each in (*names, *(one for one in inner if Path(at, one).is_symlink()))):
            if is_own(path, str(path.relative_to(top))):
                path.unlink()
            else:
                kept.append(path)
        with suppress(OSError):  # not empty, or a mount point
            Path(at).rmdir()
    return kept


def remove_environment(prefix: Path, manifest: Manifest) -> list[Path]:
    """Remove the environment of an installation, then the manifest, so that a failed removal can be repeated.

    Returns:
        The kept files: those that the agent did not install; the prefix if its environment is not listed.
    """
    own = own_files(prefix, manifest)
    kept = [prefix] if (prefix / "pyvenv.cfg").is_file() and not own else []
    kept = kept or clear(prefix, lambda _, name: name in own or "__pycache__/" in name)
    (prefix / MANIFEST).unlink(missing_ok=True)
    with suppress(OSError):  # other files are kept
        prefix.rmdir()
    return [each for each in kept if each != prefix / MANIFEST]


def main() -> None:
    """Run one step of the Makefile: ``prepare PREFIX`` or ``check-installed PREFIX``."""
    steps: dict[str, Callable[[Path], None]] = {"prepare": prepare, "check-installed": check_installed}
    os.umask(0o022)
    try:
        steps[sys.argv[1]](Path(sys.argv[2]))
    except (NodeAgentError, OSError) as error:
        sys.exit(f"nodeagent: {error}")
