"""Random content of every usage category on the filesystem of a real containerd, and its expected usage.

Expected sizes are allocated blocks, read from the planted files and from the directories of the runtime. They do not
depend on the product.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import random
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import grpc

from nodeagent._proto.containerd.services.content.v1 import content_pb2
from nodeagent.runtime.connection import RuntimeConnection
from nodeagent.runtime.containerd import ContainerdClient, LeasedResource
from tests.support import images, reclaim

if TYPE_CHECKING:
    from tests.support.containerd import Containerd
    from tests.support.pods import Container, Sandbox

KIB, MIB = 1 << 10, 1 << 20
WITHOUT_COLLECTION = """
[plugins."io.containerd.gc.v1.scheduler"]
  deletion_threshold = 0
  mutation_threshold = 0
  startup_delay = "24h"
"""
"""Configuration of containerd that keeps unreferenced content."""

ORDER = (
    "images-in-use",
    "images-unused",
    "images-unlisted",
    "leased",
    "being-written",
    "other-namespaces",
    "unreferenced",
    "writable-layers-running",
    "writable-layers-dead",
    "pod-logs",
    "pod-volumes",
    "runtime-metadata",
    "deleted-files",
    "host-files",
    "reserved-for-root",
)
"""Categories; content of several categories counts in the first of them."""

NAMESPACES = ("buildkit", "moby")
_CONTENT = "io.containerd.content.v1.content"
_SNAPSHOTTER = "io.containerd.snapshotter.v1.overlayfs"
_CRI = "k8s.io"
_REGISTRY = "registry.example.com/planted"
_CHECKOUT = Path(__file__).parents[2]
_EMPTY_DIR = "volumes/kubernetes.io~empty-dir/cache"


@dataclass(frozen=True)
class Claim:
    """An item that is expected in a category: the beginning of its name, and its pieces."""

    part: str
    name: str
    pieces: tuple[str, ...]


@dataclass(frozen=True)
class Expected:
    """Expected size of a category, and of its items: with and without the pieces of other items."""

    size_bytes: int
    items: Mapping[str, tuple[int, int]]


def tree_bytes(root: Path) -> int:
    """Return the allocated bytes of a tree on one filesystem; a file with several links counts once."""
    device, counted = root.lstat().st_dev, dict[int, int]()
    for directory, names, files in os.walk(root):
        for path in (Path(directory), *(Path(directory, each) for each in (*names, *files))):
            status = path.lstat()
            if status.st_dev == device:
                counted[status.st_ino] = status.st_blocks * 512
    return sum(counted.values())


@dataclass
class PlantedPod:
    """A pod with its emptyDir, which is ``/cache`` in its containers."""

    sandbox: Sandbox
    volume: Path
    containers: list[Container] = field(default_factory=list)


@dataclass
class PlantedStore:
    """Random content on the filesystem of a containerd that does not collect garbage by itself."""

    containerd: Containerd
    seed: int
    claims: list[Claim] = field(default_factory=list)
    _sizes: dict[str, Callable[[], int]] = field(default_factory=dict)
    _images: dict[str, tuple[str, ...]] = field(default_factory=dict)
    _in_use: set[str] = field(default_factory=set)
    _open: list[BinaryIO] = field(default_factory=list)
    _of_pods: list[Path] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.dice = random.Random(self.seed)
        self.pods = self.containerd.pods()
        self.root = self.containerd.root
        self.logs, self.kubelet = self.root / "logs", self.root / "kubelet"
        self.pods.log_root = self.logs
        (self.kubelet / "pods").mkdir(parents=True)
        self.logs.mkdir()
        self._show_directories()

        self._claim("runtime-metadata", "", self._metadata_bytes)
        self._claim("reserved-for-root", "", self._reserved_bytes)

    def close(self) -> None:
        """Close the deleted files."""
        for each in self._open:
            each.close()

    def plant(self) -> None:
        """Plant random content of every category."""
        self._plant_images()
        tags = sorted(self._images.keys() - {images.PAUSE})[:3]
        for number in range(self.dice.randint(2, 4)):
            self._plant_pod(f"web-{number}", self.dice.choice(tags), ends=False)
        for number in range(self.dice.randint(1, 2)):
            self._plant_pod(f"job-{number}", self.dice.choice(tags), ends=True)
        self._remove_image_in_use()
        self._plant_host_files()
        self._plant_deleted_files()
        self._lose_blobs()
        self.containerd.restart()
        asyncio.run(self._plant_records())
        os.sync()

    @property
    def config(self) -> Path:
        return self.containerd.base / "nodeagent.toml"

    def run(self, command: str) -> dict[str, Any]:
        """Return the document of a command, run with the planted pod volumes as those of the kubelet."""
        shown = self._show_directories()
        words = [sys.executable, "-m", "nodeagent", *command.split(), "-o", "json", "-c", str(self.config)]
        ended = subprocess.run(
            [*shown, *words], capture_output=True, text=True, timeout=300, check=False, cwd=_CHECKOUT
        )
        assert ended.stdout, ended.stderr
        document: dict[str, Any] = json.loads(ended.stdout)
        return document

    def _show_directories(self) -> list[str]:
        """Return a command prefix with the directories of pods at the kubelet's path: a bind mount or a symbolic link.

        The log root is configured by its own path, by a bind mount or by a symbolic link.
        """
        mount = 'mount -t tmpfs none /var/lib && mkdir /var/lib/kubelet && mount --rbind "$0" /var/lib/kubelet'
        if self.seed % 4 == 3:
            mount = 'mount -t tmpfs none /var/lib && ln -s "$0" /var/lib/kubelet'
        logs, link = self.logs, self.containerd.base / "log-link"
        if self.seed % 3 == 1:
            logs = link
            if not link.is_symlink():
                link.symlink_to(self.logs)
        elif self.seed % 3 == 2:
            logs = self.containerd.log_root
            mount += f" && mount --bind '{self.logs}' '{logs}'"
        self.log_path = logs
        self.config.write_text(
            f"""role = "standalone"
