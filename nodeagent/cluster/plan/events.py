"""Kubernetes Events about the node and its pods: selection, aggregation, rate limit and a bounded queue."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from nodeagent.model.clock import not_before
from nodeagent.record import Record, field, replace

NAMESPACE: Final = "default"
"""Namespace of Events about cluster-scoped objects. Source: Kubernetes, validation of ``events.k8s.io/v1``."""
CONTROLLER: Final = "nodeagent.dev/agent"
MAX_PENDING: Final = 100
REPEAT_S: Final = 600.0
"""Seconds after an Event in which equal events are counted and sent as one Event."""
BURST: Final = 10
REFILL_S: Final = 6.0
_MAX_NOTE: Final = 1000
"""Maximum bytes of a note. Source: Kubernetes, validation of ``events.k8s.io/v1``: less than 1024 bytes."""
_MAX_REMEMBERED: Final = 200
_MAX_NAME: Final = 200
_RESOLUTION_S: Final = 1e-6
EventKey = tuple[str, str, str]

NORMAL, WARNING = "Normal", "Warning"
SELECTED: Final[Mapping[str, tuple[str, str]]] = {
    "evicted": ("Evicted", WARNING),
    "eviction_failed": ("EvictionFailed", WARNING),
    "no_evictable_pod": ("NoEvictablePod", WARNING),
    "eviction_ineffective": ("EvictionIneffective", WARNING),
    "imagefs_breakdown": ("FreeDiskSpaceFailed", WARNING),
    "oom_kill": ("SystemOOM", WARNING),
    "pass_failed": ("PassFailed", WARNING),
    "shortage_expected": ("ShortageExpected", WARNING),
    "shortage_not_expected": ("NoShortageExpected", NORMAL),
    "shutdown_started": ("Shutdown", NORMAL),
    "shutdown_finished": ("ShutdownFinished", NORMAL),
    "shutdown_cancelled": ("ShutdownCancelled", NORMAL),
    "shutdown_incomplete": ("ShutdownIncomplete", WARNING),
    "unclean_stop": ("UncleanStop", WARNING),
}
"""Reason and type of the Node Event for each published log event, by event name; kubelet reasons where they exist."""


POD_SELECTED: Final[Mapping[str, tuple[str, str]]] = {
    "evicted": ("Evicted", WARNING),
    "eviction_failed": ("EvictionFailed", WARNING),
    "eviction_postponed": ("EvictionPostponed", WARNING),
    "eviction_cleanup_failed": ("ContainersNotRemoved", WARNING),
}
"""Reason and type of the Pod Event for each log event published on its pod, by event name."""


class PodReference(Record):
    """Pod that an Event is about."""

    namespace: str
    name: str
    uid: str


class Occurrence(Record):
    """Equal events that are sent as one Event.

    Attributes:
        note: text for display.
        first: wall-clock time of the first event.
        last: wall-clock time of the last event.
        due_s: earliest time to send the Event, in monotonic seconds.
        pod: the pod that the Event is about; ``None`` for the node.
    """

    reason: str
    type: str
    note: str
    first: datetime
    last: datetime
    due_s: float
    count: int = 1
    pod: PodReference | None = None

    @property
    def key(self) -> EventKey:
        """Aggregation key; events with equal keys are sent as one Event."""
        return (self.reason, self.note, "" if self.pod is None else self.pod.uid)


class EventQueue(Record):
    """Queue of Events to send, with the state of the rate limit.

    Attributes:
        pending: Events to send by key, oldest first.
        sent_s: time of the last sent Event by key, in monotonic seconds.
        tokens: number of Events that the rate limit permitted at ``tokens_at_s``.
        dropped: number of Events dropped from a full queue.
        last_at: wall-clock time of the last event; ``None`` before the first event.
    """

    pending: Mapping[EventKey, Occurrence] = field(default_factory=dict)
    sent_s: Mapping[EventKey, float] = field(default_factory=dict)
    tokens: float = float(BURST)
    tokens_at_s: float = 0.0
    dropped: int = 0
    last_at: datetime | None = None


def add_event(  # noqa: PLR0913 - one argument for each fact of a log event
    queue: EventQueue, name: str, note: str, now: datetime, now_s: float, *, pod: PodReference | None = None
) -> EventQueue:
    """Return the queue with a log event added; unchanged if this log event is not published.

    Args:
        queue: the queue before the event.
        name: name of the log event.
        note: text of the log event.
        now: wall-clock time of the event, aware UTC; the Event has a later time if the clock was set back.
        now_s: time of the event in monotonic seconds.
        pod: the pod that the Event is about; ``None`` for the node.
    """
    selected = SELECTED if pod is None else POD_SELECTED
    if name not in selected:
        return queue
    reason, kind = selected[name]
    text = note.encode()[:_MAX_NOTE].decode(errors="ignore")
    now = not_before(now, queue.last_at, _RESOLUTION_S)
    queue = replace(queue, last_at=now)
    added = Occurrence(reason, kind, text, now, now, now_s, pod=pod)
    sent_s = queue.sent_s.get(added.key)
    return _with(queue, added if sent_s is None else replace(added, due_s=max(now_s, sent_s + REPEAT_S)))


def take_event(queue: EventQueue, now_s: float) -> tuple[EventQueue, Occurrence | None]:
    """Return the queue without its oldest due Event, and this Event; ``None`` if nothing is due or rate-limited."""
    tokens = min(float(BURST), queue.tokens + max(0.0, now_s - queue.tokens_at_s) / REFILL_S)
    queue = replace(queue, tokens=tokens, tokens_at_s=now_s)
    due = next((each for each in queue.pending.values() if each.due_s <= now_s), None)
    if due is None or tokens < 1:
        return queue, None
    recent = [(key, at_s) for key, at_s in queue.sent_s.items() if now_s - at_s < REPEAT_S and key != due.key]
    return (
        replace(
            queue,
            pending={key: each for key, each in queue.pending.items() if key != due.key},
            sent_s=dict([*recent[-(_MAX_REMEMBERED - 1) :], (due.key, now_s)]),
            tokens=tokens - 1,
        ),
        due,
    )


def put_back(queue: EventQueue, taken: Occurrence) -> EventQueue:
    """Return the queue with an Event added again after its request failed."""
    return _with(queue, taken)


def event_body(occurrence: Occurrence, node: str, node_uid: str) -> dict[str, Any]:
    """Return the Event object for the API server.

    As the API requires, an Event about a pod has the namespace of the pod, and an Event about the node has ``default``.

    Source: Kubernetes ``events.k8s.io/v1``.
    """
    pod = occurrence.pod
    regarding = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": node_uid}
    if pod is not None:
        regarding = {"apiVersion": "v1", "kind": "Pod", "namespace": pod.namespace, "name": pod.name, "uid": pod.uid}
    namespace = NAMESPACE if pod is None else pod.namespace
    body: dict[str, Any] = {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": _name(occurrence, node), "namespace": namespace},
        "eventTime": _micro(occurrence.first),
        "reportingController": CONTROLLER,
        "reportingInstance": node[:128],
        "action": occurrence.reason,
        "reason": occurrence.reason,
        "type": occurrence.type,
        "note": occurrence.note,
        "regarding": regarding,
    }
    if occurrence.count > 1:
        body["series"] = {"count": occurrence.count, "lastObservedTime": _micro(occurrence.last)}
    return body


def _name(occurrence: Occurrence, node: str) -> str:
    """Return the name of an Event, which is equal in every attempt, so that a retry does not create a second Event."""
    digest = zlib.crc32("\0".join(occurrence.key).encode())
    about = node if occurrence.pod is None else occurrence.pod.name
    return f"{about[:_MAX_NAME].rstrip('.-')}.{int(occurrence.first.timestamp() * 1_000_000):x}{digest:08x}"


def _with(queue: EventQueue, added: Occurrence) -> EventQueue:
    earlier = queue.pending.get(added.key)
    if earlier is not None:
        added = replace(
            earlier,
            first=min(earlier.first, added.first),
            last=max(earlier.last, added.last),
            due_s=min(earlier.due_s, added.due_s),
            count=earlier.count + added.count,
        )
        return replace(queue, pending={**queue.pending, added.key: added})
    kept = list(queue.pending.items())
    dropped = max(0, len(kept) + 1 - MAX_PENDING)
    return replace(queue, pending=dict([*kept[dropped:], (added.key, added)]), dropped=queue.dropped + dropped)


def _micro(moment: datetime) -> str:
    """Return a time as RFC 3339 text with microseconds, as ``MicroTime`` fields of the API require."""
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")
