"""Tests of the unit's sandbox: exposure level with and without each optional drop-in, and resource limits."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

SYSTEMD: Final = Path(__file__).parents[2] / "systemd"
UNIT: Final = (SYSTEMD / "nodeagent.service").read_text()
EXPOSURE: Final = 1.8
WITH_DROP_IN: Final = {"api-server.conf": 1.9, "page-cache.conf": 1.8}
DROP_INS: Final = tuple(each.name for each in sorted(SYSTEMD.glob("*.conf")))


def exposure(directory: Path, *drop_ins: str) -> float:
    """Return the exposure level of the unit. Source: systemd-analyze(1)."""
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not installed")
    unit = directory / "nodeagent.service"
    unit.write_text(re.sub(r"^(Exec\w+)=/opt/nodeagent/.*$", r"\1=/bin/true", UNIT, flags=re.MULTILINE))
    for name in drop_ins:
        copy = directory / "nodeagent.service.d" / name
        copy.parent.mkdir(exist_ok=True)
        copy.write_text((SYSTEMD / name).read_text())
    words = [analyze, "security", "--no-pager", "--offline=true", str(unit)]
    shown = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    found = re.search(r"exposure level for nodeagent\.service: ([0-9.]+)", shown.stdout)
    assert found is not None, shown.stdout + shown.stderr
    return float(found[1])


def test_exposure_of_the_unit_is_low(tmp_path: Path) -> None:
    assert exposure(tmp_path) <= EXPOSURE


@pytest.mark.parametrize("name", DROP_INS)
def test_optional_drop_in_has_the_documented_exposure(tmp_path: Path, name: str) -> None:
    assert exposure(tmp_path, name) == WITH_DROP_IN[name]


@pytest.mark.parametrize(
    "setting",
    ["MemoryMax=1G", "TasksMax=256", "LimitCORE=0", "WorkingDirectory=/", "UMask=0027", "AmbientCapabilities="],
)
def test_unit_limits_the_effects_of_a_defect(setting: str) -> None:
    assert setting in UNIT.splitlines()
