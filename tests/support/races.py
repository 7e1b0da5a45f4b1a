"""Races of an image removal with other clients that create containers from the removed images, import or tag them.

A round imports the images and starts a removal. At random times during the removal, random images are used: a container
is created, with or without a preceding pull, or the image is imported again or tagged. At the end of the round every
container must have its image record, which the runtime requires to restart the container without a registry. The
removal is a parameter, so that a round can also measure the races of bare RemoveImage calls and of the kubelet's logic.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import grpc

from tests.support import images, reclaim
from tests.support.containerd import ContainerdError
from tests.support.images import File, Image, Layer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from tests.support.containerd import Containerd
    from tests.support.images import Archive, Built
    from tests.support.pods import Pods, Sandbox
    from tests.support.registry import Registry

    Removal = Callable[[Pods, Sequence[Built]], int]

REPOSITORY = "registry.test/raced"
_ABSENT = ("failed to resolve image", "failed to get image from containerd")
_PULL_DISTURBED = ("failed to create image reference", "from containerd image store: image ", "parent snapshot ")
_SHARING = 4  # number of images with the same base layer


@dataclass(slots=True)
class Counts:
    """Counters over all rounds.

    Attributes:
        opportunities: number of attempted creations, pulls, imports and tags.
        pulled: number of successful pulls.
        repeated: number of pulls repeated because an image name was deleted between containerd's calls.
        created: number of successful creations.
        absent: number of creations that failed since the image record did not exist, as after any removal.
        broken: number of failed pulls, and of creations that failed although the image record existed, by error text.
        lost: containers without an image record at the end of the round.
        incomplete: image names with missing content at the end of a round.
        removed: number of images reported as removed.
        removal_s: total duration of the removals, in seconds.
    """

    opportunities: int = 0
    pulled: int = 0
    repeated: int = 0
    created: int = 0
    absent: int = 0
    broken: Counter[str] = field(default_factory=Counter)
    lost: list[str] = field(default_factory=list)
    incomplete: list[str] = field(default_factory=list)
    removed: int = 0
    removal_s: float = 0.0

    def __str__(self) -> str:
        return (
            f"{self.opportunities} opportunities, {self.pulled} images pulled ({self.repeated} at the second try), "
            f"{self.created} containers created, "
            f"{self.absent} found no record, "
            f"{self.broken.total()} failed later, {self.removed} images removed in {self.removal_s:.1f} s, "
            f"{len(self.lost)} containers without image record, {len(self.incomplete)} incomplete images; "
            f"per removal {self._rate(self.absent)} found no record, {self._rate(len(self.lost))} lost their image"
        )

    def _rate(self, number: int) -> str:
        return f"{number / self.removed:.1%}" if self.removed else "-"


class RaceField:
    """Containerd with images that are removed and used concurrently, in rounds."""

    def __init__(
        self, containerd: Containerd, *, count: int = 24, seed: int = 0, registry: Registry | None = None
    ) -> None:
        """Write the image archives; ``seed`` determines the random choices but not the timing.

        With a ``registry``, the images are added to the registry, and some uses are pulls.
        """
        self._containerd = containerd
        self._registry = registry
        self._repository = f"{registry.host}/raced" if registry is not None else REPOSITORY
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self._numbers = iter(range(1 << 30))
        described = [_image(self._repository, number) for number in range(count)]
        directory = containerd.base
        self.archive = images.write_oci(directory / "raced.tar", *described)
        if registry is not None:
            registry.add(self.archive)
            registry.announce(directory)
        self._single: dict[str, Archive] = {
            each.tags[0]: images.write_oci(directory / f"raced-{number}.tar", each)
            for number, each in enumerate(described)
        }
        self._span_s = 1.0
        self.counts = Counts()

    def configure(self, extra: str = "") -> Path:
        """Write an agent configuration that removes every unused image; return its path."""
        path = self._containerd.base / "nodeagent.toml"
        path.write_text(
            f'role = "standalone"\n[runtime]\nendpoint = "unix://{self._containerd.socket}"\n'
            f'[state]\ndirectory = "{self._containerd.base}/agent-state"\n'
            '[image_gc]\nhigh_threshold_percent = 1\nlow_threshold_percent = 0\nminimum_age = "0s"\n'
            f'irreplaceable = "ignore"\n{extra}'
        )
        return path

    def run_round(self, removal: Removal, *, uses: int = 40, clients: int = 4) -> None:
        """Run one round: up to ``uses`` random uses of the images during ``removal``.

        ``removal`` is a function that removes images and returns the number of removed images.

        Uses that a busy machine delays beyond the end of the removal are omitted.
        """
        with self._containerd.pods() as pods:
            self.import_missing()
            sandbox = pods.run_sandbox(f"raced-{next(self._numbers)}")
            started, ended, threads = threading.Event(), threading.Event(), list[Future[None]]()
            with ThreadPoolExecutor(clients) as pool:
                instants = sorted(self._random.uniform(-0.05, self._span_s * 1.1) for _ in range(uses))
                plans = [(at, self._random.random(), self._random.choice(self.archive.images)) for at in instants]
                threads += [
                    pool.submit(self._use, pods, sandbox, started, ended, plans[part::clients])
                    for part in range(clients)
                ]
                started.set()
                time.sleep(0.05)  # the first uses start before the removal
                began = time.perf_counter()
                removed = removal(pods, self.archive.images)
                self._span_s = time.perf_counter() - began
                ended.set()
                for each in threads:
                    each.result()
            self.counts.removed += removed
            self.counts.removal_s += self._span_s
            self.settle(pods)
            self._check(pods)
            pods.remove_sandbox(sandbox)
            self._remove_aliases()

    def settle(self, pods: Pods) -> None:
        """Wait until CRI's image list agrees with containerd's image names, except names with missing content.

        CRI cannot list images with missing content; these are counted as incomplete.
        """

        def agrees() -> bool:
            named = set(self.names())
            listed = pods.list_images()
            shown = {name for image in listed for name in (*image.tags, *image.digests, image.id)}
            differing = {name for name in named ^ shown if name in named or not _is_id(name)}
            return not differing or differing <= {line.split()[0] for line in self.incomplete()}

        reclaim.poll("CRI's image list agrees with containerd's", agrees, timeout_s=30)

    def names(self) -> list[str]:
        """Return containerd's image names."""
        return [line.split()[0] for line in self._containerd.ctr("images", "ls").splitlines()[1:]]

    def import_missing(self) -> None:
        """Import all images again unless every image is present."""
        present = set(self.names())
        if any(built.config_digest not in present for built in self.archive.images):
            self._containerd.import_images(self.archive)

    def incomplete(self) -> list[str]:
        """Return the image names with missing content."""
        lines = self._containerd.ctr("images", "check").splitlines()[1:]
        own = [line for line in lines if self._repository in line or _is_id(line)]
        return [line for line in own if "complete" not in line.split()]

    def partial(self) -> dict[str, set[str]]:
        """Return the names of partly removed images: those of which some but not all names exist."""
        present = set(self.names())
        found = {}
        for built in self.archive.images:
            digest = f"{images.repository(built.tags[0])}@{built.digest}"
            own = {*built.tags, digest, built.config_digest}
            if own & present and not own <= present:
                found[built.tags[0]] = own & present
        return found

    def _use(
        self,
        pods: Pods,
        sandbox: Sandbox,
        started: threading.Event,
        ended: threading.Event,
        plans: list[tuple[float, float, Built]],
    ) -> None:
        """Use images at the planned times, in seconds from the start of the removal, until the removal ends."""
        started.wait()
        began = time.perf_counter() + 0.05
        for at, kind, built in plans:
            if ended.wait(max(0.0, began + at - time.perf_counter())):
                return
            if kind < 0.1 and self._registry is not None:
                if self._pull(pods, built):
                    self._create(pods, sandbox, built, start=kind < 0.02)
            elif kind < 0.9:
                self._create(pods, sandbox, built, start=kind > 0.8)
            elif kind < 0.95:
                self._import(built)
            else:
                self._tag(built)
            with self._lock:
                self.counts.opportunities += 1

    def _create(self, pods: Pods, sandbox: Sandbox, built: Built, *, start: bool) -> None:
        with self._lock:
            name = f"c{next(self._numbers)}"
            digest_name = f"{images.repository(built.tags[0])}@{built.digest}"
            image = self._random.choice([built.tags[0], digest_name, built.config_digest])
        try:
            container = pods.create_container(sandbox, name, image, log_path="")
            if start:
                pods.start(container)
        except grpc.RpcError as error:
            detail = str(error)
            with self._lock:
                if any(text in detail for text in _ABSENT):
                    self.counts.absent += 1
                else:
                    self.counts.broken[detail] += 1
            return
        with self._lock:
            self.counts.created += 1

    def _pull(self, pods: Pods, built: Built) -> bool:
        """Pull an image as the kubelet does before it creates a container; return whether the pull succeeded.

        containerd creates, updates and reads a name in several calls, and it checks the snapshot of a layer before it
        prepares the next one on it. A deletion between these calls fails the pull, with any kind of removal, and the
        kubelet repeats the pull. Source: CRI ``PullImage``, ``createImageReference``; containerd ``Unpacker.unpack``.
        """
        for again in (False, True):
            try:
                pods.pull_image(built.tags[0])
            except grpc.RpcError as error:
                detail = str(error)
                with self._lock:
                    if not again and any(text in detail for text in _PULL_DISTURBED) and "content" not in detail:
                        self.counts.repeated += 1
                        continue
                    self.counts.broken[detail] += 1
                return False
            break
        with self._lock:
            self.counts.pulled += 1
        return True

    def _import(self, built: Built) -> None:
        try:
            self._containerd.ctr("images", "import", str(self._single[built.tags[0]].path))
        except ContainerdError as error:
            # The image was removed before ctr unpacked it, or another client created the name between Update and Create
            # of ctr.
            if "not found" not in str(error) and "already exists" not in str(error):
                raise

    def _tag(self, built: Built) -> None:
        with self._lock:
            alias = f"{self._repository}/alias:{next(self._numbers)}"
        try:
            self._containerd.ctr("images", "tag", built.tags[0], alias)
        except ContainerdError as error:
            if "not found" not in str(error):
                raise

    def _check(self, pods: Pods) -> None:
        # The runtime creates containers by the image name that equals the image id; CRI's list also has images without
        # it.
        named = set(self.names())
        self.counts.lost += [
            f"{each.name}: {each.image_ref}" for each in pods.list_containers() if each.image_ref not in named
        ]
        self.counts.incomplete += self.incomplete()

    def _remove_aliases(self) -> None:
        aliases = [name for name in self.names() if name.startswith(f"{self._repository}/alias:")]
        if aliases:
            self._containerd.ctr("images", "rm", *aliases)


def remove_one_by_one(pods: Pods, built: Sequence[Built]) -> int:
    """Remove images by sequential RemoveImage calls without any check; return the number of images."""
    for each in built:
        pods.remove_image(each.config_digest)
    return len(built)


def remove_at_once(pods: Pods, built: Sequence[Built]) -> int:
    """Remove images by concurrent RemoveImage calls without any check; return the number of images."""
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda each: pods.remove_image(each.config_digest), built))
    return len(built)


def remove_as_kubelet(pods: Pods, built: Sequence[Built]) -> int:
    """Remove images as the kubelet does: list their users once, then remove the unused images sequentially.

    Source: kubelet image manager, ``detectImages`` and ``freeSpace``.
    """
    used = {each.image_ref for each in pods.list_containers()}
    unused = [each for each in built if each.config_digest not in used]
    return remove_one_by_one(pods, unused)


def _is_id(name: str) -> bool:
    return name.startswith("sha256:")


def _image(repository: str, number: int) -> Image:
    base = Layer((File(f"data/base-{number // _SHARING}", 4_000),))
    return images.image(f"{repository}/app{number}:v1", layers=[base, Layer((File(f"data/{number}", 4_001),))])
