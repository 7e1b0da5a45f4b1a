"""Images named by pods: sources, ended pods, and failed readings."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nodeagent.errors import ObservationError
from nodeagent.kube.kubelet_pods import ManifestReader
from nodeagent.model.pods import PodSpec
from nodeagent.pods.images import PodImageReader
from nodeagent.pods.plan.watch import WatchState
from nodeagent.pods.sources import BoundPods
from nodeagent.pods.watched import WatchedPods
from tests.sim.clock import SimClock

if TYPE_CHECKING:
    from pathlib import Path

MANIFEST = "{kind: Pod, metadata: {name: etcd, namespace: kube-system}, spec: {containers: [{image: r.io/etcd:3}]}}"


@dataclass
class Kubelet:
    """A fake kubelet with a changeable pod list and an optional error."""

    pods: tuple[PodSpec, ...] = ()
    error: str = ""
    readings: int = field(default=0, init=False)

    async def read(self) -> tuple[PodSpec, ...]:
        self.readings += 1
        if self.error:
            raise ObservationError(self.error)
        return self.pods


def reader_of(
    clock: SimClock, kubelet: Kubelet | None = None, manifests: ManifestReader | None = None
) -> PodImageReader:
    return PodImageReader(clock, bound=BoundPods(clock, kubelet), manifests=manifests)


def bound(name: str, *images: str, phase: str = "Pending") -> PodSpec:
    return PodSpec(f"uid-{name}", "shop", name, phase=phase, images=images)


async def test_images_of_manifests_and_of_bound_pods_are_named(tmp_path: Path) -> None:
    (tmp_path / "etcd.yaml").write_text(MANIFEST)
    kubelet = Kubelet((bound("web", "r.io/web:1", "r.io/base:1"), bound("job", "r.io/base:1", phase="Running")))
    found = await reader_of(SimClock(), kubelet, ManifestReader(tmp_path)).read()
    assert found.named == {
        "r.io/etcd:3": ("kube-system/etcd (static manifest)",),
        "r.io/web:1": ("shop/web (kubelet)",),
        "r.io/base:1": ("shop/job (kubelet)", "shop/web (kubelet)"),
    }
    assert (found.error, found.warnings) == ("", ())


async def test_pod_in_two_lists_is_counted_once_with_both_sources() -> None:
    clock, kubelet = SimClock(), Kubelet((bound("web", "r.io/web:1"), bound("job", "r.io/web:1")))
    watched = WatchedPods(clock)
    watched.address = "API server"
    watched.state = WatchState(pods={each.uid: each for each in kubelet.pods[:1]})
    reader = PodImageReader(clock, bound=BoundPods(clock, kubelet), watched=watched)
    source = "earlier list of the API server"
    assert (await reader.read()).named == {"r.io/web:1": ("shop/job (kubelet)", f"shop/web ({source}, kubelet)")}


async def test_pods_that_ended_name_no_image() -> None:
    pods = (bound("done", "r.io/a:1", phase="Succeeded"), bound("failed", "r.io/b:1", phase="Failed"))
    assert (await reader_of(SimClock(), Kubelet(pods)).read()).named == {}


async def test_list_is_read_again_after_a_second() -> None:
    clock, kubelet = SimClock(), Kubelet()
    reader = reader_of(clock, kubelet)
    await reader.read()
    kubelet.pods = (bound("web", "r.io/web:1"),)
    assert (await reader.read()).named == {}
    clock.advance(1.0)
    assert (await reader.read()).named == {"r.io/web:1": ("shop/web (kubelet)",)}
    assert kubelet.readings == 2


async def test_failed_reading_uses_the_previous_list_with_a_warning() -> None:
    clock, kubelet = SimClock(), Kubelet((bound("web", "r.io/web:1"),))
    reader = reader_of(clock, kubelet)
    await reader.read()
    kubelet.error = "kubelet: connection refused"
    clock.advance(5.0)
    found = await reader.read()
    assert (list(found.named), found.error, len(found.warnings)) == (["r.io/web:1"], "", 1)


async def test_list_that_was_never_read_is_an_error() -> None:
    found = await reader_of(SimClock(), Kubelet(error="HTTP 403")).read()
    assert found.error == "cannot list the pods of this node: HTTP 403"


async def test_unusable_manifest_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "broken.yaml").write_text("{")
    found = await reader_of(SimClock(), manifests=ManifestReader(tmp_path)).read()
    assert (found.error, len(found.warnings)) == ("", 1)


async def test_images_of_a_manifest_that_became_unusable_remain_named(tmp_path: Path) -> None:
    clock, file = SimClock(), tmp_path / "etcd.yaml"
    file.write_text(MANIFEST)
    reader = reader_of(clock, manifests=ManifestReader(tmp_path))
    await reader.read()
    file.write_text("{kind: Po")
    clock.advance(5.0)
    found = await reader.read()
    assert (list(found.named), len(found.warnings)) == (["r.io/etcd:3"], 1)
    file.write_text(MANIFEST.replace("etcd:3", "etcd:4"))
    clock.advance(5.0)
    assert list((await reader.read()).named) == ["r.io/etcd:4"]


async def test_images_of_a_deleted_manifest_are_not_named(tmp_path: Path) -> None:
    clock, file = SimClock(), tmp_path / "etcd.yaml"
    file.write_text(MANIFEST)
    reader = reader_of(clock, manifests=ManifestReader(tmp_path))
    await reader.read()
    file.unlink()
    clock.advance(5.0)
    assert (await reader.read()).named == {}


async def test_unreadable_manifest_directory_is_an_error_until_it_was_read(tmp_path: Path) -> None:
    clock, directory = SimClock(), tmp_path / "manifests"
    directory.symlink_to(directory)
    reader = reader_of(clock, manifests=ManifestReader(directory))
    assert (await reader.read()).error.startswith(f"static manifests: cannot read {directory}: ")
    directory.unlink()
    directory.mkdir()
    (directory / "etcd.yaml").write_text(MANIFEST)
    clock.advance(5.0)
    assert (await reader.read()).error == ""
    directory.rename(tmp_path / "elsewhere")
    directory.symlink_to(directory)
    clock.advance(5.0)
    found = await reader.read()
    assert (list(found.named), found.error, len(found.warnings)) == (["r.io/etcd:3"], "", 1)
