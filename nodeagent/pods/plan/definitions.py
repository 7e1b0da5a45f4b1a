"""Pod definitions from the API server, the kubelet and static manifests.

Static, mirror and priority annotations of pod sandboxes, called marks.

The author of a pod controls its annotations, unless a kubelet wrote them. A mark that protects a pod from eviction is
used only if its author is trusted; a malformed mark is ignored. The shutdown planner uses all well-formed marks, since
they only affect the stop order and exempt no pod.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

from nodeagent.model.pods import PodListSource, PodSpec, RuntimePod
from nodeagent.model.pressure import UNKNOWN, Fact, FactSource
from nodeagent.model.runtime import ANNOTATION_SOURCE
from nodeagent.record import Record

ANNOTATION_MIRROR: Final = "kubernetes.io/config.mirror"
ANNOTATION_HASH: Final = "kubernetes.io/config.hash"
ANNOTATION_PRIORITY: Final = "nodeagent.dev/priority"
_PRIORITIES: Final = range(-(2**31), 2**31)
_SHOWN: Final = 40


class Marks(NamedTuple):
    """Marks read from annotations; ``None`` for an absent or malformed mark.

    Attributes:
        malformed: a sentence for each malformed mark.
    """

    static: bool | None = None
    mirror: bool = False
    priority: int | None = None
    malformed: tuple[str, ...] = ()


def read_marks(annotations: Mapping[str, str]) -> Marks:
    """Return the marks in the annotations of a sandbox.

    Source: kubelet ``config.source`` (``api``, ``file`` or ``http``) and ``config.mirror``.
    """
    malformed = []
    source, text = annotations.get(ANNOTATION_SOURCE), annotations.get(ANNOTATION_PRIORITY)
    static = static_by_source(source)
    if source is not None and static is None:
        malformed.append(f"annotation {ANNOTATION_SOURCE} is {source[:_SHOWN]!r}, not api, file or http")
    priority = None if text is None else _priority(text)
    if text is not None and priority is None:
        malformed.append(f"annotation {ANNOTATION_PRIORITY} is {text[:_SHOWN]!r}, not a 32-bit number")
    return Marks(static, ANNOTATION_MIRROR in annotations, priority, tuple(malformed))


def static_by_source(source: str | None) -> bool | None:
    """Return whether a pod with this config source is static; ``None`` for an unknown source."""
    return {"file": True, "http": True, "api": False}.get(source or "")


def _priority(text: str) -> int | None:
    try:
        priority = int(text) if len(text) <= 11 and text.isascii() else None
    except ValueError:
        return None
    # The test for ``None`` is first: ``in`` on a range compares a value that is not an integer with every element.
    return priority if priority is not None and priority in _PRIORITIES else None


T = TypeVar("T")
_SOURCES: Final = {PodListSource.API_SERVER: FactSource.API_SERVER, PodListSource.KUBELET: FactSource.KUBELET}


class SpecIndex:
    """Index of pod definitions from a list of this node's pods and from static manifests.

    Attributes:
        source: source of the pod list.
        has_list: whether the pod list is complete, so that a pod missing in the list contradicts the runtime.
    """

    def __init__(
        self,
        listed: Sequence[PodSpec] | None = None,
        manifests: Sequence[PodSpec] = (),
        *,
        node_name: str = "",
        complete: bool = True,
        source: PodListSource = PodListSource.KUBELET,
    ) -> None:
        """Index the listed pods and the static manifests.

        Args:
            listed: pods of the list; ``None`` without a list.
            manifests: definitions in the static manifests.
            node_name: node name, which the kubelet appends to the names of static pods.
            complete: whether the list contains all pods of its source; false for an outdated list.
            source: source of the list; individual pods may have another source (``PodSpec.listed_by``).
        """
        self.source = source
        unnamed = any(spec.malformed and not spec.uid for spec in listed or ())
        self.has_list = listed is not None and complete and not unnamed
        self._by_uid: defaultdict[str, list[PodSpec]] = defaultdict(list)
        self._by_hash: dict[str, PodSpec] = {}
        for spec in listed or ():
            if spec.malformed and not spec.uid:
                continue
            self._by_uid[spec.uid].append(spec)
            for key in (ANNOTATION_MIRROR, ANNOTATION_HASH):
                if spec.annotations.get(key):
                    self._by_hash.setdefault(spec.annotations[key], spec)
        self._manifests: dict[tuple[str, str], PodSpec] = {}
        for spec in manifests:
            for name in {spec.name, f"{spec.name}-{node_name.lower()}"}:
                self._manifests.setdefault((spec.namespace, name), spec)

    def in_list(self, pod: RuntimePod) -> PodSpec | None:
        """Return the listed definition of a pod, by UID or by the config hash of a static pod; ``None`` if absent."""
        known = self._by_uid.get(pod.uid)
        if known:
            return known[0]
        return self._by_hash.get(pod.uid) or self._by_hash.get(pod.sandbox.annotations.get(ANNOTATION_HASH, ""))

    def in_manifests(self, pod: RuntimePod) -> PodSpec | None:
        """Return the manifest of a static pod by namespace and name; ``None`` if absent.

        The kubelet appends the node name to the name of a static pod. A pod from the API server is not a static pod.
        """
        if pod.sandbox.annotations.get(ANNOTATION_SOURCE) == "api":
            return None
        return self._manifests.get((pod.sandbox.namespace, pod.sandbox.name))

    def count(self, uid: str) -> int:
        """Return the number of pods in the list with this UID."""
        return len(self._by_uid.get(uid, ()))


class PodDefinition(Record):
    """Well-formed definitions of one pod.

    Attributes:
        listed: definition in the list of the API server or the kubelet; ``None`` if absent.
        manifest: definition in the static manifests; ``None`` if absent.
    """

    listed: PodSpec | None
    manifest: PodSpec | None

    @property
    def verified(self) -> PodSpec | None:
        """The listed definition if the identity of the list's server was verified; otherwise ``None``."""
        return self.listed if self.listed is not None and self.listed.is_verified else None

    @property
    def list_source(self) -> FactSource:
        """Source of the facts in the listed definition."""
        return FactSource.KUBELET if self.listed is None else _SOURCES[self.listed.listed_by]

    def __iter__(self) -> Iterator[PodSpec]:
        """Iterate over the existing definitions in order of precedence."""
        return (each for each in (self.listed, self.manifest) if each is not None)

    def field(self, get: Callable[[PodSpec], T | None], *, verified: bool = False) -> Fact[T | None]:
        """Return a field of the listed definition, otherwise of the manifest.

        With ``verified``, a definition in an unverified list is ignored. The fact is unknown without a value.
        """
        listed = self.verified if verified else self.listed
        for spec, source in ((listed, self.list_source), (self.manifest, FactSource.MANIFEST)):
            value = None if spec is None else get(spec)
            if value is not None:
                return Fact(value, source)
        return UNKNOWN
