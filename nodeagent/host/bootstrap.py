"""First steps of ``make install`` and ``make uninstall``: checks, and the virtual environment.

The Makefile runs this module with the system's interpreter, before the agent's libraries are installed, so only the
standard library is imported.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Final

from nodeagent.errors import InstallError, NodeAgentError
from nodeagent.host.environment import admit, begin, has_pip, is_installation, make_venv
from nodeagent.host.environment_files import LAUNCHER
from nodeagent.host.installation import BY_HAND, check_foreign, known_places
from nodeagent.host.manifest import Manifest
from nodeagent.host.prefix import check_owner, check_place

_ROOT: Final = Path("/")


def prepare(prefix: Path) -> None:
    """Check the prefix and all installation paths, then create a virtual environment with pip.

    Raises:
        UsageError: the prefix is part of the system.
        InstallError: a path is occupied by a foreign file, or Python lacks a module, and nothing was changed; or the
            environment cannot be created.
    """
    check_place(prefix, _ROOT)
    check_owner(prefix.parent.resolve() / prefix.name)
    former = admit(prefix) or Manifest()
    check_foreign(BY_HAND, known_places(BY_HAND), prefix, _ROOT, former.files)
    is_made = has_pip(prefix)
    if not is_made:
        check_python()
    begin(prefix)
    if not is_made:
        make_venv(prefix, pip=True)
    sys.stderr.write(f"nodeagent: installing the locked libraries in {prefix} from PyPI\n")


def check_python() -> None:
    """Refuse an interpreter that cannot create a virtual environment, such as Debian's without python3-venv.

    Raises:
        InstallError: a module is missing.
    """
    missing = [name for name in ("venv", "ensurepip") if importlib.util.find_spec(name) is None]
    if missing:
        raise InstallError(
            f"{sys.executable} cannot create a virtual environment: no module {' and '.join(missing)} "
            "(Debian: apt install python3-venv); nothing was changed"
        )


def check_installed(prefix: Path) -> None:
    """Refuse a prefix that is not a complete installation of the agent.

    Raises:
        UsageError: the prefix is part of the system.
        InstallError: the agent is not installed in the prefix, or only partly.
    """
    check_place(prefix, _ROOT)
    check_owner(prefix.parent.resolve() / prefix.name)
    if not is_installation(prefix):
        raise InstallError(f"{prefix} is not an installation of nodeagent; nothing was changed")
    if not (prefix / LAUNCHER).is_file():
        raise InstallError(f"the installation in {prefix} is incomplete: run make install again, then make uninstall")


def main() -> None:
    """Run one step: ``prepare PREFIX`` or ``check-installed PREFIX``."""
    steps = {"prepare": prepare, "check-installed": check_installed}
    match sys.argv[1:]:
        case [name, prefix] if name in steps:
            pass
        case _:
            sys.exit("nodeagent: expected a step of the Makefile: prepare PREFIX or check-installed PREFIX")
    os.umask(0o022)
    try:
        steps[name](Path(prefix))
    except NodeAgentError as error:
        sys.exit(f"nodeagent: {error}")
