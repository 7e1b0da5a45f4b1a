"""``du`` on a real containerd: each planted item is in its category, and the categories add up to the filesystem.

The stores are random; ``NODEAGENT_TEST_RUNS`` is their number, see ``make campaign-disk-usage``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest

from tests.support import images, reclaim
from tests.support.containerd import LoopFs
from tests.support.images import File, Image, Layer
from tests.support.planted_store import KIB, MIB, ORDER, WITHOUT_COLLECTION, Expected, PlantedPod, PlantedStore

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tests.integration.conftest import ContainerdFactory
    from tests.support.containerd import Containerd

pytestmark = pytest.mark.real

ROOT = Path(__file__).parents[2]
RUNS = int(os.environ.get("NODEAGENT_TEST_RUNS", "2"))
KINDS: tuple[Literal["ext4", "xfs", "btrfs"], ...] = ("ext4", "xfs", "btrfs")
SLACK_BYTES = 32 * KIB
"""Tolerance per item: directories, manifests and records of the runtime, and layers of sandboxes."""

UNNAMED = ("runtime-metadata", "reserved-for-root")
"""Categories without members."""

REGISTRY = "registry.example.com"


@pytest.fixture(params=["ext4", "xfs"])
def containerd(request: pytest.FixtureRequest, containerd_factory: ContainerdFactory) -> Iterator[Containerd]:
    daemon = containerd_factory(imagefs=LoopFs(400, request.param))
    yield daemon
    daemon.close()


def _image(name: str, size_bytes: int) -> Image:
    return Image((f"{REGISTRY}/{name}:v1",), (Layer((File("data", size_bytes),)),))


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


@pytest.mark.campaign
@pytest.mark.parametrize("seed", range(RUNS))
def test_each_planted_item_of_a_random_store_is_found_in_its_category_with_its_size(
    containerd_factory: ContainerdFactory, seed: int
) -> None:
    kind = KINDS[seed % len(KINDS)]
    imagefs = LoopFs(500, kind, reserved_percent=seed % 8)
    with closing(PlantedStore(containerd_factory(imagefs=imagefs, config=WITHOUT_COLLECTION), seed)) as store:
        shares_before = store.run("du")["shares"]
        before = {each["part"]: each["bytes"] for each in shares_before}
        before_inodes = shares_before[-1]["inodes"]
        store.plant()
        found, expected = store.run("du --details"), store.expected()
        finding = next(each for each in store.run("doctor")["findings"] if each["check"] == "held-content")
    shares = {each["part"]: each for each in found["shares"]}
    for part in ORDER:
        share = shares.pop(part, {"bytes": 0, "largest": ()})
        _compare(
            part, share["bytes"], [(_shown(part, each), each["bytes"]) for each in share["largest"]], expected[part]
        )
    assert shares.keys() == {"unexplained"}
    capacity, available = (found["imagefs"][f"{each}_bytes"] for each in ("capacity", "available"))
    used = capacity - available
    assert sum(each["bytes"] for each in found["shares"]) == pytest.approx(used, rel=0.01)
    used_inodes = found["imagefs"]["inodes"] - found["imagefs"]["inodes_free"]
    if kind != "btrfs":  # without a fixed number of inodes
        assert sum(each["inodes"] for each in found["shares"]) == pytest.approx(used_inodes, rel=0.01)
        more_inodes = shares["unexplained"]["inodes"] - before_inodes
        assert more_inodes <= max(60, used_inodes // 100)  # a directory of each mount
    added = shares["unexplained"]["bytes"] - before["unexplained"]  # XFS reserves space for its own metadata
    if kind != "btrfs":  # which allocates space for its own metadata in chunks, when files are written
        assert abs(added) <= used // 100
    assert {each["part"] for each in found["shares"] if not each["complete"]} <= {"deleted-files"}
    assert (finding["verdict"], "blobs missing)" in finding["evidence"]) == ("warning", True)
    print(f"seed {seed}, {kind}: {used} used, {sum(len(each.items) for each in expected.values())} items, {added} more")


def test_leaks_of_a_random_store_are_deleted_and_free_their_space(containerd_factory: ContainerdFactory) -> None:
    containerd = containerd_factory(imagefs=LoopFs(500), config=WITHOUT_COLLECTION)
    with closing(PlantedStore(containerd, 0)) as store:
        store.plant()
        unlisted = {each["name"]: each["bytes"] for each in _members(store.run("du"), "images-unlisted")}
        leaks = store.run("gc leaks --minimum-age 0s")["plans"][0]["decisions"]
        codes = {each["id"]: each["reason"]["code"] for each in leaks if each["kind"] in {"lease", "image-name"}}
        assert codes == dict.fromkeys(unlisted, "image-incomplete") | {"pull": "foreign-lease"}
        assert {each["id"]: each["frees_bytes"] for each in leaks if each["kind"] == "image-name"} == unlisted
        report = store.run("gc leaks --minimum-age 0s --include pull --yes")
        assert {each["outcome"] for each in report["results"]} == {"done"}
        assert {"pull", "lost-snapshot", *unlisted} <= {each["id"] for each in report["results"]}
        assert report["freed_bytes"] == pytest.approx(report["predicted_bytes"], abs=SLACK_BYTES)
        left = store.run("du")
        assert not _members(left, "images-unlisted")
        assert not _members(left, "unreferenced")
        assert "pull" not in {each["name"] for each in _members(left, "leased")}
        assert "build" in {each["name"] for each in _members(left, "leased")}  # with an expiry
        remaining = {each["kind"] for each in store.run("gc leaks --minimum-age 0s")["plans"][0]["decisions"]}
    assert not remaining & {"lease", "image-name"}


def _members(document: dict[str, Any], part: str) -> list[dict[str, Any]]:
    return [member for share in document["shares"] if share["part"] == part for member in share["largest"]]


def _shown(part: str, member: dict[str, Any]) -> str:
    """Return the name of a member, for data of a container with its pod."""
    pod, name = member["pod"], member["name"]
    if part == "deleted-files":
        return f"{pod} ({name})" if pod else name
    is_container = part.startswith("writable-layers") or member["detail"] == "image removed"
    return f"{pod}/{name} ({member['detail']})" if is_container else name


def _compare(part: str, size_bytes: int, members: list[tuple[str, int]], expected: Expected) -> None:
    """Assert the size of a category, the size of each expected item, and that no other item has a considerable size.

    Only the largest members are named; the remainder may belong to any item.
    """
    unnamed = size_bytes - sum(size for _, size in members)
    assert size_bytes == pytest.approx(expected.size_bytes, abs=SLACK_BYTES * (1 + len(expected.items))), part
    for name, (least, most) in expected.items.items():
        own = [each for each in members if each[0].startswith(name)]
        members = [each for each in members if each not in own]
        if part not in UNNAMED:
            assert least - SLACK_BYTES - unnamed <= sum(size for _, size in own) <= most + SLACK_BYTES, (part, name)
    assert all(size <= SLACK_BYTES for _, size in members), (part, members)


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


PARTS = {"pod-logs": "logs", "pod-volumes": "volumes"}
POD_IMAGE = f"{REGISTRY}/pod:v1"
POD_SCRIPTS = {
    "plain": "dd if=/dev/zero of=/data/own bs=1k count=900",
    "hidden": """mkdir /links && cd /links && seq 500 | xargs touch && cp -al /links /copy
        name=$(printf 'd%.0s' $(seq 200)); cd /; for level in $(seq 30); do mkdir $name && cd -P $name; done
        dd if=/dev/zero of=data bs=1k count=700; cd -P /; mkfifo /fifo; ln -s /proc/1/root /outside""",
    "sparse": "dd if=/dev/zero of=/sparse bs=1k seek=900000 count=300; ln /sparse /again; ln -s /sparse /soft",
    "moved": """mv /layer/moved /moved; chmod 600 /layer/copied; cp -a /layer/tree /tree; rm -r /layer/tree
        mkdir /layer/tree; dd if=/dev/zero of=/layer/tree/new bs=1k count=200; rm /layer/gone""",
    "other-users": "dd if=/dev/zero of=/data/own bs=1k count=400; chown -R 165536:165536 /data; chmod -R go-rwx /data",
    "deleted": """exec 3>/gone 4>/cache/gone; dd if=/dev/zero bs=1k count=800 >&3; dd if=/dev/zero bs=1k count=500 >&4
        rm /gone /cache/gone; dd if=/dev/zero of=/data/own bs=1k count=300""",
    "declared": "dd if=/dev/zero of=/declared/data bs=1k count=600",
    "of-sandbox": """dd if=/dev/zero of=/etc/resolv.conf bs=1k count=1500
        dd if=/dev/zero of=/etc/hostname bs=1k count=1600""",
    "volume": """dd if=/dev/zero of=/cache/data bs=1k count=700; ln /cache/data /cache/again; mkdir -p /cache/a/b
        seq 300 | sed 's,^,/cache/a/b/,' | xargs touch; dd if=/dev/zero of=/cache/sparse bs=1k seek=90000 count=100""",
    "logs": "yes $(seq 60) | head -c 700000",
}
"""Scripts of pods, which write to their writable layer, volumes and logs, by the name of the pod.

