"""Generated image archives: layers of given sizes on a static busybox, without registry or network.

An archive can contain many images and has each shared layer once, so that one import adds hundreds of images quickly.
Archives are reproducible: equal descriptions result in equal digests in every run.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import platform
import random
import tarfile
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

BUSYBOX = Path("/bin/busybox")
# fmt: off
APPLETS = (
    "awk", "cat", "chmod", "cp", "date", "dd", "df", "du", "echo", "env", "false", "find", "grep", "head", "id", "kill",
    "ln", "ls", "mkdir", "mount", "mv", "printf", "ps", "rm", "rmdir", "sed", "seq", "sh", "sleep", "sort", "stat",
    "sync", "tail", "tar", "test", "touch", "tr", "true", "uname", "usleep", "vi", "wc", "yes",
)
# fmt: on
FOREVER = ("/bin/sh", "-c", "trap 'exit 0' TERM; while :; do sleep 1000 & wait $!; done")

PAUSE = "registry.test/pause:3.9"

_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_INDEX = "application/vnd.oci.image.index.v1+json"
_CONFIG = "application/vnd.oci.image.config.v1+json"
_LAYER = "application/vnd.oci.image.layer.v1.tar"
_NAME_ANNOTATION = "io.containerd.image.name"
_CREATED = "2024-01-01T00:00:00Z"


@dataclass(frozen=True, slots=True)
class File:
    """Entry of a layer with the given ``content``, otherwise with ``size_bytes`` of incompressible data or zeros.

    Incompressible data is derived from path, size and ``seed``. With ``link_to`` the entry is a symbolic link, with
    ``same_as`` a hard link to an earlier entry.
    """

    path: str
    size_bytes: int = 0
    seed: int = 0
    fill: Literal["random", "zeros"] = "random"
    content: bytes | None = None
    link_to: str | None = None
    same_as: str | None = None
    mode: int = 0o644

    def data(self) -> bytes:
        if self.content is not None:
            return self.content
        if self.fill == "zeros":
            return bytes(self.size_bytes)
        generator = random.Random(f"{self.path}:{self.size_bytes}:{self.seed}")
        return generator.randbytes(self.size_bytes)


@dataclass(frozen=True, slots=True)
class Layer:
    """Layer of files; ``gzip_level`` 0 is gzip without compression, ``None`` a plain tar."""

    files: tuple[File, ...]
    gzip_level: int | None = 0


@dataclass(frozen=True, slots=True)
class Image:
    """Image of ``layers``, bottom first, with every name in ``tags`` (full references).

    ``volumes`` are the paths declared as volumes in the image configuration.
    """

    tags: tuple[str, ...]
    layers: tuple[Layer, ...]
    command: tuple[str, ...] = FOREVER
    architecture: str = ""
    labels: tuple[tuple[str, str], ...] = ()
    volumes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Index:
    """Multi-platform image: an index of several images; the tags of these images are ignored.

    ``absent`` lists architectures with a descriptor in the index but without content in the archive, as after a pull
    for one platform.
    """

    tags: tuple[str, ...]
    images: tuple[Image, ...]
    absent: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Artifact:
    """OCI artifact: a manifest without an image config. Its archive must be imported without unpacking."""

    tags: tuple[str, ...]
    files: tuple[File, ...]
    artifact_type: str = "application/vnd.example.thing.v1+json"


@dataclass(frozen=True, slots=True)
class Built:
    """Digests of one written image, as reported by the runtime.

    ``config_digest`` is CRI's image id; for an index, it is the image id for this machine's platform.
    """

    tags: tuple[str, ...]
    digest: str
    config_digest: str
    layer_digests: tuple[str, ...]
    diff_ids: tuple[str, ...]
    content_bytes: int


@dataclass(frozen=True, slots=True)
class Archive:
    """Written archive and its images, in the order of their descriptions."""

    path: Path
    images: tuple[Built, ...]
    has_artifacts: bool = False

    @property
    def tags(self) -> tuple[str, ...]:
        return tuple(tag for image in self.images for tag in image.tags)

    def __getitem__(self, tag: str) -> Built:
        return next(image for image in self.images if tag in image.tags)


def blob(name: str, size_bytes: int, *, seed: int = 0, gzip_level: int | None = 0) -> Layer:
    """Return a layer with one incompressible file, ``/data/<name>``."""
    return Layer((File(f"data/{name}", size_bytes, seed),), gzip_level)


@cache
def busybox_layer() -> Layer:
    """Return the base layer of about 2 MB: a static busybox with its applets as symlinks, /tmp and /etc/passwd."""
    return Layer(
        (
            File("bin/busybox", content=BUSYBOX.read_bytes(), mode=0o755),
            *(File(f"bin/{applet}", link_to="busybox") for applet in APPLETS),
            File("etc/passwd", content=b"root:x:0:0:root:/:/bin/sh\n"),
            File("tmp/.keep"),
        ),
        gzip_level=1,
    )


def image(
    *tags: str, layers: Sequence[Layer] = (), command: Sequence[str] = FOREVER, volumes: Sequence[str] = ()
) -> Image:
    """Return a runnable image with a busybox layer below the given layers."""
    return Image(tags, (busybox_layer(), *layers), tuple(command), volumes=tuple(volumes))


def pause_image(*tags: str) -> Image:
    """Return a sandbox image that shares no layer with other images; its process never exits by itself."""
    layer = Layer((File("busybox-pause", content=BUSYBOX.read_bytes(), mode=0o755),), gzip_level=1)
    return Image(tags or (PAUSE,), (layer,), ("/busybox-pause", "sleep", "2147483647"))


def repository(tag: str) -> str:
    """Return a reference without its tag; the port of a registry is not mistaken for a tag."""
    name, colon, last = tag.rpartition(":")
    return name if colon and "/" not in last else tag


def host_architecture() -> str:
    """Return the architecture of this machine as named by the OCI image specification."""
    machine = platform.machine()
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(machine, machine)


@dataclass(frozen=True, slots=True)
class _Blob:
    digest: str
    size_bytes: int
    media_type: str = ""

    def descriptor(self, **more: object) -> dict[str, object]:
        return {"mediaType": self.media_type, "digest": self.digest, "size": self.size_bytes, **more}


@dataclass(slots=True)
class _Writer:
    """Writer that adds each blob once to the archive, with one layer in memory at a time."""

    tar: tarfile.TarFile
    root: str = "blobs/sha256/"
    known: dict[str, int] = field(default_factory=dict)
    layers: dict[Layer, tuple[_Blob, str]] = field(default_factory=dict)

    def blob(self, data: bytes, media_type: str) -> _Blob:
        digest = hashlib.sha256(data).hexdigest()
        if digest not in self.known:
            self.known[digest] = len(data)
            self.file(self.root + digest, data)
        return _Blob(f"sha256:{digest}", len(data), media_type)

    def json(self, document: Mapping[str, object], media_type: str) -> _Blob:
        return self.blob(_encode(document), media_type)

    def file(self, name: str, data: bytes) -> None:
        info = tarfile.TarInfo(name)
        info.size = len(data)
        self.tar.addfile(info, io.BytesIO(data))

    def layer(self, layer: Layer) -> tuple[_Blob, str]:
        if layer not in self.layers:
            plain = layer_tar(layer)
            diff_id = "sha256:" + hashlib.sha256(plain).hexdigest()
            if layer.gzip_level is None:
                written = self.blob(plain, _LAYER)
            else:
                written = self.blob(gzip.compress(plain, layer.gzip_level, mtime=0), _LAYER + "+gzip")
            self.layers[layer] = (written, diff_id)
        return self.layers[layer]

    def image(self, described: Image) -> tuple[_Blob, Built]:
        layers = [self.layer(layer) for layer in described.layers]
        config = self.json(_config(described, [diff_id for _, diff_id in layers]), _CONFIG)
        manifest = self.json(
            {
                "schemaVersion": 2,
                "mediaType": _MANIFEST,
                "config": config.descriptor(),
                "layers": [written.descriptor() for written, _ in layers],
            },
            _MANIFEST,
        )
        content = manifest.size_bytes + config.size_bytes + sum(written.size_bytes for written, _ in layers)
        return manifest, Built(
            described.tags,
            manifest.digest,
            config.digest,
            tuple(written.digest for written, _ in layers),
            tuple(diff_id for _, diff_id in layers),
            content,
        )

    def index(self, described: Index) -> tuple[_Blob, Built]:
        manifests = []
        own: Built | None = None
        for member in described.images:
            architecture = member.architecture or host_architecture()
            manifest, built = self.image(member)
            manifests.append(manifest.descriptor(platform={"os": "linux", "architecture": architecture}))
            if own is None or architecture == host_architecture():
                own = built
        for architecture in described.absent:
            ghost = _Blob("sha256:" + hashlib.sha256(architecture.encode()).hexdigest(), 500, _MANIFEST)
            manifests.append(ghost.descriptor(platform={"os": "linux", "architecture": architecture}))
        if own is None:
            raise ValueError("an index needs at least one image")
        index = self.json({"schemaVersion": 2, "mediaType": _INDEX, "manifests": manifests}, _INDEX)
        return index, Built(
            described.tags,
            index.digest,
            own.config_digest,
            own.layer_digests,
            own.diff_ids,
            own.content_bytes + index.size_bytes,
        )

    def artifact(self, described: Artifact) -> tuple[_Blob, Built]:
        config = self.blob(b"{}", described.artifact_type)
        blobs = [self.blob(file.data(), "application/octet-stream") for file in described.files]
        manifest = self.json(
            {
                "schemaVersion": 2,
                "mediaType": _MANIFEST,
                "artifactType": described.artifact_type,
                "config": config.descriptor(),
                "layers": [written.descriptor() for written in blobs],
            },
            _MANIFEST,
        )
        content = manifest.size_bytes + config.size_bytes + sum(written.size_bytes for written in blobs)
        digests = tuple(written.digest for written in blobs)
        return manifest, Built(described.tags, manifest.digest, config.digest, digests, (), content)


def write_oci(path: Path, *described: Image | Index | Artifact, digest_names: bool = True) -> Archive:
    """Write an OCI image layout archive of the described images, with names in containerd's annotation.

    With ``digest_names`` each image also has a name by digest per repository, as after a pull.
    """
    entries: list[dict[str, object]] = []
    results = []
    with tarfile.open(path, "w") as tar:
        writer = _Writer(tar)
        writer.file("oci-layout", b'{"imageLayoutVersion":"1.0.0"}')
        for one in described:
            match one:
                case Image():
                    top, built = writer.image(one)
                case Index():
                    top, built = writer.index(one)
                case Artifact():
                    top, built = writer.artifact(one)
            names = list(one.tags)
            if digest_names:
                names += sorted({f"{repository(tag)}@{top.digest}" for tag in one.tags})
            entries += [top.descriptor(annotations={_NAME_ANNOTATION: name}) for name in names]
            results.append(built)
        writer.file("index.json", _encode({"schemaVersion": 2, "mediaType": _INDEX, "manifests": entries}))
    return Archive(path, tuple(results), any(isinstance(one, Artifact) for one in described))


def write_docker(path: Path, *described: Image) -> Archive:
    """Write a docker-archive (``docker save``) of the described images.

    ``digest`` of the images is empty, since the runtime generates the manifests at the import.
    """
    rows = []
    results = []
    with tarfile.open(path, "w") as tar:
        writer = _Writer(tar, root="")
        for one in described:
            layers = [writer.layer(layer) for layer in one.layers]
            config = writer.json(_config(one, [diff_id for _, diff_id in layers]), _CONFIG)
            names = [written.digest.removeprefix("sha256:") for written, _ in layers]
            rows.append({"Config": config.digest.removeprefix("sha256:"), "RepoTags": one.tags, "Layers": names})
            content = config.size_bytes + sum(written.size_bytes for written, _ in layers)
            digests = tuple(written.digest for written, _ in layers)
            diff_ids = tuple(diff_id for _, diff_id in layers)
            results.append(Built(one.tags, "", config.digest, digests, diff_ids, content))
        writer.file("manifest.json", json.dumps(rows).encode())
    return Archive(path, tuple(results))


def layer_tar(layer: Layer) -> bytes:
    """Return the layer as an uncompressed tar, with parents before children and without timestamps."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        made: set[str] = set()
        for file in layer.files:
            for parent in reversed(Path(file.path).parents):
                if str(parent) != "." and str(parent) not in made:
                    made.add(str(parent))
                    _add_directory(tar, str(parent))
            _add_file(tar, file)
    return buffer.getvalue()


