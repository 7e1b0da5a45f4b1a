"""Pods of a node: descriptions for ``vm_pods`` in the node, and started pods."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

_OOM_SCORES = {"guaranteed": -997, "burstable": 500, "besteffort": 1000}


@dataclass(frozen=True, slots=True)
class Pod:
    """Description of a pod with one container; ``resources`` are fields of CRI's LinuxContainerResources.

    The cgroup and the OOM score adjustment are derived from ``qos`` as by the kubelet; ``resources`` can override the
    OOM score adjustment. ``mounts`` maps directories of the node to paths in the container.

    The cgroup of all pods is in ``node``: a slice without its suffix, or the directory of a cgroup for the cgroup
    driver ``cgroupfs``; empty for the root.
    """

    name: str
    image: str
    command: tuple[str, ...] = ()
    namespace: str = "default"
    uid: str = field(default_factory=lambda: str(uuid.uuid4()))
    container: str = "main"
    qos: Literal["guaranteed", "burstable", "besteffort"] = "burstable"
    resources: Mapping[str, int] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    mounts: Mapping[str, str] = field(default_factory=dict)
    node: str = ""

    @property
    def slice(self) -> str:
        """Name of the systemd slice of the pod's cgroup, or its path in ``node`` for ``cgroupfs``."""
        levels = self._levels
        return f"/{'/'.join(levels)}" if "/" in self.node else f"{'-'.join(levels).replace(self.uid, self._uid)}.slice"

    @property
    def cgroup(self) -> str:
        """Directory of the pod's cgroup in the node."""
        if "/" in self.node:
            return f"{self.node}{self.slice}"
        levels = [each.replace(self.uid, self._uid) for each in self._levels]
        slices = ["-".join(levels[:count]) + ".slice" for count in range(1, len(levels) + 1)]
        return "/".join(("/sys/fs/cgroup", *slices))

    @property
    def _levels(self) -> list[str]:
        above = [] if "/" in self.node else [self.node]
        qos = "" if self.qos == "guaranteed" else self.qos
        return [each for each in (*above, "kubepods", qos, f"pod{self.uid}") if each]

    @property
    def _uid(self) -> str:
        return self.uid.replace("-", "_")

    def request(self) -> dict[str, object]:
        """Return the description of the pod for ``vm_pods``."""
        return {
            "name": self.name,
            "image": self.image,
            "container": self.container,
            "command": list(self.command),
            "mounts": dict(self.mounts),
            "resources": {"oom_score_adj": _OOM_SCORES[self.qos], **self.resources},
            "sandbox": {
                "namespace": self.namespace,
                "uid": self.uid,
                "cgroup_parent": self.slice,
                "labels": dict(self.labels),
                "annotations": dict(self.annotations),
            },
        }


@dataclass(frozen=True, slots=True)
class RunningPod:
    """Started pod in the node."""

    pod: Pod
    sandbox_id: str
    container_id: str
    log_file: str

    @property
    def cgroup(self) -> str:
        """Directory of the container's cgroup in the node."""
        if "/" in self.pod.node:
            return f"{self.pod.cgroup}/{self.container_id}"
        return f"{self.pod.cgroup}/cri-containerd-{self.container_id}.scope"
