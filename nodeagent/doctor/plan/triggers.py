"""Triggers of the tasks of the kubelet and the agent on this node, and the side that acts first on each trigger."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from nodeagent.eviction.plan.thresholds import DEFAULT_HARD, MEANINGS, Threshold, Unit, parse_thresholds
from nodeagent.model.node import Certainty, KubeletConfig
from nodeagent.model.pressure import FilesystemLayout, FilesystemRole, Signal
from nodeagent.record import Record, field
from nodeagent.text import masked, shortened
from nodeagent.units import parse_duration_s

if TYPE_CHECKING:
    from nodeagent.gc.plan.policy import ContainerGCPolicy, ImageGCPolicy

_MAX_SHOWN: Final = 80
_HARD: Final = "evictionHard"
_INSTANCES: Final = "maximum-dead-containers-per-container"
_DEAD: Final = "maximum-dead-containers"
_KUBELET_SIGNALS: Final = tuple(
    Signal(each) for each in ("memory.available", "pid.available", *(each for each in DEFAULT_HARD if "fs." in each))
)


class Task(StrEnum):
    """Tasks that both sides can perform. The values are part of the JSON output; so are those of the other enums."""

    IMAGES = "images"
    CONTAINERS = "containers"
    LOGS = "logs"
    EVICTION = "eviction"
    SHUTDOWN = "shutdown"


class First(StrEnum):
    """The side that acts first on a trigger.

    Attributes:
        UNKNOWN: a value, or the filesystem of a trigger, is unknown.
        ONE_SIDE: only one side performs the task.
    """

    KUBELET = "kubelet"
    AGENT = "agent"
    EQUAL = "equal"
    UNKNOWN = "unknown"
    ONE_SIDE = "-"


class Measure(StrEnum):
    """Unit of the values of a trigger; with all units, the side with the lower value acts first."""

    USED_PERCENT = "used-percent"
    USED_INODES_PERCENT = "used-inodes-percent"
    SECONDS = "seconds"
    KEPT = "kept"
    STALL_PERCENT = "stall-percent"


class Trigger(NamedTuple):
    """One trigger of one side.

    Attributes:
        subject: measured quantity; triggers of the same subject are compared.
        level: value at which the side acts; ``None`` if unknown.
        applies: whether the trigger is known to cause the task on this node.
    """

    subject: str
    measure: Measure
    text: str
    level: float | None
    applies: bool = True


class TriggerRow(Record):
    """Comparison of a trigger of the kubelet with the earliest trigger of the agent of the same quantity.

    Attributes:
        kubelet: trigger of the kubelet; empty without a trigger.
        kubelet_value: value in ``measure`` at which the kubelet acts; ``None`` if unknown, or without a trigger.
        agent: trigger of the agent; empty without a trigger.
        agent_value: value in ``measure`` at which the agent acts; ``None`` if unknown, or without a trigger.
    """

    task: Task
    measure: Measure
    kubelet: str
    kubelet_value: float | None
    agent: str
    agent_value: float | None
    first: First


class NodeSizes(Record):
    """Sizes of this node.

    Attributes:
        layout: devices of nodefs, imagefs and containerfs; ``None`` if unknown.
        totals: capacity by signal; without ``inodesFree`` for filesystems without a fixed number of inodes.
    """

    layout: FilesystemLayout | None = None
    totals: Mapping[Signal, float] = field(default_factory=dict)


class AgentTasks(Record):
    """The tasks that the agent performs on this node.

    Attributes:
        images: policy of image GC; ``None`` if disabled.
        containers: policy of container GC; ``None`` if disabled.
        deleted_after_s: time after the deletion of a pod until its containers are removed; ``None`` if they are not.
        logs_after_s: time after the deletion of a pod until its logs are removed; ``None`` if they are not.
        thresholds: thresholds of pod eviction; empty if disabled.
        stops: whether the agent stops pods at a node shutdown.
    """

    images: ImageGCPolicy | None = None
    containers: ContainerGCPolicy | None = None
    deleted_after_s: float | None = None
    logs_after_s: float | None = None
    thresholds: tuple[Threshold, ...] = ()
    stops: bool = False


def compare_triggers(config: KubeletConfig, agent: AgentTasks, sizes: NodeSizes) -> tuple[TriggerRow, ...]:
    """Return every trigger of every task of both sides, compared.

    Amounts are converted to the used share of the capacity. On a single disk, the thresholds of nodefs cause the
    removal of images and dead containers too. A soft threshold counts with its amount, at which its grace period
    starts.

    Source: kubelet ``realImageGCManager.GarbageCollect``, ``buildSignalToNodeReclaimFuncs``, ``containerGC``.
    """
    sides = {
        Task.IMAGES: (_images_of_kubelet(config), _images_of_agent(agent.images, sizes)),
        Task.CONTAINERS: (_containers_of_kubelet(config), _containers_of_agent(agent)),
        Task.LOGS: ([_after_deletion("logs of deleted pods", 0)], _logs_of_agent(agent)),
        Task.EVICTION: ([], []),
        Task.SHUTDOWN: (_shutdown_of_kubelet(config), [_SHUTDOWN] if agent.stops else []),
    }
    rows: list[TriggerRow] = []
    for task, (kubelet, own) in sides.items():
        of_kubelet = [*kubelet, *_thresholds_of_kubelet(config, task, sizes)]
        of_agent = [
            *own,
            *(found for each in agent.thresholds for found in _of_threshold(each, task, sizes)),
        ]
        rows += _compared(task, of_kubelet, of_agent)
    return tuple(rows)


def _compared(task: Task, kubelet: list[Trigger], agent: list[Trigger]) -> Iterator[TriggerRow]:
    shared = bool(kubelet) and bool(agent)
    for each in kubelet:
        own = _earliest(other for other in agent if other.subject == each.subject)
        first = _first(each, own) if shared else First.ONE_SIDE
        text, level = ("", None) if own is None else (own.text, own.level)
        yield TriggerRow(task, each.measure, each.text, each.level, text, level, first)
    subjects = {each.subject for each in kubelet}
    for own in agent:
        if own.subject not in subjects:
            first = First.AGENT if shared else First.ONE_SIDE
            yield TriggerRow(task, own.measure, "", None, own.text, own.level, first)


def _earliest(triggers: Iterable[Trigger]) -> Trigger | None:
    """Return the trigger with the lowest known level, otherwise one with an unknown level; ``None`` without any."""
    return min(triggers, key=lambda each: float("inf") if each.level is None else each.level, default=None)


def _first(kubelet: Trigger, agent: Trigger | None) -> First:
    if kubelet.level is None or (agent is not None and agent.level is None):
        return First.UNKNOWN
    if agent is not None and agent.level is not None and agent.level < kubelet.level and agent.applies:
        return First.AGENT
    if not kubelet.applies or (agent is not None and not agent.applies):
        return First.UNKNOWN
    return First.EQUAL if agent is not None and agent.level == kubelet.level else First.KUBELET


# ---- images, containers, logs, shutdown

_SPACE: Final = "bytes of images"
_INODES: Final = "inodes of images"
_AGE: Final = "age of images"
_DELETED: Final = "time since the deletion of the pod"
_SHUTDOWN: Final = Trigger("shutdown", Measure.SECONDS, "shutdown of the node", 0)


def _images_of_kubelet(config: KubeletConfig) -> Iterator[Trigger]:
    name, ages = "imageGCHighThresholdPercent", "imageMaximumGCAge"
    age = _seconds(setting(config, ages, "0s"))
    high = setting(config, name, 85)
    if high != "100" or age != 0:
        known = high is not None and high.isdecimal() and len(high) <= 3
        text = name if high is None else f"{name} {high}"
        yield Trigger(_SPACE, Measure.USED_PERCENT, text, float(high) if known and high is not None else None)
    if age != 0:
        yield Trigger(_AGE, Measure.SECONDS, ages, age)


def _images_of_agent(policy: ImageGCPolicy | None, sizes: NodeSizes) -> Iterator[Trigger]:
    if policy is None:
        return
    high, inodes, age = policy.high_threshold_percent, policy.high_threshold_inodes_percent, policy.maximum_unused_age_s
    if high < 100:
        yield Trigger(_SPACE, Measure.USED_PERCENT, "image_gc.high_threshold_percent", high)
        if inodes < 100 and not _is_unlimited(Signal.IMAGEFS_INODES_FREE, sizes):
            yield Trigger(_INODES, Measure.USED_INODES_PERCENT, "image_gc.high_threshold_inodes_percent", inodes)
    if age:
        yield Trigger(_AGE, Measure.SECONDS, "image_gc.maximum_unused_age", age)


def _containers_of_kubelet(config: KubeletConfig) -> Iterator[Trigger]:
    """Yield the limits of dead containers. Source: kubelet flags, which have no KubeletConfiguration field."""
    for flag, default in ((_INSTANCES, "1"), (_DEAD, "-1")):
        value = "" if config.missing and flag not in config.flags else config.flags.get(flag, default)
        if not value.startswith("-"):
            yield Trigger(flag, Measure.KEPT, flag, float(value) if value.isdecimal() and len(value) < 10 else None)
    yield _after_deletion("containers of deleted pods", 0)


def _containers_of_agent(agent: AgentTasks) -> Iterator[Trigger]:
    if agent.containers is None:
        return
    limits = {
        _INSTANCES: ("container_gc.max_per_pod_container", agent.containers.max_per_pod_container),
        _DEAD: ("container_gc.max_containers", agent.containers.max_containers),
    }
    yield from (Trigger(subject, Measure.KEPT, text, limit) for subject, (text, limit) in limits.items() if limit >= 0)
    if agent.deleted_after_s is not None:
        yield _after_deletion("containers of deleted pods", agent.deleted_after_s)


def _logs_of_agent(agent: AgentTasks) -> list[Trigger]:
    return [] if agent.logs_after_s is None else [_after_deletion("container_gc.log_minimum_age", agent.logs_after_s)]


def _after_deletion(text: str, level: float) -> Trigger:
    return Trigger(_DELETED, Measure.SECONDS, text, level)


def _shutdown_of_kubelet(config: KubeletConfig) -> Iterator[Trigger]:
    grace, by_priority = "shutdownGracePeriod", "shutdownGracePeriodByPodPriority"
    text, bands = setting(config, grace, "0s"), setting(config, by_priority, "")
    if text is None or bands is None:
        yield _SHUTDOWN._replace(text=grace, level=None)
    elif text not in ("0", "0s", "") or config.fields.get(by_priority):
        yield _SHUTDOWN._replace(text=f"{grace} {text}" if not config.fields.get(by_priority) else by_priority)


# ---- thresholds


def _thresholds_of_kubelet(config: KubeletConfig, task: Task, sizes: NodeSizes) -> Iterator[Trigger]:
    """Yield the hard and soft thresholds that cause a task; an unknown or invalid threshold has no level."""
    for name in (_HARD, "evictionSoft"):
        for signal in _KUBELET_SIGNALS:
            amount = eviction_amount(config, signal, name)
            subject = _subject(signal, task, sizes.layout)
            if subject is None or amount == "" or _is_unlimited(signal, sizes):
                continue
            unknown = Trigger(*subject, f"{name} {signal}", None)
            if amount is None:
                yield unknown
                continue
            try:
                parsed = parse_thresholds(hard={signal: amount}, allocatable=False)
            except ValueError:
                yield unknown._replace(text=f"{name} {signal}<{amount}")
                continue
            for each in parsed:
                grace = "" if name == _HARD else _grace(config, signal)
                applies = not _depends_on_layout(signal, task) or sizes.layout is not None
                yield Trigger(*subject, f"{name} {each.text}{grace}", _level(each, sizes), applies)


def _of_threshold(threshold: Threshold, task: Task, sizes: NodeSizes) -> Iterator[Trigger]:
    """Yield the trigger of a threshold of the agent, if the threshold causes the task on this node."""
    signal = threshold.signal
    subject = _subject(signal, task, sizes.layout)
    if subject is not None and signal is not Signal.ALLOCATABLE_MEMORY_AVAILABLE and not _is_unlimited(signal, sizes):
        applies = not _depends_on_layout(signal, task) or sizes.layout is not None
        grace = "" if threshold.hard else f" for {threshold.grace_s:g}s"
        yield Trigger(*subject, f"eviction {threshold.text}{grace}", _level(threshold, sizes), applies)


def _depends_on_layout(signal: Signal, task: Task) -> bool:
    of_nodefs = MEANINGS[signal].filesystem is FilesystemRole.NODEFS
    return (task is Task.IMAGES and of_nodefs) or task is Task.CONTAINERS


def _subject(signal: Signal, task: Task, layout: FilesystemLayout | None) -> tuple[str, Measure] | None:
    """Return the quantity of a signal; ``None`` if the signal does not cause the task with this layout.

    Source: kubelet ``buildSignalToNodeReclaimFuncs``.
    """
    meaning = MEANINGS[signal]
    inodes = meaning.unit is Unit.INODES
    stall = Measure.STALL_PERCENT if meaning.unit is Unit.STALL_PERCENT else Measure.USED_PERCENT
    measure = Measure.USED_INODES_PERCENT if inodes else stall
    if task is Task.EVICTION:
        return (signal, measure) if meaning.resource is not None else None
    if task not in (Task.IMAGES, Task.CONTAINERS) or meaning.filesystem not in (
        FilesystemRole.NODEFS,
        FilesystemRole.IMAGEFS,
    ):
        return None
    of_nodefs = meaning.filesystem is FilesystemRole.NODEFS
    excluded = {
        FilesystemLayout.DEDICATED_IMAGEFS: of_nodefs,
        FilesystemLayout.SPLIT: of_nodefs is (task is Task.IMAGES),
    }
    if layout is not None and excluded.get(layout, False):
        return None
    if task is Task.CONTAINERS:
        return signal, measure
    return (_INODES if inodes else _SPACE), measure


def _level(threshold: Threshold, sizes: NodeSizes) -> float | None:
    """Return the used share in percent at which a threshold is met, to one decimal; ``None`` if unknown."""
    amount, total = threshold.amount, sizes.totals.get(threshold.signal)
    if MEANINGS[threshold.signal].unit is Unit.STALL_PERCENT:
        return amount.number
    share = amount.share
    if share is None and amount.number is not None and total:
        share = amount.number / total
    return None if share is None else max(0.0, round(100 * (1 - share), 1))


def _is_unlimited(signal: Signal, sizes: NodeSizes) -> bool:
    """Return whether the filesystem of a signal is known to have no fixed number of inodes."""
    of_bytes = str(signal).replace("inodesFree", "available")
    return MEANINGS[signal].unit is Unit.INODES and signal not in sizes.totals and Signal(of_bytes) in sizes.totals


# ---- values of the kubelet


def setting(config: KubeletConfig, name: str, default: object) -> str | None:
    """Return a value in force as text, the default if it is not set; ``None`` if unknown."""
    if config.certainty(name) is not Certainty.IN_FORCE:
        return None
    return shown(config.fields.get(name, default))


def shown(value: object) -> str:
    """Return a configuration value as printable text of limited length."""
    return shortened(masked(str(value)), _MAX_SHOWN)


def eviction_amount(config: KubeletConfig, signal: str, name: str = _HARD) -> str | None:
    """Return the amount of a threshold of the kubelet; empty without one, ``None`` if unknown.

    Source: kubelet ``SetDefaults_KubeletConfiguration``: the defaults apply only if no hard threshold is set or
    ``mergeDefaultEvictionSettings`` is true.
    """
    amounts = config.fields.get(name)
    certainty = config.certainty(name)
    if certainty is Certainty.UNKNOWN:
        return None
    if isinstance(amounts, dict) and signal in amounts:
        return shown(amounts[signal])
    if certainty is Certainty.AT_LEAST:
        return None
    default = DEFAULT_HARD.get(signal, "") if name == _HARD else ""
    if not isinstance(amounts, dict) or not default:
        return default
    if config.certainty("mergeDefaultEvictionSettings") is not Certainty.IN_FORCE:
        return None
    return default if config.fields.get("mergeDefaultEvictionSettings") is True else ""


def _grace(config: KubeletConfig, signal: Signal) -> str:
    periods = config.fields.get("evictionSoftGracePeriod")
    period = periods.get(signal) if isinstance(periods, dict) else None
    return "" if period is None else f" for {shown(period)}"


def _seconds(text: str | None) -> float | None:
    """Return a duration in seconds; ``None`` if it is unknown or invalid."""
    try:
        return None if text is None else parse_duration_s(text)
    except ValueError:
        return None
