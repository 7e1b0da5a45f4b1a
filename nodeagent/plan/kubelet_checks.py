"""Checks of the kubelet beside the agent: its pod list, and tasks that both perform."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodeagent.model.pod_list import Completeness
from nodeagent.plan.node_checks import Finding, Verdict

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nodeagent.model.pod_list import PodListReading


def check_pod_list(reading: PodListReading | None) -> Finding:
    """Check the kubelet's pod list, which names the images of bound pods; ``None`` if none is configured."""
    if reading is None:
        return Finding(
            "pod-list",
            Verdict.SKIPPED,
            "kubelet.url is not set: the image of a pod bound to this node is kept from its first container on; images "
            "of static manifests are kept always",
        )
    if reading.error:
        effect = "images of new pods are not kept" if reading.observed_at else "no image is removed"
        return Finding(
            "pod-list",
            Verdict.PROBLEM,
            f"{reading.error}: {effect}",
            "check url, credentials and ca_file in [kubelet]",
        )
    evidence = f"{reading.address}: {reading.pods} pods"
    if reading.completeness is Completeness.PARTIAL:
        return Finding(
            "pod-list",
            Verdict.WARNING,
            f"{evidence}; {reading.detail}: no image is removed until the kubelet has synced with the API server",
            "check the kubelet's connection to the API server: journalctl -u kubelet",
        )
    note = f"; {reading.detail}" if reading.detail else ""
    return Finding("pod-list", Verdict.OK, f"{evidence}{note}; a missing pod does not count as deleted")


def check_kubelet(found: Mapping[str, str], *, evicts: bool, stops: bool, collects_from: int | None) -> list[Finding]:
    """Check for tasks performed by both the kubelet of this node and the agent.

    Args:
        found: the relevant kubelet fields by name; empty without a KubeletConfiguration.
        evicts: whether the agent evicts pods on this node.
        stops: whether the agent stops pods at a node shutdown.
        collects_from: usage in percent at which the agent starts to remove images; ``None`` if it does not.
    """
    if not found:
        return [Finding("kubelet-overlap", Verdict.SKIPPED, "no KubeletConfiguration on this node")]
    findings = []
    if collects_from is not None:
        findings += _check_image_gc(found.get("imageGCHighThresholdPercent", "85"), collects_from)
    if evicts:
        findings.append(
            Finding(
                "kubelet-overlap-eviction",
                Verdict.WARNING,
                "the kubelet evicts too, and restarts pods that the agent evicts",
                'set eviction.enabled = "off", or "auto"',
            )
        )
    grace = found.get("shutdownGracePeriod", "0s")
    if stops and grace not in ("0", "0s", ""):
        findings.append(
            Finding(
                "kubelet-overlap-shutdown",
                Verdict.PROBLEM,
                f"the kubelet stops pods at shutdown too (shutdownGracePeriod {grace})",
                'set shutdown.enabled = "off", or remove shutdownGracePeriod from the kubelet',
            )
        )
    return findings or [
        Finding("kubelet-overlap", Verdict.OK, "no task is performed by both the kubelet and the agent")
    ]


def _check_image_gc(kubelet_from: str, collects_from: int) -> list[Finding]:
    """Return a warning if the kubelet removes images at a lower usage than the agent; the kubelet is the backstop."""
    if kubelet_from == "100" or (kubelet_from.isdecimal() and collects_from < int(kubelet_from)):
        return []
    return [
        Finding(
            "kubelet-overlap-images",
            Verdict.WARNING,
            f"the kubelet removes images at {kubelet_from}%, before the agent does ({collects_from}%)",
            "set image_gc.high_threshold_percent below that, or imageGCHighThresholdPercent: 100 in the kubelet",
        )
    ]
