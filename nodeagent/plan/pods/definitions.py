"""Definitions of pods: by the API server, by the kubelet and by static manifests."""

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
    """Index of pod definitions in a list of this node's pods and in the static manifests.

    Attributes:
        source: of the list that is complete, if any.
        has_list: whether a pod that is missing in it contradicts the runtime.
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
        """Index both lists.

        Args:
            listed: the listed pods; ``None`` without a list.
            manifests: the static pods.
            node_name: suffix of the names of static pods.
            complete: whether the list has all pods of its source; false for an outdated list.
            source: of the list; single pods of another source complement it.
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
        """Return the listed entry of a pod by UID, or by the config hash of a static pod; ``None`` if absent."""
        known = self._by_uid.get(pod.uid)
        if known:
            return known[0]
        return self._by_hash.get(pod.uid) or self._by_hash.get(pod.sandbox.annotations.get(ANNOTATION_HASH, ""))

    def in_manifests(self, pod: RuntimePod) -> PodSpec | None:
        """Return the manifest of a static pod by namespace and name; ``None`` if absent.

        The kubelet appends the node's name to the pod's name. A pod from the API server is not a static pod.
        """
        if pod.sandbox.annotations.get(ANNOTATION_SOURCE) == "api":
            return None
        return self._manifests.get((pod.sandbox.namespace, pod.sandbox.name))

    def count(self, uid: str) -> int:
        """Return the number of listed entries with a UID."""
        return len(self._by_uid.get(uid, ()))


class PodDefinition(Record):
    """Well-formed definitions of one pod.

    Attributes:
        listed: in the list of the API server or of the kubelet; ``None`` if absent.
        manifest: in the static manifests; ``None`` if absent.
    """

    listed: PodSpec | None
    manifest: PodSpec | None

    @property
    def verified(self) -> PodSpec | None:
        """The listed definition if the server of the list was verified; else ``None``."""
        return self.listed if self.listed is not None and self.listed.is_verified else None

    @property
    def list_source(self) -> FactSource:
        """Source of the facts in the listed definition."""
        return FactSource.KUBELET if self.listed is None else _SOURCES[self.listed.listed_by]

    @property
    def authoritative(self) -> PodSpec | None:
        """The verified definition of the list, else the manifest."""
        return self.verified or self.manifest

    def __iter__(self) -> Iterator[PodSpec]:
        """Iterate over the existing definitions in order of precedence."""
        return (each for each in (self.listed, self.manifest) if each is not None)

    def field(self, get: Callable[[PodSpec], T | None], *, verified: bool = False) -> Fact[T | None]:
        """Return a field of the listed definition, else of the manifest; ``verified`` excludes unverified lists."""
        listed = self.verified if verified else self.listed
        for spec, source in ((listed, self.list_source), (self.manifest, FactSource.MANIFEST)):
            value = None if spec is None else get(spec)
            if value is not None:
                return Fact(value, source)
        return UNKNOWN
