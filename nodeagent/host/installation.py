"""Installation of the agent: a directory with its virtual environment, and files of systemd, the shells and man.

``make install`` runs this module with the system's interpreter before the agent's libraries are installed, so only the
standard library is imported. The manifest in the prefix lists the files of the environment, and the files elsewhere
with fingerprints. It is written before the first change, so that an interrupted installation can be repeated or
removed. A file that is not listed, or was edited, is never overwritten. Recognition of files by their content was
rejected: it needs a rule for each file and version, and guesses.

Packages install the same files at other paths, see ``systemd/package-tree.sh``.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from nodeagent import __version__
from nodeagent.config.files import open_trusted
from nodeagent.errors import ConfigError, InstallError, NodeAgentError, UsageError
from nodeagent.files import replace_file
from nodeagent.host.commands import run
from nodeagent.parsing import parse_json

DEFAULT_PREFIX: Final = Path("/opt/nodeagent")
MANIFEST: Final = "nodeagent-manifest.json"
UNIT: Final = "nodeagent.service"
_PREFIX: Final = re.compile(
    r"(?!.*/\.\.?(/|\Z))(?!/(bin|boot|dev|etc|lib|lib32|lib64|libx32|proc|run|sbin|sys|usr(?!/local/)|var/lib(?=\Z)"
    r"|usr/local/(bin|etc|games|include|lib|lib64|libexec|man|sbin|share|src)"
    r"|var/lib/(nodeagent|dpkg|kubelet|containerd))(/|\Z))(?=.{1,100}\Z)(/[A-Za-z0-9._+-]+){2,}"
)
"""Form of a prefix outside of the system's directories. It is written into a unit and a shebang line, which kernels
before 5.1 limit to 127 bytes."""
_HIDDEN: Final = ("/home", "/root", "/run/user")
"""Directories hidden by ``ProtectHome=``. Source: systemd.exec(5)."""
_OWN: Final = re.compile(r"(?!.*/\.\.?(/|\Z))/(etc|usr)/.*/((_|50-)?nodeagent([-.][^/]*)?|nodeagent/[^/]+)")
"""Form of the paths outside the prefix, of all versions."""


class Manifest(NamedTuple):
    """The files of one installation.

    Attributes:
        environment: files of the virtual environment, relative to the prefix; empty unless ``make install`` made it.
        files: files outside the prefix with their possible fingerprints: during an upgrade the former and the new one.
        foreign: while packages are installed, the files of others in the prefix; afterwards ``None``.
    """

    environment: frozenset[str] = frozenset()
    files: Mapping[str, frozenset[str]] = {}
    foreign: frozenset[str] | None = None


def below(top: Path, path: str | Path) -> Path:
    """Return the place of a path of the node below another root, with resolved parent directories.

    Raises:
        InstallError: the parent directory resolves outside the root.
    """
    place = Path(top, str(path).lstrip("/")).parent.resolve() / Path(path).name
    if not place.is_relative_to(top.resolve()):
        raise InstallError(f"{path}: resolves outside {top}, to {place}; nothing was changed")
    return place


def parts(prefix: Path, systemd: int, completions: Mapping[str, str]) -> dict[str, str]:
    """Return path and text of each file of an installation except its configuration.

    Args:
        prefix: directory of the virtual environment.
        systemd: major version of systemd on the node; 0 without systemd.
        completions: scripts of the shells by path, relative to /usr/local/share.

    Raises:
        OSError: a file that ships with the agent is missing.
    """
    unit = source(UNIT).replace(f"{DEFAULT_PREFIX}/", f"{prefix}/")
    if systemd >= 253:  # the first version with Type=notify-reload. Source: systemd NEWS.
        unit = re.sub(r"^(ExecReload=/bin/kill |# Made notify-reload ).*\n", "", unit, flags=re.MULTILINE)
        unit = unit.replace("\nType=notify\n", "\nType=notify-reload\n")
    pages = sorted((_sources() / "man").glob("*.?"))
    copied = ("nodeagent.rules.yml", "grafana-dashboard.json", "api-server.conf", "page-cache.conf")
    return {
        f"/etc/systemd/system/{UNIT}": unit,
        **{f"/etc/{each}.d/nodeagent.conf": source(f"nodeagent.{each}") for each in ("sysusers", "tmpfiles")},
        "/usr/lib/systemd/catalog/nodeagent.catalog": source("nodeagent.catalog"),
        **{f"/usr/local/share/nodeagent/{name}": source(name) for name in copied},
        **{f"/usr/local/share/man/man{each.suffix[1:]}/{each.name}": each.read_text("utf-8") for each in pages},
        **{f"/usr/local/share/{name}": text for name, text in completions.items()},
        "/usr/local/bin/nodeagent": launcher(prefix),
    }


def source(name: str) -> str:
    """Return the text of a file that ships with the agent."""
    return (_sources() / name).read_text(encoding="utf-8")


def _sources() -> Path:
    checkout = Path(__file__).resolve().parents[2]
    return checkout / "systemd" if (checkout / "pyproject.toml").is_file() else Path(sys.prefix, "share/nodeagent")


def launcher(prefix: Path | str) -> str:
    """Return the console script of an environment, isolated from the caller's directory and variables."""
    return f"#!{prefix}/bin/python -I\nimport sys\n\nfrom nodeagent.cli.start import main\n\nsys.exit(main())\n"


