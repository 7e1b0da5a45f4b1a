"""Images with every kind of layer sharing that complicates the prediction of freed bytes.

The node has base images, images built on images, siblings that differ only in the last layer, a layer on different
parents, an image with many names, artifacts, damaged images, images of another namespace, and an exited container.
"""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.support import images
from tests.support.images import File, Image, Index, Layer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tests.support.containerd import Containerd
    from tests.support.images import Built
    from tests.support.pods import Container, Pods

KIB, MIB = 1 << 10, 1 << 20
REGISTRY = "registry.example.com"
USED = f"{REGISTRY}/shop/app3:v1"
DAMAGED = f"{REGISTRY}/odd/damaged:v1"
UNLISTED = f"{REGISTRY}/odd/without-config:v1"
ARTIFACTS = (f"{REGISTRY}/charts/attested:v1", f"{REGISTRY}/charts/plain:v1")
_WHITEOUT = ".wh."
_THROWN_AWAY = f"{REGISTRY}/odd/thrown-away:v1"


@dataclass(frozen=True, slots=True)
class StackedNode:
    """Containerd with images that share layers, and a checkpoint of its image filesystem.

    Attributes:
        candidates: manifests of each image that can be removed through CRI, by image id, in a fixed order.
        contents: described layers of each manifest, by manifest digest.
        container: exited container, which references the layers of ``USED`` and a writable layer.
    """

    containerd: Containerd
    pods: Pods
    candidates: Mapping[str, tuple[Built, ...]]
    contents: Mapping[str, tuple[Layer, ...]]
    container: Container


def stack(containerd: Containerd) -> StackedNode:
    """Fill a newly started containerd with a dedicated image filesystem, and save a checkpoint."""
    made = described()
    archive = images.write_oci(containerd.base / "stacked.tar", *made)
    artifacts = images.write_oci(containerd.base / "artifacts.tar", *_artifacts())
    for each in (archive, artifacts):
        containerd.import_images(each)
    foreign = images.write_oci(containerd.base / "foreign.tar", Image((f"{REGISTRY}/os/big:1",), _big_base()))
    containerd.ctr("images", "import", "--no-unpack", str(foreign.path), namespace="other")
    pods = containerd.pods()
    sandbox = pods.run_sandbox("once", namespace="shop")
    container = pods.run_container(sandbox, "once", USED, ["sh", "-c", "head -c 3000000 /dev/zero > /tmp/made"])
    assert pods.wait_exited(container).exit_code == 0
    pods.stop_sandbox(sandbox)
    pods.made.clear()
    _lose(containerd, archive[DAMAGED].layer_digests[-1])
    _lose(containerd, archive[UNLISTED].config_digest)
    containerd.checkpoint()
    built: dict[str, tuple[Built, ...]] = {}
    for one in (*archive.images, *artifacts.images):
        built[one.config_digest] = (*built.get(one.config_digest, ()), one)
    listed = {image.id for image in pods.list_images()}
    return StackedNode(
        containerd,
        pods,
        {image_id: ones for image_id, ones in built.items() if image_id in listed},
        {one.digest: layers for one, layers in zip(archive.images, map(_layers, made), strict=True)},
        container,
    )


def described() -> tuple[Image | Index, ...]:
    """Return the descriptions of the images, each after its base image."""
    big, small, odd = _big_base(), _small_base(), _bottom_up_base()
    python = (*big, _few("python", 3, MIB), _many("python-modules", 300, 9000))
    java = (*small, _few("java", 2, 2 * MIB))
    go = (*odd, Layer(()), _few("go", 1, 2 * MIB))
    debug = _few("debug", 2, 700 * KIB)
    trace = _many("trace", 400, 3000)
    apps = [(*python, _few(f"app{number}", number, 500 * KIB)) for number in range(1, 6)]
    services = [(*java, _many(f"service{number}", 100 * number, 6000)) for number in range(1, 6)]
    tools = [(*go, _few(f"tool{number}", 1, MIB)) for number in range(1, 5)]
    return (
        _image("os/big", *big, names=("1", "latest", "stable")),
        _image("os/small", *small, names=("1", "latest")),
        _image("os/bottom-up", *odd),
        _image("runtimes/python", *python, names=("3", "3.11")),
        _image("runtimes/java", *java),
        _image("runtimes/go", *go),
        *(_image(f"shop/app{number}", *layers) for number, layers in enumerate(apps, 1)),
        *(_image(f"shop/service{number}", *layers, names=("v1", "v1.0")) for number, layers in enumerate(services, 1)),
        *(_image(f"tools/tool{number}", *layers) for number, layers in enumerate(tools, 1)),
        _image("shop/app1-debug", *apps[0], debug),
        _image("shop/app1-trace", *apps[0], debug, trace),
        _image("shop/service1-debug", *services[0], debug),
        _image("odd/bare", images.busybox_layer()),
        _image("odd/empty-layers", *big, Layer(()), Layer(())),
        _image("odd/empty-layer-below", *big, Layer(()), _few("after-nothing", 1, 600 * KIB)),
        _image("odd/empty-files", *small, Layer(tuple(File(f"lib/empty/{n}") for n in range(700)))),
        _image("odd/zeros", *small, Layer((File("lib/zeros", 5 * MIB, fill="zeros"),), gzip_level=6)),
        _image("odd/whiteouts", *small, Layer((File("lib/small-0/.wh.0"), File("lib/.wh.small-1"), File("lib/new")))),
        _image("odd/hard-links", *big, _linked("linked", 40, 50 * KIB)),
        _image("odd/plain-tar", *big, _few("plain", 2, 600 * KIB, gzip_level=None)),
        # Two manifests with different compression and one configuration: CRI lists one image.
        _image("odd/once", *big, _few("twice", 2, 600 * KIB, gzip_level=0)),
        _image("odd/twice", *big, _few("twice", 2, 600 * KIB, gzip_level=1)),
        _image("odd/long-names", *odd, Layer(tuple(File(f"lib/long/{n:0200}", 10) for n in range(300)))),
        Index((f"{REGISTRY}/odd/index:v1",), (Image((), (*java, _few("indexed", 1, MIB))),), absent=("s390x",)),
        _image("odd/damaged", *python, _few("damaged", 1, 2 * MIB)),
        _image("odd/without-config", *java, _few("without-config", 1, 2 * MIB)),
    )


