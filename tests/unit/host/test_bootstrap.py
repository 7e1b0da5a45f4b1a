"""Bootstrap of an installation, which runs before any dependency is installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from nodeagent.errors import InstallError
from nodeagent.host.bootstrap import check_python

ROOT = Path(__file__).parents[3]
IMPORT = """
import sys
sys.path.insert(0, sys.argv[1])
import nodeagent.host.bootstrap
print(*{name.partition(".")[0] for name in sys.modules} - sys.stdlib_module_names - {"__main__"})
"""


def test_bootstrap_imports_the_standard_library_alone(tmp_path: Path) -> None:
    command = [sys.executable, "-I", "-S", "-c", IMPORT, str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, ["nodeagent"], "")


def test_python_without_ensurepip_is_refused_with_the_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    check_python()
    monkeypatch.setitem(sys.modules, "ensurepip", None)  # simulates a missing package python3-venv
    with pytest.raises(InstallError, match=r"no module ensurepip \(Debian: apt install python3-venv\); nothing was"):
        check_python()