def systemd_version() -> int:
    """Return the major version of systemd; 0 without systemd."""
    done = run("systemctl", "--version")
    found = re.match(r"systemd (\d+)", done.stdout) if done is not None else None
    return int(found[1]) if found else 0


# ---- checks before the first change


def check_prefix(prefix: Path, top: Path = Path("/")) -> None:
    """Refuse a prefix that is part of the system, by its path as given and with symbolic links resolved.

    Raises:
        UsageError: the prefix is a system directory, or cannot be written into a unit or a shebang line.
        InstallError: other users can replace the content of the directory.
    """
    if not (_PREFIX.fullmatch(str(prefix)) and _PREFIX.fullmatch(f"/{below(top, prefix).relative_to(top.resolve())}")):
        raise UsageError(
            f"--prefix {str(prefix)!r}: must be an absolute path such as {DEFAULT_PREFIX}, also with links resolved "
            "outside of system directories, of 2 names or more, of letters, digits and ._+- only, up to 100 characters"
        )
    if top == Path("/") and os.geteuid() == 0:
        present = next(each for each in (prefix, *prefix.parents) if each.exists())
        try:
            os.close(open_trusted(present, directory=True))
        except (ConfigError, NotADirectoryError) as error:
            raise InstallError(f"{error}; or use another --prefix; nothing was changed") from error


def check_visible(*directories: Path) -> None:
    """Refuse an environment or an interpreter below home directories, which the unit hides from the daemon.

    Raises:
        InstallError: a directory is below /home, /root or /run/user, also with links resolved.
    """
    for each in directories:
        hidden = next((home for home in _HIDDEN if each.resolve().is_relative_to(home)), None)
        if hidden is not None:
            raise InstallError(
                f"{each}: the unit hides {hidden} from the daemon; use another directory (uv: UV_TOOL_DIR=/opt) and "
                "the interpreter of the system (PYTHON=, uv: --no-managed-python); nothing was changed"
            )


def admit(prefix: Path) -> Manifest:
    """Return the manifest of a prefix; an empty one if it is absent, empty, or the environment of this process.

    Raises:
        InstallError: the directory has other content, is a link or a file, or its manifest is unusable.
    """
    found = None if prefix.is_symlink() else read_manifest(prefix)
    is_free = not os.path.lexists(prefix) or (not prefix.is_symlink() and prefix.is_dir() and not any(prefix.iterdir()))
    is_running = (prefix / "pyvenv.cfg").is_file() and prefix.resolve() == Path(sys.prefix).resolve()
    if found is None and not is_free and not is_running:
        raise InstallError(f"{prefix}: neither empty nor an installation of nodeagent; nothing was changed")
    return found or Manifest()


def check_foreign(new: Mapping[str, str], former: Manifest, top: Path) -> None:
    """Refuse to overwrite files that the agent did not install, and an installation beside a package.

    Raises:
        InstallError: a path exists, and is neither listed in the manifest nor equal to the new file; or a package of
            the agent is installed.
    """
    if below(top, f"/usr/lib/systemd/system/{UNIT}").exists():
        raise InstallError("the agent is installed as a package; upgrade or remove it with the package manager")
    present = {path: fingerprint(below(top, path)) for path in new}
    unlisted = [path for path in new if path not in former.files and present[path] not in {None, _of_text(new[path])}]
    if unlisted:
        paths = ", ".join(unlisted)
        raise InstallError(f"{paths}: exists, not installed by this installation; uninstall the other, or move it away")


def installed(prefix: Path) -> Manifest:
    """Return the manifest of a complete installation.

    Raises:
        InstallError: the agent is not installed in the prefix, or only partly.
    """
    manifest = None if prefix.is_symlink() else read_manifest(prefix)
    if manifest is None:
        raise InstallError(f"{prefix} is not an installation of nodeagent; nothing was changed")
    if manifest.foreign is not None:
        raise InstallError(f"the installation in {prefix} is incomplete: run make install again, then make uninstall")
    return manifest


def fingerprint(place: Path) -> str | None:
    """Return ``sha256:HEX``, ``link:TARGET`` or ``other`` for a path; ``None`` if it does not exist."""
    if place.is_symlink():
        return f"link:{place.readlink()}"
    if place.is_file():
        return f"sha256:{hashlib.sha256(place.read_bytes()).hexdigest()}"
    return "other" if place.exists() else None


def _of_text(text: str) -> str:
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


# ---- the manifest and the environment


