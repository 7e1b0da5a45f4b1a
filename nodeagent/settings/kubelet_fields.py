"""Fields of a KubeletConfiguration without a counterpart in the agent, and the reason for each."""

from __future__ import annotations

import difflib
from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_SIMILARITY: Final = 0.8
_NO_CGROUP_SETUP: Final = "the agent reads cgroups and does not configure them"
_NO_NODE_STATUS: Final = "intervals of the agent's own heartbeats are fixed, see kubernetes.register_node"
_NO_LOG_ROTATION: Final = "the agent removes logs of deleted pods; log rotation is a function of the kubelet"
_REASONS: Final[Mapping[str, str]] = {
    "kernelMemcgNotification": "replaced by PSI triggers: eviction.memory_stall",
    "enforceNodeAllocatable": _NO_CGROUP_SETUP,
    "systemReserved": _NO_CGROUP_SETUP,
    "kubeReserved": _NO_CGROUP_SETUP,
    "reservedMemory": _NO_CGROUP_SETUP,
    "runtimeRequestTimeout": "separate timeouts for reads and removals: runtime.timeout, runtime.removal_timeout",
    "imageServiceEndpoint": "one socket for both CRI services: runtime.endpoint",
    "port": "the kubelet API requires credentials of its own: kubelet.url, kubelet.token_file",
    "volumeStatsAggPeriod": "the agent measures in every pass",
    "nodeStatusUpdateFrequency": _NO_NODE_STATUS,
    "nodeStatusReportFrequency": _NO_NODE_STATUS,
    "containerLogMaxSize": _NO_LOG_ROTATION,
    "containerLogMaxFiles": _NO_LOG_ROTATION,
    "containerLogMaxWorkers": _NO_LOG_ROTATION,
    "containerLogMonitorInterval": _NO_LOG_ROTATION,
    "featureGates": "feature gates of the kubelet do not apply to the agent",
    "logging": "the log of the agent is configured in [log]",
    "staticPodURL": "static pods are read from files only: kubelet.manifests",
}
_KUBELET_ONLY: Final = frozenset(
    [
        "allowedUnsafeSysctls",
        "authentication",
        "authorization",
        "cgroupDriver",
        "cgroupRoot",
        "cgroupsPerQOS",
        "clusterDNS",
        "clusterDomain",
        "configMapAndSecretChangeDetectionStrategy",
        "contentType",
        "cpuCFSQuota",
        "cpuCFSQuotaPeriod",
        "cpuManagerPolicy",
        "cpuManagerPolicyOptions",
        "cpuManagerReconcilePeriod",
        "crashLoopBackOff",
        "enableContentionProfiling",
        "enableControllerAttachDetach",
        "enableDebugFlagsHandler",
        "enableDebuggingHandlers",
        "enableProfilingHandler",
        "enableServer",
        "enableSystemLogHandler",
        "enableSystemLogQuery",
        "eventBurst",
        "eventRecordQPS",
        "failCgroupV1",
        "failSwapOn",
        "fileCheckFrequency",
        "hairpinMode",
        "healthzBindAddress",
        "healthzPort",
        "httpCheckFrequency",
        "imagePullCredentialsVerificationPolicy",
        "iptablesDropBit",
        "iptablesMasqueradeBit",
        "kubeAPIBurst",
        "kubeAPIQPS",
        "kubeReservedCgroup",
        "kubeletCgroups",
        "makeIPTablesUtilChains",
        "maxOpenFiles",
        "maxParallelImagePulls",
        "maxPods",
        "memoryManagerPolicy",
        "memoryReservationPolicy",
        "memorySwap",
        "memoryThrottlingFactor",
        "nodeLeaseDurationSeconds",
        "nodeStatusMaxImages",
        "oomScoreAdj",
        "podCIDR",
        "podPidsLimit",
        "podsPerCore",
        "preloadedImagesVerificationAllowlist",
        "protectKernelDefaults",
        "providerID",
        "qosReserved",
        "registerNode",
        "registerWithTaints",
        "registryBurst",
        "registryPullQPS",
        "reservedSystemCPUs",
        "resolvConf",
        "rotateCertificates",
        "runOnce",
        "seccompDefault",
        "serializeImagePulls",
        "serverTLSBootstrap",
        "showHiddenMetricsForVersion",
        "singleProcessOOMKill",
        "staticPodURLHeader",
        "streamingConnectionIdleTimeout",
        "syncFrequency",
        "systemCgroups",
        "systemReservedCgroup",
        "tlsCertFile",
        "tlsCipherSuites",
        "tlsCurvePreferences",
        "tlsMinVersion",
        "tlsPrivateKeyFile",
        "topologyManagerPolicy",
        "topologyManagerPolicyOptions",
        "topologyManagerScope",
        "tracing",
        "userNamespaces",
        "volumePluginDir",
    ]
)
"""Fields of functions that only the kubelet has.

Source: Kubernetes ``KubeletConfiguration``, kubelet.config.k8s.io/v1beta1, up to version 1.36.
"""


class FieldGroup(StrEnum):
    """Groups of KubeletConfiguration fields that were not converted.

    Attributes:
        INVALID: fields with a counterpart and an invalid value.
        MISSPELT: unknown fields with a name similar to a known field.
        UNKNOWN: unknown fields, such as fields of a newer kubelet.
        EXPLAINED: fields without a counterpart, each reported with its reason.
        IRRELEVANT: fields without effect on the functions of the agent.
    """

    INVALID = "invalid"
    MISSPELT = "misspelt"
    UNKNOWN = "unknown"
    EXPLAINED = "explained"
    IRRELEVANT = "irrelevant"


def explain_field(name: str, value: object, converted: Iterable[str]) -> tuple[FieldGroup, str]:
    """Return the group of a field without a counterpart, and the reason.

    Args:
        name: name of the field.
        value: value of the field; a zero value is the default and needs no explanation.
        converted: names of the fields with a counterpart.
    """
    if name in _REASONS:
        return FieldGroup.IRRELEVANT if is_zero(value) else FieldGroup.EXPLAINED, _REASONS[name]
    if name in _KUBELET_ONLY:
        return FieldGroup.IRRELEVANT, "not a function of the agent"
    near = difflib.get_close_matches(name, sorted({*converted, *_REASONS, *_KUBELET_ONLY}), 1, _SIMILARITY)
    if near:
        return FieldGroup.MISSPELT, f"unknown field; did you mean {near[0]}?"
    return FieldGroup.UNKNOWN, "unknown field: misspelt, or of a newer kubelet"


def is_zero(value: object) -> bool:
    """Return whether a value is the zero of its type, which kubeadm writes for fields that are not set."""
    return value in (None, "", "0", "0s", 0, [], {})
