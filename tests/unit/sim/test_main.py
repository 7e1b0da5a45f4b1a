"""Simulated runtime as a separate process."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

from nodeagent.runtime.connection import RuntimeConnection
from nodeagent.runtime.cri import CriClient

if TYPE_CHECKING:
    from pathlib import Path


async def test_simulation_serves_until_sigterm(tmp_path: Path) -> None:
    socket, root, logs = tmp_path / "s", tmp_path / "root", tmp_path / "logs"
    options = ["--socket", socket, "--images", "12", "--containers", "8", "--root", root, "--logs", logs]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.sim", *map(str, options), stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        assert await process.stdout.readline() == f"serving containerd 1.7.24 on {socket}\n".encode()
        async with RuntimeConnection(f"unix://{socket}") as connection:
            cri = CriClient(connection)
            assert len(await cri.list_images()) == 12
            assert len(await cri.list_containers()) == 8
            (mountpoint,) = (await cri.image_fs_info()).image_mountpoints
        assert mountpoint.startswith(str(root))
        assert (root / "io.containerd.snapshotter.v1.overlayfs").is_dir()
        assert len(list((logs / "containers").iterdir())) == 8
    finally:
        process.terminate()
        await process.wait()
    assert process.returncode == 0
    assert not socket.exists()