def read_manifest(prefix: Path) -> Manifest | None:
    """Return the manifest in a prefix; ``None`` without a manifest.

    Raises:
        InstallError: the manifest cannot be read, other users have write access, or its content is not valid.
    """
    try:
        with os.fdopen(open_trusted(prefix / MANIFEST), "rb") as file:
            document = parse_json(file.read())
        files = {path: frozenset(known) for path, known in document["files"].items()}
        if document["format"] != 1 or not all(map(_OWN.fullmatch, files)):
            raise ValueError("another format, or a path that is not one of the agent")  # noqa: TRY301 - one message
        foreign = document.get("foreign")
        return Manifest(frozenset(document["environment"]), files, None if foreign is None else frozenset(foreign))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ConfigError, OSError, ValueError, TypeError, LookupError, AttributeError) as error:
        raise InstallError(f"{prefix / MANIFEST} is not valid: {error}; nothing was changed") from error


def write_manifest(prefix: Path, manifest: Manifest) -> None:
    """Write the manifest into a prefix atomically; create the prefix."""
    prefix.mkdir(mode=0o755, parents=True, exist_ok=True)
    head = {"format": 1, "version": __version__, "complete": manifest.foreign is None}
    text = json.dumps({**head, **manifest._asdict()}, default=sorted, indent=1, sort_keys=True)
    replace_file(prefix / MANIFEST, f"{text}\n", mode=0o644)


def record(prefix: Path, new: Mapping[str, str], former: Manifest, top: Path) -> None:
    """Write the manifest of an installation with a complete environment, before its other files are placed."""
    files = {path: known & {fingerprint(below(top, path))} for path, known in former.files.items()}
    files |= {path: files.get(path, frozenset()) | {_of_text(text)} for path, text in new.items()}
    environment = former.environment if former.foreign is None else environment_files(prefix) - former.foreign
    write_manifest(prefix, Manifest(environment, {path: known for path, known in files.items() if known}))


def environment_files(prefix: Path) -> frozenset[str]:
    """Return the files and links in a prefix except bytecode and the manifest, relative to the prefix."""
    found = (Path(at, each) for at, inner, names in os.walk(prefix) for each in (*names, *inner))
    names = {str(each.relative_to(prefix)) for each in found if each.is_symlink() or not each.is_dir()}
    return frozenset(each for each in names - {MANIFEST} if "__pycache__/" not in each)


# ---- changes


def prepare(prefix: Path) -> None:
    """Check all paths of an installation, and write the manifest: the first step of ``make install``.

    Raises:
        InstallError: the prefix or another path is occupied by others; nothing was changed.
    """
    check_visible(prefix, Path(sys.base_prefix))
    former = admit(prefix)
    check_foreign(parts(prefix, systemd_version(), {}), former, Path("/"))
    foreign = environment_files(prefix) - former.environment if former.foreign is None else former.foreign
    write_manifest(prefix, former._replace(foreign=foreign))


def change(
    new: Mapping[str, str], former: Mapping[str, frozenset[str]], top: Path, *, purge: bool = False
) -> Iterator[tuple[str, str]]:
    """Place the new files, and remove the former ones that are not new; yield each change for a report.

    An edited file is kept if it is new; otherwise a purge removes it, and an uninstallation renames it.
    """
    for path in {**former, **new}:
        place = below(top, path)
        present = fingerprint(place)
        is_edited = present is not None and present not in former.get(path, ())
        if path in new and present == _of_text(new[path]):
            yield "unchanged", path
        elif path in new and is_edited:
            yield "kept", f"{path} (edited since it was installed; remove it and install again for the new version)"
        elif path in new:
            place.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            replace_file(place, new[path], mode=0o755 if new[path].startswith("#!") else 0o644)
            yield "new" if present is None else "replaced", path
        elif is_edited and not purge:
            saved = place.rename(place.with_name(f"{place.name}.nodeagent-old"))
            yield "removed", f"{path}, kept as {saved.name} (edited since it was installed)"
        elif present is not None:
            place.unlink()
            with suppress(OSError):  # not empty
                for above in (each for each in Path(path).parents if len(each.parts) > 4 and each.name != "man"):
                    below(top, above).rmdir()
            yield "removed", path


def remove_environment(prefix: Path, manifest: Manifest) -> Iterator[tuple[str, str]]:
    """Remove the environment of an installation, then the manifest; yield each change for a report."""
    for each in environment_files(prefix) & manifest.environment:
        (prefix / each).unlink()
    for at, _, _ in os.walk(prefix, topdown=False) if manifest.environment else ():
        if at.endswith("/__pycache__"):
            shutil.rmtree(at)
        with suppress(OSError):  # has other files
            Path(at).rmdir()
    (prefix / MANIFEST).unlink()
    for each in sorted(environment_files(prefix) if manifest.environment else (one.name for one in prefix.iterdir())):
        yield "kept", f"{prefix / each} (not installed by nodeagent)"
    with suppress(OSError):
        prefix.rmdir()
        yield "removed", f"{prefix} (virtual environment)"


def main() -> None:
    """Run one step of the Makefile: ``prepare PREFIX`` or ``check-installed PREFIX``."""
    steps: dict[str, Callable[[Path], object]] = {"prepare": prepare, "check-installed": installed}
    os.umask(0o022)
    try:
        check_prefix(Path(sys.argv[2]))
        steps[sys.argv[1]](Path(sys.argv[2]))
    except (NodeAgentError, OSError) as error:
        sys.exit(f"nodeagent: {error}")