def _add_directory(tar: tarfile.TarFile, name: str) -> None:
    info = tarfile.TarInfo(name)
    info.type, info.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
    tar.addfile(info)


def _add_file(tar: tarfile.TarFile, file: File) -> None:
    info = tarfile.TarInfo(file.path)
    info.mode = file.mode
    content: BinaryIO | None = None
    if file.link_to is not None:
        info.type, info.linkname = tarfile.SYMTYPE, file.link_to
    elif file.same_as is not None:
        info.type, info.linkname = tarfile.LNKTYPE, file.same_as
    else:
        data = file.data()
        info.size, content = len(data), io.BytesIO(data)
    tar.addfile(info, content)


def _config(described: Image, diff_ids: Sequence[str]) -> dict[str, object]:
    return {
        "architecture": described.architecture or host_architecture(),
        "os": "linux",
        "created": _CREATED,
        "config": {
            "Cmd": list(described.command),
            "Env": ["PATH=/bin"],
            "Labels": dict(described.labels),
            **({"Volumes": {each: {} for each in described.volumes}} if described.volumes else {}),
        },
        "rootfs": {"type": "layers", "diff_ids": list(diff_ids)},
        "history": [{"created": _CREATED, "created_by": "test"} for _ in diff_ids],
    }


def _encode(document: Mapping[str, object]) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
