"""Static pods from the manifest directory of the kubelet."""

from __future__ import annotations

import os
import stat
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Final

from nodeagent.errors import ObservationError
from nodeagent.parsing import parse_yaml
from nodeagent.record import Record

if TYPE_CHECKING:
    from nodeagent.model.pods import PodSpec

MANIFESTS: Final = Path("/etc/kubernetes/manifests")
_MAX_BYTES: Final = 256 << 10
_MAX_FILES: Final = 500


class Manifests(Record):
    """Static pods of the manifest directory.

    Attributes:
        pods: pods of the usable files, in the order of the file names.
        warnings: one warning for each unusable file and each malformed pod.
        previous: pods of the last usable version of each file that is now unusable, such as during a write.
        error: cause of a failure to read the existing directory; empty without a failure.
    """

    pods: tuple[PodSpec, ...] = ()
    warnings: tuple[str, ...] = ()
    previous: tuple[PodSpec, ...] = ()
    error: str = ""


class ManifestReader:
    """Reader of one manifest directory, which caches unchanged files."""

    def __init__(self, directory: Path = MANIFESTS) -> None:
        self._directory = directory
        self._cached: dict[str, tuple[tuple[int, int, int, int], tuple[PodSpec, ...] | str]] = {}
        self._usable: dict[str, tuple[PodSpec, ...]] = {}

    def read(self) -> Manifests:
        """Return the static pods; none if the directory does not exist. Blocks.

        Directories and names that start with a dot are skipped. Malformed files and links that resolve outside the
        directory are skipped with a warning. A malformed pod yields a warning, and is returned with its error if its
        name is readable.

        Source: kubelet ``extractFromDir``.
        """
        try:
            root = self._directory.resolve(strict=True)
            names = sorted(name for name in os.listdir(root) if not name.startswith("."))  # noqa: PTH208 - names only
        except FileNotFoundError:
            self._cached.clear()
            self._usable.clear()
            return Manifests()
        except (OSError, RuntimeError) as error:  # RuntimeError: symbolic link loop
            text = f"static manifests: cannot read {self._directory}: {getattr(error, 'strerror', '') or error}"
            return Manifests(warnings=(text,), previous=tuple(chain.from_iterable(self._usable.values())), error=text)
        pods: list[PodSpec] = []
        previous: list[PodSpec] = []
        warnings = []
        if len(names) > _MAX_FILES:
            warnings.append(f"static manifests: {root} has {len(names)} files, only the first {_MAX_FILES} are read")
            names = names[:_MAX_FILES]
        for removed in (self._cached.keys() | self._usable.keys()) - set(names):
            self._cached.pop(removed, None)
            self._usable.pop(removed, None)
        for name in names:
            found = self._file(root, name)
            if isinstance(found, str):
                warnings.append(f"static manifests: {found}")
                previous += self._usable.get(name, ())
            else:
                self._usable[name] = found
                pods += [each for each in found if each.name]
                warnings += [f"static manifests: malformed pod: {each.malformed}" for each in found if each.malformed]
        return Manifests(tuple(pods), tuple(warnings), tuple(previous))

    def _file(self, root: Path, name: str) -> tuple[PodSpec, ...] | str:
        """Return the pods of a file, or a warning if the file is unusable."""
        path = root / name
        try:
            target = path.resolve(strict=True)
            if not target.is_relative_to(root):
                return f"{path} skipped: link resolves outside the directory"
            descriptor = os.open(target, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError:
            return ()
        except (OSError, RuntimeError) as error:
            return f"cannot read {path}: {error}"
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                return ()
            version = (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
            cached = self._cached.get(name)
            if cached is None or cached[0] != version:
                cached = self._cached[name] = version, self._parsed(descriptor, status.st_size, path)
            return cached[1]
        except OSError as error:
            return f"cannot read {path}: {error}"
        finally:
            os.close(descriptor)

    def _parsed(self, descriptor: int, size_bytes: int, path: Path) -> tuple[PodSpec, ...] | str:
        if size_bytes > _MAX_BYTES:
            return f"{path} skipped: {size_bytes} bytes, more than {_MAX_BYTES}"
        from nodeagent.kube.podspec import parse_listed_pod, shown  # noqa: PLC0415 - loaded only for static pods

        with os.fdopen(os.dup(descriptor), "rb") as file:
            text = file.read(_MAX_BYTES)
        try:
            document = _document(text)
            if document is None:
                return ()
            kind = document.get("kind") if isinstance(document, dict) else None
            if kind == "Pod":
                return (parse_listed_pod(document, str(path)),)
            if kind in ("PodList", "List"):
                from nodeagent.kube.kubelet_pods import parse_pod_list  # noqa: PLC0415 - loaded only for a pod list

                return parse_pod_list(document, str(path))
        except (ObservationError, ValueError) as error:
            return f"{path} skipped: {str(error).removeprefix(f'{path}: ')}"
        return f"{path} skipped: kind {shown(kind)}, not Pod"


def _document(text: bytes) -> object:
    """Return the first document of a text in JSON or YAML.

    Raises:
        ValueError: the text is neither JSON nor YAML.
    """
    try:
        return next(parse_yaml(text), None)
    except ValueError as error:
        raise ValueError(f"neither JSON nor YAML: {error}") from error
