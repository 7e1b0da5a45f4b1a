"""Disk usage hidden by a process of a tenant that observes the walk of its volume."""

from __future__ import annotations

import math
import os
import signal
from typing import TYPE_CHECKING

import pytest

from nodeagent.host.pod_disk import PodDiskWalk
from tests.support import mover

if TYPE_CHECKING:
    from pathlib import Path

    from tests.security.conftest import Attacker

HIDDEN_BYTES = 20 << 20
"""An eighth of the data; the measured usage is a mean of random readings."""


@pytest.mark.parametrize("method", ["files", "directory", "allocation"])
def test_data_moved_by_a_process_that_observes_the_walk_is_measured_or_a_lower_bound(
    attacker: Attacker, place: Path, method: str
) -> None:
    volume = place / "kubelet/pods/u-1/volumes/kubernetes.io~empty-dir/scratch"
    volume.mkdir(parents=True)
    os.chown(volume, attacker.uid, attacker.uid)
    reading, writing = os.pipe()
    pid = attacker.start(lambda: mover.hide(str(volume), method, lambda: os.write(writing, b"1")))
    os.close(writing)
    try:
        assert os.read(reading, 1) == b"1", "the attack itself has a defect"
        for _ in range(3):
            walk = PodDiskWalk("u-1", place / "logs", place / "kubelet")
            assert walk.advance(math.inf)
            found = walk.reading().volumes
            assert found is not None
            assert found.is_lower_bound or (found.used_bytes or 0) > HIDDEN_BYTES
    finally:
        os.close(reading)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
