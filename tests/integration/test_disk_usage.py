"""``du`` on a real containerd: each planted item is in its category, and the categories add up to the filesystem."""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from nodeagent.runtime.connection import RuntimeConnection
from nodeagent.runtime.containerd import ContainerdClient
from tests.support import images
from tests.support.containerd import LoopFs
from tests.support.images import File, Image, Layer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.integration.conftest import ContainerdFactory
    from tests.support.containerd import Containerd

pytestmark = pytest.mark.real

ROOT = Path(__file__).parents[2]
KIB, MIB = 1 << 10, 1 << 20
LEASE = "cancelled-pull"
NAMESPACE = "moby"
REGISTRY = "registry.example.com"


@pytest.fixture(params=["ext4", "xfs"])
def containerd(request: pytest.FixtureRequest, containerd_factory: ContainerdFactory) -> Iterator[Containerd]:
    daemon = containerd_factory(imagefs=LoopFs(400, request.param))
    yield daemon
    daemon.close()


def _image(name: str, size_bytes: int) -> Image:
    return Image((f"{REGISTRY}/{name}:v1",), (Layer((File("data", size_bytes),)),))


async def _write_leased_blob(containerd: Containerd, size_bytes: int) -> None:
    async with RuntimeConnection(f"unix://{containerd.socket}") as connection:
        client = ContainerdClient(connection)
        await client.create_lease(LEASE, {})
        await client.write_leased_blob(LEASE, os.urandom(size_bytes), {})


def _du(containerd: Containerd) -> dict[str, Any]:
    config = containerd.base / "nodeagent.toml"
    config.write_text(
        f'role = "standalone"\n[runtime]\nendpoint = "unix://{containerd.socket}"\n'
        f'[state]\ndirectory = "{containerd.base}/agent-state"\n'
        f'[container_gc]\npod_log_root = "{containerd.log_root}"\ncontainer_log_root = "{containerd.base}/none"\n'
    )
    return _document("du", config)


def _document(command: str, config: Path) -> dict[str, Any]:
    words = [sys.executable, "-m", "nodeagent", command, "-o", "json", "-c", str(config)]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False, cwd=ROOT)
    assert ended.stdout, ended.stderr
    answer: dict[str, Any] = json.loads(ended.stdout)
    return answer


@pytest.mark.parametrize("seed", range(3))
def test_each_planted_item_is_found_in_its_category_with_its_size(containerd: Containerd, seed: int) -> None:
    before = {each["part"]: each["bytes"] for each in _du(containerd)["shares"]}
    unexplained_bytes = before["unexplained"]  # XFS reserves space for its own metadata
    sizes = random.Random(seed)
    leased, foreign, host, deleted, unlisted = (sizes.randrange(MIB, 3 * MIB) for _ in range(5))
    asyncio.run(_write_leased_blob(containerd, leased))
    for name, size_bytes, namespace in (("foreign", foreign, NAMESPACE), ("unlisted", unlisted, "k8s.io")):
        archive = images.write_oci(containerd.base / f"{name}.tar", _image(name, size_bytes))
        containerd.ctr("images", "import", str(archive.path), namespace=namespace)
    _lose_config(containerd, f"{REGISTRY}/unlisted:v1")
    (containerd.root / "planted").write_bytes(os.urandom(host))
    with (containerd.root / "gone").open("wb") as gone:
        gone.write(os.urandom(deleted))
        os.fsync(gone.fileno())
        (containerd.root / "gone").unlink()
        found = _du(containerd)
    shares = {each["part"]: each for each in found["shares"]}
    expected = {
        "leased": (leased, LEASE),
        "other-namespaces": (2 * foreign, NAMESPACE),
        "images-unlisted": (2 * unlisted, f"{REGISTRY}/unlisted:v1"),
        "deleted-files": (deleted, "python"),
        "host-files": (host, f"{containerd.root}/planted"),
    }
    for part, (size_bytes, name) in expected.items():
        assert size_bytes <= shares[part]["bytes"] <= size_bytes + 100 * KIB, part
        assert shares[part]["largest"][0]["name"].startswith(name)
    assert 0 < shares["runtime-metadata"]["bytes"] < 4 * MIB
    assert "1 of 3 blobs missing" in shares["images-unlisted"]["largest"][0]["name"]
    findings = _document("doctor", containerd.base / "nodeagent.toml")["findings"]
    (finding,) = [each for each in findings if each["check"] == "held-content"]
    assert (finding["verdict"], "unlisted:v1 (1 of 3 blobs missing)" in finding["evidence"]) == ("warning", True)
    capacity, available = (found["imagefs"][f"{each}_bytes"] for each in ("capacity", "available"))
    used = capacity - available
    assert used <= sum(each["bytes"] for each in shares.values()) <= used + capacity // 100
    assert {part for part, each in shares.items() if not each["complete"]} <= {"deleted-files"}
    assert shares["unexplained"]["bytes"] <= unexplained_bytes + capacity // 100


def _lose_config(containerd: Containerd, name: str) -> None:
    """Delete the file of an image's config, as a restored backup may lack it, and restart containerd."""
    raw = containerd.ctr("content", "get", _target_of(containerd, name))
    config = json.loads(raw)["config"]["digest"].removeprefix("sha256:")
    (containerd.root / "io.containerd.content.v1.content/blobs/sha256" / config).unlink()
    containerd.restart()


def _target_of(containerd: Containerd, name: str) -> str:
    lines = containerd.ctr("images", "ls").splitlines()
    return next(line.split()[2] for line in lines if line.startswith(f"{name} "))


def test_full_disk_of_a_stopped_runtime_is_read_from_its_directories(containerd: Containerd) -> None:
    archive = images.write_oci(containerd.base / "image.tar", _image("app", 2 * MIB))
    containerd.ctr("images", "import", str(archive.path))
    containerd.fill(MIB)
    full = _du(containerd)
    assert full["imagefs"]["used_percent"] == 100
    config = containerd.base / "nodeagent.toml"
    config.write_text(config.read_text().replace("[runtime]\n", f'[runtime]\nimagefs_path = "{containerd.root}"\n'))
    containerd.stop()
    found = _document("du", config)
    assert "containerd.sock" in found["warnings"][0]
    shares = {each["part"]: each["bytes"] for each in found["shares"]}
    assert shares["runtime-data"] >= 4 * MIB
    assert "images-in-use" not in shares
    used = found["imagefs"]["capacity_bytes"] - found["imagefs"]["available_bytes"]
    assert sum(shares.values()) == used
    before = {each["part"]: each["bytes"] for each in full["shares"]}
    assert shares["unexplained"] <= before["unexplained"] + found["imagefs"]["capacity_bytes"] // 100
