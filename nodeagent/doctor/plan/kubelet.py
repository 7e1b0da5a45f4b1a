"""Checks of ``nodeagent doctor`` on the kubelet of this node: pod list, runtime socket, and overlapping tasks."""

from __future__ import annotations

import math
from operator import itemgetter
from typing import Final

from nodeagent.doctor.plan.node import Finding
from nodeagent.model.node import Certainty, KubeletConfig
from nodeagent.model.pods import Completeness, PodListReading
from nodeagent.text import escape, masked, shortened

_DEFAULT_HIGH_PERCENT: Final = 85
_DEFAULT_IMAGEFS: Final = "15%"
_DISTANCE_PERCENT: Final = 5
_MAX_SHOWN: Final = 80
_UNKNOWN: Final = "unknown"


def check_pod_list(reading: PodListReading | None, *, is_watched: bool = False) -> Finding:
    """Return the finding on the kubelet's pod list, which names the images of pods bound to this node.

    Args:
        reading: state of the list; ``None`` if no kubelet URL is configured.
        is_watched: whether the pods are watched at the API server, which names the same images.
    """
    if reading is None:
        start = "its binding on, by kubernetes.watch_pods" if is_watched else "its first container on"
        return Finding.skipped(
            "pod-list",
            f"kubelet.url is not set: the image of a pod bound to this node is kept from {start}; images of static "
            "manifests are kept always",
        )
    if reading.error:
        effect = "images of new pods are not kept" if reading.observed_at else "no image is removed"
        return Finding.problem(
            "pod-list", f"{reading.error}: {effect}", "check url, credentials and ca_file in [kubelet]"
        )
    evidence = f"{reading.address}: {reading.pods} pods"
    if reading.completeness is Completeness.PARTIAL:
        return Finding.warning(
            "pod-list",
            f"{evidence}; {reading.detail}: no image is removed until the kubelet has synced with the API server",
            "check the kubelet's connection to the API server: journalctl -u kubelet",
        )
    note = f"; {reading.detail}" if reading.detail else ""
    return Finding.ok("pod-list", f"{evidence}{note}; a missing pod does not count as deleted")


def check_kubelet_config(config: KubeletConfig | None, *, has_kubelet: bool) -> Finding:
    """Return the finding on the kubelet configuration: its sources, and its image GC and shutdown settings.

    Args:
        config: the configuration; ``None`` if the agent sees none.
        has_kubelet: whether a kubelet manages this node.
    """
    name = "kubelet-config"
    if config is None:
        return Finding.skipped(name, _unseen(has_kubelet=has_kubelet))
    values = {
        "images removed from": _percent(_high_percent(config)),
        "evictionHard imagefs.available": _eviction_amount(config),
        "shutdownGracePeriod": _shutdown_grace(config),
    }
    text = ", ".join(f"{key} {_UNKNOWN if value is None else value}" for key, value in values.items())
    sources = ", ".join(config.sources) or ("no source read" if config.missing else "defaults")
    if not config.missing:
        return Finding.ok(name, f"{sources}: {text}")
    return Finding.warning(
        name, f"{'; '.join(map(escape, config.missing))}; {sources}: {text}", "correct the source, or run as root"
    )


def check_runtime_endpoint(kubelet: str, agent: str) -> Finding:
    """Return the finding on whether the kubelet and the agent use the same runtime socket.

    On a node with two runtimes, such as k3s and Docker, the agent could otherwise manage a runtime without pods.
    Arguments are the resolved socket paths, empty if unknown.
    """
    name = "kubelet-runtime"
    if not kubelet or not agent:
        unknown = "kubelet" if not kubelet else "agent"
        return Finding.skipped(name, f"socket of the {unknown} unknown")
    if kubelet == agent:
        return Finding.ok(name, f"kubelet and agent use {_text(agent)}")
    return Finding.problem(
        name,
        f"the kubelet uses {_text(kubelet)}, the agent {_text(agent)}: their pods and images differ",
        f'set runtime.endpoint = "unix://{_text(kubelet)}"',
    )


def check_kubelet(
    config: KubeletConfig | None, *, has_kubelet: bool, evicts: bool, stops: bool, collects_from: int | None
) -> list[Finding]:
    """Return the findings on tasks that both the kubelet of this node and the agent perform.

    Args:
        config: the kubelet configuration; ``None`` if the agent sees none.
        has_kubelet: whether a kubelet manages this node.
        evicts: whether the agent evicts pods through the runtime on this node.
        stops: whether the agent stops pods at a node shutdown.
        collects_from: usage in percent at which the agent starts to remove images; ``None`` if image GC is disabled.
    """
    if config is None:
        return [Finding.skipped("kubelet-overlap", _unseen(has_kubelet=has_kubelet))]
    findings = []
    if collects_from is not None:
        findings += _check_image_gc(config, collects_from)
    if evicts:
        findings.append(
            Finding.warning(
                "kubelet-overlap-eviction",
                "the kubelet evicts too, and restarts pods that the agent evicts",
                'set eviction.enabled = "off", or "auto"',
            )
        )
    grace = _shutdown_grace(config)
    if stops and grace is None:
        findings.append(Finding.skipped("kubelet-overlap-shutdown", f"shutdownGracePeriod of the kubelet {_UNKNOWN}"))
    elif stops and (grace not in ("0", "0s", "") or config.fields.get("shutdownGracePeriodByPodPriority")):
        findings.append(
            Finding.problem(
                "kubelet-overlap-shutdown",
                f"the kubelet stops pods at shutdown too (shutdownGracePeriod {grace})",
                'set shutdown.enabled = "off", or remove shutdownGracePeriod from the kubelet',
            )
        )
    return findings or [Finding.ok("kubelet-overlap", "no task is performed by both the kubelet and the agent")]