def chain_ids(diff_ids: Sequence[str]) -> list[str]:
    """Return the snapshot key of each layer, bottom first. Source: OCI image specification, "Layer ChainID"."""
    chain: list[str] = []
    for diff_id in diff_ids:
        digest = hashlib.sha256(f"{chain[-1]} {diff_id}".encode()).hexdigest() if chain else ""
        chain.append(f"sha256:{digest}" if digest else diff_id)
    return chain


def files(layers: Sequence[Layer]) -> dict[str, bytes]:
    """Return the regular files that a container of these layers contains, by path."""
    visible: dict[str, bytes] = {}
    for layer in layers:
        for file in layer.files:
            directory, _, name = file.path.rpartition("/")
            if name.startswith(_WHITEOUT):
                hidden = f"{directory}/{name.removeprefix(_WHITEOUT)}"
                for path in [path for path in visible if path == hidden or path.startswith(f"{hidden}/")]:
                    del visible[path]
            elif file.link_to is None:
                visible[file.path] = visible[file.same_as] if file.same_as is not None else file.data()
    return visible


def _big_base() -> tuple[Layer, ...]:
    return (images.busybox_layer(), _few("big", 3, 2 * MIB))


def _small_base() -> tuple[Layer, ...]:
    files = (File(f"lib/small-{n % 30}/{n}", n * 37 % 5000, seed=n) for n in range(1500))
    return (images.busybox_layer(), Layer(tuple(files)))


def _bottom_up_base() -> tuple[Layer, ...]:
    """Return a base with the common first layer as second layer: an equal blob in another snapshot."""
    return (_few("bottom", 1, 3 * MIB), images.busybox_layer())


def _image(name: str, *layers: Layer, names: tuple[str, ...] = ("v1",)) -> Image:
    return Image(tuple(f"{REGISTRY}/{name}:{each}" for each in names), layers)


def _few(name: str, count: int, size_bytes: int, *, gzip_level: int | None = 0) -> Layer:
    return Layer(tuple(File(f"lib/{name}-{n}", size_bytes + n) for n in range(count)), gzip_level)


def _many(name: str, count: int, up_to_bytes: int) -> Layer:
    return Layer(tuple(File(f"lib/{name}/{n % 7}/{n}", n * 101 % up_to_bytes) for n in range(count)))


def _linked(name: str, count: int, size_bytes: int) -> Layer:
    """Return a layer with one file and many hard links to it, which use the disk space of one file."""
    names = [f"lib/{name}/{n}" for n in range(count)]
    return Layer((File(names[0], size_bytes), *(File(each, same_as=names[0]) for each in names[1:])))


def _layers(one: Image | Index) -> tuple[Layer, ...]:
    return one.images[0].layers if isinstance(one, Index) else one.layers


def _artifacts() -> tuple[images.Artifact, ...]:
    """Return two artifacts, one with a layer of an image; CRI lists at most one, since their configs are equal."""
    shared = gzip.compress(images.layer_tar(_few("java", 2, 2 * MIB)), 0, mtime=0)
    return (
        images.Artifact((ARTIFACTS[0],), (File("layer", content=shared), File("statement", MIB))),
        images.Artifact((ARTIFACTS[1],), (File("chart", 2 * MIB),)),
    )


def _lose(containerd: Containerd, digest: str) -> None:
    """Delete a blob, and free its bytes by a synchronous deletion, which runs the garbage collection."""
    containerd.ctr("content", "rm", digest)
    containerd.ctr("images", "tag", DAMAGED, _THROWN_AWAY)
    containerd.ctr("images", "rm", "--sync", _THROWN_AWAY)
