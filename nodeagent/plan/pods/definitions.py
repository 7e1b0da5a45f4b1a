"""Definitions of pods, by the kubelet and by static manifests."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, TypeVar

from nodeagent.model.pressure import UNKNOWN, Fact, FactSource
from nodeagent.model.workload import ANNOTATION_SOURCE
from nodeagent.plan.pods.annotations import ANNOTATION_HASH, ANNOTATION_MIRROR
from nodeagent.record import Record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from nodeagent.model.pods import PodSpec, RuntimePod

T = TypeVar("T")


class SpecIndex:
    """Index of pod definitions in the kubelet's list and in the static manifests."""

    def __init__(
        self,
        kubelet: Sequence[PodSpec] | None = None,
        manifests: Sequence[PodSpec] = (),
        *,
        node_name: str = "",
        complete: bool = True,
    ) -> None:
        """Index both lists.

        Args:
            kubelet: the kubelet's pods; ``None`` without a list.
            manifests: the static pods.
            node_name: suffix of the names of static pods.
            complete: whether the kubelet's list has all of its pods; false for an outdated list.
        """
        unnamed = any(spec.malformed and not spec.uid for spec in kubelet or ())
        self.has_list = kubelet is not None and complete and not unnamed
        self._by_uid: defaultdict[str, list[PodSpec]] = defaultdict(list)
        self._by_hash: dict[str, PodSpec] = {}
        for spec in kubelet or ():
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

    def in_kubelet(self, pod: RuntimePod) -> PodSpec | None:
        """Return the kubelet's entry of a pod by UID, or by the config hash of a static pod; ``None`` if absent."""
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
        """Return the number of entries with a UID in the kubelet's list."""
        return len(self._by_uid.get(uid, ()))


class PodDefinition(Record):
    """Well-formed definitions of one pod.

    Attributes:
        kubelet: in the kubelet's list; ``None`` if absent.
        manifest: in the static manifests; ``None`` if absent.
    """

    kubelet: PodSpec | None
    manifest: PodSpec | None

    @property
    def verified(self) -> PodSpec | None:
        """The kubelet's definition if its list is verified to be the kubelet's; else ``None``."""
        return self.kubelet if self.kubelet is not None and self.kubelet.is_verified else None

    @property
    def authoritative(self) -> PodSpec | None:
        """The verified definition of the kubelet, else the manifest."""
        return self.verified or self.manifest

    def __iter__(self) -> Iterator[PodSpec]:
        """Iterate over the existing definitions in order of precedence."""
        return (each for each in (self.kubelet, self.manifest) if each is not None)

    def field(self, get: Callable[[PodSpec], T | None], *, verified: bool = False) -> Fact[T | None]:
        """Return a field of the kubelet's definition, else of the manifest; ``verified`` excludes unverified lists."""
        listed = self.verified if verified else self.kubelet
        for spec, source in ((listed, FactSource.KUBELET), (self.manifest, FactSource.MANIFEST)):
            value = None if spec is None else get(spec)
            if value is not None:
                return Fact(value, source)
        return UNKNOWN