def _unseen(*, has_kubelet: bool) -> str:
    """Return the statement that the agent sees no configuration of a kubelet, neither files nor a process."""
    if has_kubelet:
        return "configuration of the kubelet unknown: its process and files are not visible, such as in a container"
    return "no configuration of a kubelet found"


def _check_image_gc(config: KubeletConfig, collects_from: int) -> list[Finding]:
    """Return a warning if the kubelet removes images at the same or a lower usage than the agent.

    The kubelet should be only the backstop. The kubelet removes images at its image GC threshold, and at its hard
    eviction threshold for imagefs, before it evicts pods. Without a warning, an unknown threshold is reported.
    """
    high, eviction = _high_percent(config), _eviction_amount(config)
    levels = {}
    if high not in (None, "100"):
        levels[f"imageGCHighThresholdPercent {high}"] = int(high) if high.isdecimal() else 0
    if eviction is not None and eviction.endswith("%"):
        levels[f"evictionHard imagefs.available<{eviction}"] = _used_percent(eviction)
    if levels and collects_from >= min(levels.values()):
        text, level = min(levels.items(), key=itemgetter(1))
        recommended = max(1, level - _DISTANCE_PERCENT)
        return [
            Finding.warning(
                "kubelet-overlap-images",
                f"the kubelet removes images at {level}% ({text}), before the agent does ({collects_from}%)",
                f"set image_gc.high_threshold_percent = {recommended} and low_threshold_percent = "
                f"{max(0, recommended - _DISTANCE_PERCENT)}, so that the kubelet is the backstop",
            )
        ]
    unknown = [
        name for name, value in (("imageGCHighThresholdPercent", high), ("evictionHard", eviction)) if value is None
    ]
    if unknown:
        evidence = f"{' and '.join(unknown)} of the kubelet {_UNKNOWN}: see kubelet-config"
        return [Finding.skipped("kubelet-overlap-images", evidence)]
    return []


def _value(config: KubeletConfig, name: str, default: object) -> str | None:
    """Return a value in force, the default if it is not set; ``None`` if unknown."""
    if config.certainty(name) is not Certainty.IN_FORCE:
        return None
    return _text(config.fields.get(name, default))


def _high_percent(config: KubeletConfig) -> str | None:
    return _value(config, "imageGCHighThresholdPercent", _DEFAULT_HIGH_PERCENT)


def _percent(value: str | None) -> str | None:
    return None if value is None else f"{value}%"


def _shutdown_grace(config: KubeletConfig) -> str | None:
    by_priority = _value(config, "shutdownGracePeriodByPodPriority", "")
    return None if by_priority is None else _value(config, "shutdownGracePeriod", "0s")


def _eviction_amount(config: KubeletConfig) -> str | None:
    """Return the amount of the kubelet's hard threshold ``imagefs.available``; empty without one, ``None`` if unknown.

    Source: kubelet ``SetDefaults_KubeletConfiguration``: the defaults apply only if no hard threshold is set or
    ``mergeDefaultEvictionSettings`` is true.
    """
    hard = config.fields.get("evictionHard")
    certainty = config.certainty("evictionHard")
    if certainty is Certainty.UNKNOWN:
        return None
    if isinstance(hard, dict) and "imagefs.available" in hard:
        return _text(hard["imagefs.available"])
    if certainty is Certainty.AT_LEAST:
        return None
    if not isinstance(hard, dict) or not hard:
        return _DEFAULT_IMAGEFS
    if config.certainty("mergeDefaultEvictionSettings") is not Certainty.IN_FORCE:
        return None
    return _DEFAULT_IMAGEFS if config.fields.get("mergeDefaultEvictionSettings") is True else ""


def _used_percent(available: str) -> int:
    """Return the usage in percent that corresponds to a percentage of available space; 0 for an invalid amount."""
    try:
        return max(0, math.floor(100 - float(available.removesuffix("%"))))
    except (ValueError, OverflowError):
        return 0


def _text(value: object) -> str:
    """Return a configuration value as printable text of limited length."""
    return shortened(masked(str(value)), _MAX_SHOWN)
