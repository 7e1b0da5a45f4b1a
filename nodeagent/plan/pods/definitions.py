"""Pod definitions from the API server, the kubelet and static manifests."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final, TypeVar

from nodeagent.model.pod_list import PodListSource
from nodeagent.model.pressure import UNKNOWN, Fact, FactSource
from nodeagent.model.workload import ANNOTATION_SOURCE
from nodeagent.plan.pods.annotations import ANNOTATION_HASH, ANNOTATION_MIRROR
from nodeagent.record import Record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from nodeagent.model.pods import PodSpec, RuntimePod

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

    @property
    def authoritative(self) -> PodSpec | None:
        """The verified listed definition, otherwise the manifest; ``None`` without both."""
        return self.verified or self.manifest

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
