"""Checks of ``nodeagent doctor`` on the kubelet of this node: pod list, runtime socket, and overlapping tasks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from nodeagent.doctor.plan.node import Finding
from nodeagent.doctor.plan.triggers import First, Measure, Task, TriggerRow, eviction_amount, setting, shown
from nodeagent.model.pods import Completeness, PodListReading
from nodeagent.record import replace
from nodeagent.text import escape
from nodeagent.units import format_duration

if TYPE_CHECKING:
    from nodeagent.model.node import KubeletConfig

_DISTANCE_PERCENT: Final = 5
_OVERLAP: Final = "kubelet-overlap"
_IN_ANY_ORDER: Final = frozenset({Task.CONTAINERS, Task.LOGS})
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
        "imageGCHighThresholdPercent": setting(config, "imageGCHighThresholdPercent", 85),
        "evictionHard imagefs.available": eviction_amount(config, "imagefs.available"),
        "shutdownGracePeriod": _shutdown_grace(config),
    }
    text = ", ".join(f"{key} {_UNKNOWN if value is None else value or 'none'}" for key, value in values.items())
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
        return Finding.ok(name, f"kubelet and agent use {shown(agent)}")
    return Finding.problem(
        name,
        f"the kubelet uses {shown(kubelet)}, the agent {shown(agent)}: their pods and images differ",
        f'set runtime.endpoint = "unix://{shown(kubelet)}"',
    )


def check_kubelet(config: KubeletConfig | None, rows: Sequence[TriggerRow], *, has_kubelet: bool) -> list[Finding]:
    """Return the findings on tasks that both the kubelet of this node and the agent perform.

    The agent should act first on every trigger of image removal, so that the kubelet is the backstop, and of eviction.
    Dead containers and logs may be removed by either side first. At a shutdown only one side should stop pods. The
    first finding has the rows.

    Args:
        config: the kubelet configuration; ``None`` if the agent sees none.
        rows: comparison of all triggers.
        has_kubelet: whether a kubelet manages this node; otherwise the agent evicts through the runtime.
    """
    if config is None:
        return [Finding.skipped(_OVERLAP, _unseen(has_kubelet=has_kubelet))]
    shared = dict.fromkeys(each.task for each in rows if each.first is not First.ONE_SIDE)
    checked = [
        _check_task(task, [each for each in rows if each.task is task], has_kubelet=has_kubelet) for task in shared
    ]
    findings = [each for each in checked if each is not None]
    if not findings:
        ordered = ", ".join(each for each in shared if each not in _IN_ANY_ORDER)
        either = ", ".join(each for each in shared if each in _IN_ANY_ORDER)
        statement = f"the agent acts before the kubelet on every trigger: {ordered}"
        alone = "images are removed, and pods evicted and stopped, by one side only"
        note = f"; in any order: {either}" if either else ""
        findings = [Finding.ok(_OVERLAP, f"{statement if ordered else alone}{note}")]
    return [replace(findings[0], triggers=tuple(rows)), *findings[1:]]


def _check_task(task: Task, rows: Sequence[TriggerRow], *, has_kubelet: bool) -> Finding | None:
    """Return the finding on a task that both sides perform; ``None`` if each trigger is known and in order."""
    name = f"{_OVERLAP}-{task}"
    if task is Task.EVICTION and not has_kubelet:
        return Finding.warning(
            name,
            "the kubelet evicts too, and restarts pods that the agent evicts",
            'set eviction.enabled = "off", or "auto"',
        )
    late = [each for each in rows if each.first in (First.KUBELET, First.EQUAL)]
    if late and task is Task.SHUTDOWN:
        return Finding.problem(
            name,
            f"the kubelet stops pods at shutdown too ({late[0].kubelet})",
            'set shutdown.enabled = "off", or remove shutdownGracePeriod from the kubelet',
        )
    if late and task not in _IN_ANY_ORDER:
        first = min(late, key=lambda each: (list(Measure).index(each.measure), each.kubelet_value or 0))
        verb = "removes images" if task is Task.IMAGES else "evicts pods"
        order = f"before the agent does ({value_text(first.measure, first.agent_value)})"
        if not first.agent:
            order = "and the agent has no such trigger"
        elif first.first is First.EQUAL:
            order = "as the agent does"
        more = f"; {len(late)} triggers: nodeagent doctor -o wide" if len(late) > 1 else ""
        at = value_text(first.measure, first.kubelet_value)
        return Finding.warning(name, f"the kubelet {verb} at {at} ({first.kubelet}), {order}{more}", _fix(first))
    unknown = [
        each.agent if each.agent and each.agent_value is None else each.kubelet
        for each in rows
        if each.first is First.UNKNOWN
    ]
    if not unknown:
        return None
    more = f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""
    return Finding.skipped(name, f"{unknown[0]}{more} {_UNKNOWN}: see kubelet-config, filesystems and doctor -o wide")


def _fix(row: TriggerRow) -> str:
    """Return the settings with which the agent acts before the kubelet on a trigger."""
    if row.task is Task.EVICTION:
        return f"set eviction.hard with a larger amount for {row.kubelet.split()[1].partition('<')[0]}"
    if row.measure is Measure.SECONDS:
        return "set image_gc.maximum_unused_age to less than imageMaximumGCAge of the kubelet"
    suffix = "_inodes_percent" if row.measure is Measure.USED_INODES_PERCENT else "_percent"
    recommended = max(1, math.floor(row.kubelet_value or 0) - _DISTANCE_PERCENT)
    return (
        f"set image_gc.high_threshold{suffix} = {recommended} and low_threshold{suffix} = "
        f"{max(0, recommended - _DISTANCE_PERCENT)}, so that the kubelet is the backstop"
    )


def value_text(measure: Measure, value: float | None) -> str:
    """Return the value of a trigger as text; ``?`` if it is unknown."""
    if value is None:
        return "?"
    if measure is Measure.SECONDS:
        return format_duration(value)
    unit = {Measure.USED_INODES_PERCENT: "% of inodes", Measure.KEPT: " kept"}.get(measure, "%")
    return f"{value:g}{unit}"


def _unseen(*, has_kubelet: bool) -> str:
    """Return the statement that the agent sees no configuration of a kubelet, neither files nor a process."""
    if has_kubelet:
        return "configuration of the kubelet unknown: its process and files are not visible, such as in a container"
    return "no configuration of a kubelet found"


def _shutdown_grace(config: KubeletConfig) -> str | None:
    by_priority = setting(config, "shutdownGracePeriodByPodPriority", "")
    return None if by_priority is None else setting(config, "shutdownGracePeriod", "0s")