The image has the directory ``/layer`` in a layer, and the volume ``/declared``.
"""


@pytest.mark.parametrize("kind", KINDS)
def test_pods_use_the_same_bytes_in_du_and_in_the_eviction_order(
    containerd_factory: ContainerdFactory, kind: Literal["ext4", "xfs"]
) -> None:
    layer = ("moved", "copied", "gone", "tree/0", "tree/1")
    image = images.image(
        POD_IMAGE,
        layers=[Layer((File("data/own", 1), *(File(f"layer/{each}", 250 * KIB) for each in layer)))],
        volumes=["/declared"],
    )
    with closing(PlantedStore(containerd_factory(imagefs=LoopFs(500, kind)), 0)) as store:
        store.containerd.import_images(images.write_oci(store.containerd.base / "pod.tar", image))
        pods = {name: store.run_pod(name, POD_IMAGE, [script]) for name, script in POD_SCRIPTS.items()}
        write = "dd if=/dev/zero of=/cache/{0} bs=1k count=400; dd if=/dev/zero of=/data/own bs=1k count={0}"
        pods["shared"] = store.run_pod("shared", POD_IMAGE, [write.format(200), write.format(300)])
        pods["restarted"] = store.run_pod("restarted", POD_IMAGE, [write.format(200), write.format(500)])
        store.pods.stop(pods["restarted"].containers[0])
        os.sync()
        if _differences(store, pods):  # containerd measures layers in another mount namespace every 10 s
            with suppress(TimeoutError):
                reclaim.poll("equal sizes", lambda: not _differences(store, pods), timeout_s=20, interval_s=1)
            assert _differences(store, pods) == []


def _differences(store: PlantedStore, pods: Mapping[str, PlantedPod]) -> list[str]:
    """Return the pods with other writable bytes, logs or volumes in ``du`` than in ``top``."""
    layers = {"writable-layers-running", "writable-layers-dead"}
    shares = [each for each in store.run("du --details")["shares"] if each["part"] in {*layers, *PARTS}]
    sizes, unnamed = Counter[tuple[str, str]](), 0
    for share in shares:
        unnamed += share["bytes"] - sum(each["bytes"] for each in share["largest"])
        for each in share["largest"]:
            part = PARTS.get(share["part"], "writable")
            if each["name"].startswith(str(store.root / "io.containerd.")):  # volumes of images, files of sandboxes
                part = "writable"
            if share["part"] not in layers or each["name"] != "sandbox":
                sizes[each["pod"], part] += each["bytes"]
    assert unnamed <= SLACK_BYTES * len(pods), "only layers of sandboxes are not named"
    used = store.run("top --once")["pods"]["pods"]
    assert {each["name"] for each in used} == pods.keys()
    found = []
    for each in used:
        for part in ("writable", "logs", "volumes"):
            size_bytes, expected = sizes[f"default/{each['name']}", part], each[f"{part}_bytes"]
            if expected is None:  # containerd measures no path longer than PATH_MAX
                assert (each["name"], all(share["complete"] for share in shares)) == ("hidden", False)
            elif size_bytes != pytest.approx(expected, abs=SLACK_BYTES):
                found.append(f"{each['name']} {part}: {size_bytes} in du, {expected} in top")
    return found