[runtime]
endpoint = "unix://{self.containerd.socket}"
[state]
directory = "{self.containerd.base}/agent-state"
[container_gc]
pod_log_root = "{logs}"
container_log_root = "{self.containerd.base}/none"
[kubelet]
manifests = ""
[control]
socket = ""
"""
        )
        return ["unshare", "--mount", "--propagation", "slave", "sh", "-c", f'{mount} && exec "$@"', str(self.kubelet)]

    def expected(self) -> dict[str, Expected]:
        """Return the expected usage at this time by category."""
        listed = {tag for each in self.pods.list_images() for tag in each.tags}
        claims = [*self.claims]
        for tag, pieces in self._images.items():
            unused = "images-unused" if tag in listed else "images-unlisted"
            claims.append(Claim("images-in-use" if tag in self._in_use else unused, tag, pieces))
        sizes = {piece: self._sizes[piece]() for claim in claims for piece in claim.pieces}
        counted, found = set[str](), dict[str, Expected]()
        for part in ORDER:
            own = [each for each in claims if each.part == part]
            total = {piece for each in own for piece in each.pieces} - counted
            counted |= total
            items = {}
            for name in {each.name for each in own}:
                its = {piece for each in own if each.name == name for piece in each.pieces}
                others = {piece for each in claims if (each.part, each.name) != (part, name) for piece in each.pieces}
                items[name] = sum(sizes[each] for each in its - others), sum(sizes[each] for each in its)
            found[part] = Expected(sum(sizes[each] for each in total), items)
        return found

    def _claim(self, part: str, name: str, size: Callable[[], int], piece: str = "") -> None:
        piece = piece or f"{part} {name} {len(self.claims)}"
        self._sizes[piece] = size
        self.claims.append(Claim(part, name, (piece,)))

    def _size(self) -> int:
        return self.dice.randint(64 * KIB, 3 * MIB)

    # ---- images

    def _plant_images(self) -> None:
        pause = images.write_oci(self.containerd.base / "pause.tar", images.pause_image())
        self._images[images.PAUSE] = self._pieces(pause[images.PAUSE], ["busybox-pause"], _CRI)
        self._in_use.add(images.PAUSE)
        shared = [images.blob(f"base-{each}", self._size(), seed=self.seed) for each in range(2)]
        for number in range(self.dice.randint(6, 9)):
            own = [images.blob(f"own-{number}-{each}", self._size()) for each in range(self.dice.randint(1, 2))]
            layers = [*shared[: self.dice.randint(0, 2)], *own]
            tag = f"{_REGISTRY}/app-{number}:v1"
            elsewhere = [each for each in NAMESPACES if self.dice.random() < 0.15]
            self._images[tag] = self._import(tag, layers, _CRI, *elsewhere)
        for number in range(self.dice.randint(1, 2)):
            layers = [images.blob(f"foreign-{number}", self._size())]
            self._import(f"{_REGISTRY}/foreign-{number}:v1", layers, self.dice.choice(NAMESPACES))

    def _import(self, tag: str, layers: Iterable[images.Layer], *namespaces: str) -> tuple[str, ...]:
        """Import an image into namespaces; return its pieces in the first of them."""
        image = images.image(tag, layers=tuple(layers), volumes=["/declared"])
        archive = images.write_oci(self.containerd.base / "planted.tar", image, digest_names=False)
        markers = ["bin/busybox", *(each.files[0].path for each in layers)]
        for namespace in namespaces:
            if namespace == _CRI:
                self.containerd.import_images(archive)
                continue
            self.containerd.ctr("images", "import", str(archive.path), namespace=namespace)
            self.claims.append(Claim("other-namespaces", namespace, self._pieces(archive[tag], markers, namespace)))
        return self._pieces(archive[tag], markers, namespaces[0])

    def _pieces(self, built: images.Built, markers: Iterable[str], namespace: str) -> tuple[str, ...]:
        """Return the blobs of an image, which namespaces share, and its layers, found by a unique file in each."""
        blobs = {f"blob {each}": each for each in (built.digest, built.config_digest, *built.layer_digests)}
        layers = {f"{namespace} layer {each}": each for each in markers}
        self._sizes |= {piece: partial(_file_bytes, self._blob(digest)) for piece, digest in blobs.items()}
        self._sizes |= {piece: partial(self._layer_bytes, marker) for piece, marker in layers.items()}
        return (*blobs, *layers)

    def _blob(self, digest: str) -> Path:
        return self.root / _CONTENT / "blobs/sha256" / digest.removeprefix("sha256:")

    def _layer_bytes(self, marker: str) -> int:
        """Return the size of the layer with a file; the layers of several namespaces are equal.

        containerd creates further directories for a layer, and does not count them.
        """
        found = (self.root / _SNAPSHOTTER / "snapshots").glob(f"*/fs/{marker}")
        layer = next(each.parents[marker.count("/") + 1] for each in found if each.is_file())  # not a whiteout
        return tree_bytes(layer)

    def _lose_blobs(self) -> None:
        """Delete files of unused images, as a restored backup may lack them."""
        unused = sorted(self._images.keys() - self._in_use)
        for tag, kind in zip(self.dice.sample(unused, 3), ("manifest", "config", "layer"), strict=True):
            blobs = [each.removeprefix("blob ") for each in self._images[tag] if each.startswith("blob ")]
            self._blob({"manifest": blobs[0], "config": blobs[1], "layer": blobs[-1]}[kind]).unlink()

    # ---- pods

    def run_pod(self, name: str, tag: str, scripts: Iterable[str], *, ends: bool = False) -> PlantedPod:
        """Run a pod with an emptyDir and a container per script; return it when all scripts have finished.

        The containers of a pod that does not end sleep until SIGTERM.
        """
        uid = str(uuid.uuid5(uuid.NAMESPACE_DNS, f"{self.seed} {name}"))
        volume = self.kubelet / "pods" / uid / _EMPTY_DIR
        volume.mkdir(parents=True)
        parent = f"{self.pods.cgroup_parent}/kubepods/burstable/pod{uid}"
        pod = PlantedPod(self.pods.run_sandbox(name, uid=uid, cgroup_parent=parent), volume)
        last = "exit 0" if ends else "trap 'exit 0' TERM; while :; do sleep 1000 & wait $!; done"
        for number, script in enumerate(scripts):
            done = f"done-{name}-{number}"
            command = ["sh", "-c", f"set -e\n{script}\nsync\ntouch /{done}\n{last}"]
            own = "main" if not number else f"side-{number}"
            pod.containers.append(self.pods.create_container(pod.sandbox, own, tag, command, mounts={volume: "/cache"}))
            self.pods.start(pod.containers[-1])
            layers = (self.root / _SNAPSHOTTER / "snapshots").glob
            reclaim.poll(f"{own} of {name} finished", lambda: any(layers(f"*/fs/{done}")), timeout_s=60)  # noqa: B023
        if ends:
            for each in pod.containers:
                self.pods.wait_exited(each)
            self.pods.stop_sandbox(pod.sandbox)
        return pod

    def _plant_pod(self, name: str, tag: str, *, ends: bool) -> None:
        """Run a pod that writes to its writable layer, its log, its volume, and deleted files that stay open."""
        self._in_use.add(tag)
        lower = next(each for each in self._images[tag] if each.startswith(f"{_CRI} layer data/own")).split()[-1]
        written, logged, gone, gone_in_volume, declared = (self._size() for _ in range(5))
        of_sandbox = self.dice.choice((0, MIB + self._size()))
        script = f"""
        head -c {written} /dev/urandom > /planted-{name}
        ln /planted-{name} /linked-{name}
        dd if=/dev/zero of=/sparse bs=1k seek=90000 count=8 2>/dev/null
        exec 3>/gone 4>/cache/gone 5</{lower}
        head -c {gone} /dev/urandom >&3
        head -c {gone_in_volume} /dev/urandom >&4
        rm /gone /cache/gone /{lower}
        head -c {declared} /dev/urandom > /declared/data
        head -c {of_sandbox} /dev/urandom >> /etc/resolv.conf
        yes $(seq 60) | head -c {logged}
        """
        pod = self.run_pod(name, tag, [script], ends=ends)
        (container,) = pod.containers
        if not ends:
            pid = self._init_pid(container)
            for descriptor in (3, 4):
                self._claim("deleted-files", f"default/{name} (", _open_bytes(f"/proc/{pid}/fd/{descriptor}"))
        state = "dead" if ends else "running"
        self._claim(
            f"writable-layers-{state}",
            f"default/{name}/main",
            partial(self._layer_bytes, f"planted-{name}"),
        )
        self._claim_files_of_runtime(container, of_sandbox)
        self._fill_volume(pod.volume)
        directory = self.kubelet / "pods" / pod.sandbox.uid
        self._claim("pod-volumes", f"/var/lib/kubelet/pods/{directory.name}", partial(tree_bytes, directory))
        logs = self.logs / f"default_{name}_{pod.sandbox.uid}"
        (logs / "main/0.log.20260101-000000").write_bytes(self.dice.randbytes(self._size()))
        self._claim("pod-logs", str(self.log_path / logs.name), partial(tree_bytes, logs))

    def _claim_files_of_runtime(self, container: Container, of_sandbox: int) -> None:
        """Expect the files of a pod in directories of the runtime: volumes declared by images, files of sandboxes."""
        (volumes,) = self.root.glob(f"io.containerd.*/containers/{container.id}/volumes")
        self._claim("pod-volumes", str(volumes), lambda: tree_bytes(volumes))
        self._of_pods.append(volumes)
        if of_sandbox:
            (file,) = self.root.glob(f"io.containerd.*/sandboxes/{container.sandbox.id}/resolv.conf")
            self._claim("pod-volumes", str(file), lambda: _file_bytes(file))
            self._of_pods.append(file)

    def _remove_image_in_use(self) -> None:
        """Remove the names of the image of a finished pod: its container keeps the layers, and nothing the blobs."""
        tag, layers = f"{_REGISTRY}/removed:v1", [images.blob("own-removed", self._size())]
        pieces = self._import(tag, layers, _CRI)
        self._images[tag] = pieces
        self._plant_pod("removed", tag, ends=True)
        del self._images[tag]
        names = self.containerd.ctr("images", "ls", "-q").split()
        config = pieces[1].removeprefix("blob ")
        self.containerd.ctr("images", "rm", *(each for each in names if each in {tag, config}))
        for piece in pieces:
            kept = "layer" in piece
            self.claims.append(
                Claim(
                    "images-in-use" if kept else "unreferenced",
                    "default/removed/main (" if kept else piece.removeprefix("blob "),
                    (piece,),
                )
            )

    def _fill_volume(self, volume: Path) -> None:
        (volume / "deep/tree").mkdir(parents=True)
        for number in range(self.dice.randint(1, 20)):
            (volume / f"deep/tree/{number}").write_bytes(self.dice.randbytes(self.dice.randint(1, 200 * KIB)))
        large = volume / "large"
        large.write_bytes(self.dice.randbytes(self._size()))
        (volume / "deep/again").hardlink_to(large)
        _write_sparse(volume / "sparse", self.dice.randbytes(self._size()))
        linked = self.root / f"planted-{volume.parents[2].name}"
        linked.hardlink_to(large)  # also a file of the host: it counts once, as a volume
        assert linked.stat().st_nlink == 3

    def _init_pid(self, container: Container) -> int:
        task = f"state/io.containerd.runtime.v2.task/{_CRI}/{container.id}/init.pid"
        return int((self.containerd.base / task).read_text())

    # ---- files

    def _plant_host_files(self) -> None:
        for number in range(self.dice.randint(1, 3)):
            path = self.root / f"planted-{number}"
            path.write_bytes(self.dice.randbytes(self._size()))
            self._claim("host-files", str(path), partial(_file_bytes, path))
        directory = self.root / "planted-directory"
        directory.mkdir()
        _write_sparse(directory / "sparse", self.dice.randbytes(self._size()))
        (directory / "linked").hardlink_to(directory / "sparse")
        (directory / "data").write_bytes(self.dice.randbytes(self._size()))
        self._claim("host-files", str(directory), lambda: tree_bytes(directory))

    def _plant_deleted_files(self) -> None:
        comm = Path("/proc/self/comm").read_text().strip()
        for number in range(self.dice.randint(1, 3)):
            path = self.root / f"gone-{number}"
            self._open.append(path.open("w+b"))
            self._open[-1].write(self.dice.randbytes(self._size()))
            self._open[-1].flush()
            os.fsync(self._open[-1].fileno())
            if number == 2:  # still has another name
                (self.root / "planted-directory/kept").hardlink_to(path)
            else:
                size = _open_bytes(f"/proc/self/fd/{self._open[-1].fileno()}")
                self._claim("deleted-files", f"{comm} (process {os.getpid()})", size)
            path.unlink()

    def _metadata_bytes(self) -> int:
        stores = {_CONTENT, _SNAPSHOTTER}
        directories = [each for each in self.root.glob("io.containerd.*") if each.name not in stores]
        of_pods = sum(tree_bytes(each) if each.is_dir() else _file_bytes(each) for each in self._of_pods)
        return sum(map(tree_bytes, directories)) + _file_bytes(self.root / _SNAPSHOTTER / "metadata.db") - of_pods

    def _reserved_bytes(self) -> int:
        """Return the space that ext4 reserves for root and for delayed allocations."""
        if self.containerd.imagefs is None or self.containerd.imagefs.kind != "ext4":
            return 0
        mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
        device = next(fields[0] for fields in mounts if fields[1] == str(self.root))
        lines = subprocess.run(
            ["dumpe2fs", "-h", device], capture_output=True, text=True, check=True
        ).stdout.splitlines()
        header = {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}
        clusters = int(Path(f"/sys/fs/ext4/{Path(device).name}/reserved_clusters").read_text())
        return (int(header["Reserved block count"]) + clusters) * int(header["Block size"])

    # ---- records of containerd

    async def _plant_records(self) -> None:
        async with RuntimeConnection(f"unix://{self.containerd.socket}") as connection:
            client = ContainerdClient(connection)
            until = (datetime.now(UTC) + timedelta(days=2)).strftime("%Y-%m-%dT%H:%M:%SZ")
            for lease, labels in (("pull", {}), ("build", {"containerd.io/gc.expire": until})):
                await client.create_lease(lease, labels)
                for _ in range(self.dice.randint(1, 2)):
                    self._claim("leased", lease, await self._write_blob(client, lease))
                self._claim("leased", lease, await self._write_snapshot(client, lease, f"{lease}-snapshot"))
            await client.create_lease("short", {})
            rooted = {"containerd.io/gc.root": "2026-01-01T00:00:00Z"}
            size, digest = await self._write_named_blob(client, "short", rooted)
            self._claim("leased", digest, size)
            size, digest = await self._write_named_blob(client, "short", {})
            self._claim("unreferenced", digest, size)
            size = await self._write_snapshot(client, "short", "lost-snapshot")
            self._claim("unreferenced", "lost-snapshot", size)
            await client.delete_lease("short", sync=False)
        for number, namespace in enumerate((_CRI, self.dice.choice((_CRI, *NAMESPACES)))):
            self._start_download(f"layer-{number}", namespace)

    async def _write_blob(self, client: ContainerdClient, lease: str) -> Callable[[], int]:
        return (await self._write_named_blob(client, lease, {}))[0]

    async def _write_named_blob(
        self, client: ContainerdClient, lease: str, labels: Mapping[str, str]
    ) -> tuple[Callable[[], int], str]:
        data = self.dice.randbytes(self._size())
        await client.write_leased_blob(lease, data, labels)
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        return lambda: _file_bytes(self._blob(digest)), digest

    async def _write_snapshot(self, client: ContainerdClient, lease: str, key: str) -> Callable[[], int]:
        snapshots = self.root / _SNAPSHOTTER / "snapshots"
        before = set(snapshots.iterdir())
        await client.prepare_snapshot("overlayfs", key)
        await client.add_lease_resource(lease, LeasedResource(key, "snapshots/overlayfs"))
        (directory,) = set(snapshots.iterdir()) - before
        (directory / "fs/data").write_bytes(self.dice.randbytes(self._size()))
        return lambda: tree_bytes(directory)

    def _start_download(self, ref: str, namespace: str) -> None:
        """Write the first part of a blob that is not committed."""
        data = self.dice.randbytes(self._size())
        request = content_pb2.WriteContentRequest(action=content_pb2.WRITE, ref=ref, total=2 * len(data), data=data)
        with grpc.insecure_channel(
            f"unix://{self.containerd.socket}", options=[("grpc.default_authority", "localhost")]
        ) as channel:
            write = channel.stream_stream(
                "/containerd.services.content.v1.Content/Write",
                request_serializer=content_pb2.WriteContentRequest.SerializeToString,
                response_deserializer=content_pb2.WriteContentResponse.FromString,
            )
            list(write(iter([request]), metadata=(("containerd-namespace", namespace),), timeout=30))
        self._claim("being-written", ref, lambda: len(data))


def _file_bytes(path: Path) -> int:
    return path.lstat().st_blocks * 512 if path.exists() else 0


def _open_bytes(link: str) -> Callable[[], int]:
    return lambda: Path(link).stat().st_blocks * 512


def _write_sparse(path: Path, data: bytes) -> None:
    """Write data at the end of a file of 1 GiB."""
    with path.open("wb") as file:
        file.seek((1 << 30) - len(data))
        file.write(data)
