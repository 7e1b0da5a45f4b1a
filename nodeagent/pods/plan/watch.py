"""State of the watch of this node's pods: a consistent list, then every change of a pod in order.

A pod missing in the watch counts as deleted only under the conditions of :func:`proof_problem` and, per pod, of
:meth:`nodeagent.model.pods.PodList.lacks`. The API server that serves the watch may lag behind the API server of
the kubelet, so that a new pod may not be in the watch yet.

Source: Kubernetes API concepts, efficient detection of changes; client-go ``Reflector``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from nodeagent.model.pods import ENDED, Completeness, PodList, PodListReading, PodListSource, PodSpec
from nodeagent.model.runtime import ANNOTATION_SOURCE
from nodeagent.pods.plan.facts import ANNOTATION_HASH, ANNOTATION_MIRROR
from nodeagent.record import Record, field, replace
from nodeagent.units import format_duration

SYNC_GRACE_S: Final = 60.0
"""Seconds of uninterrupted connection of the watch before a missing pod counts as deleted."""
FRESH_S: Final = 180.0
"""Maximum age of the last response, in seconds, of a current watch; bookmarks arrive about every minute."""
MAX_PODS: Final = 5000
"""Maximum number of pods without ended ones; a kubelet runs far fewer, and a tenant's quota limits them."""
MAX_ENDED: Final = 20_000
"""Maximum number of ended pods, which count for no quota; the pod garbage collector keeps 12,500 in a cluster."""
TRUNCATED: Final = f"more than {MAX_PODS} pods, or {MAX_ENDED} ended pods, of this node; the others are unknown"
MAX_DELETED: Final = 2048
FIRST_RETRY_S: Final = 1.0
LAST_RETRY_S: Final = 60.0
JITTER_SHARE: Final = 0.5
_UNREAD_NODE: Final = "the Node object has not been compared with this machine"


class EventKind(StrEnum):
    """Kind of a watch event. Source: Kubernetes ``watch.EventType``."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"


class PodEvent(Record):
    """One event of the pod watch.

    Attributes:
        kind: kind of the event; ``None`` for an unreadable event.
        pod: the pod after the change; ``None`` for a bookmark or an unreadable event.
        resource_version: resource version from which a watch continues; empty if unreadable.
    """

    kind: EventKind | None
    pod: PodSpec | None = None
    resource_version: str = ""


class WatchState(Record):
    """Pods reported by the API server, and the state of the watch. Names of monotonic times end in ``_s``.

    Attributes:
        pods: pods by UID.
        deleted: UIDs of pods that the watch reported as deleted or that are missing in a later list; newest last.
        resource_version: resource version from which the watch continues; empty if a new list is required.
        listed_s: request time of the last complete list; ``None`` before the first list.
        connected_s: start of the uninterrupted watch; ``None`` while the watch is interrupted.
        answered_s: time of the last list, change or bookmark; ``None`` before the first list.
        answered_at: wall-clock time of the last list, change or bookmark; before the first list, the time of the stored
            pods.
        truncated: whether pods beyond the limits are missing.
        unnamed: number of unreadable pods and changes since the last list; each may concern any pod.
        foreign: reason that the Node object is not proven to be of this machine; empty once its ids match.
        error: cause of the interruption; empty while the watch is connected.
    """

    pods: Mapping[str, PodSpec] = field(default_factory=dict)
    deleted: tuple[str, ...] = ()
    resource_version: str = ""
    listed_s: float | None = None
    connected_s: float | None = None
    answered_s: float | None = None
    answered_at: datetime | None = None
    truncated: bool = False
    unnamed: int = 0
    foreign: str = _UNREAD_NODE
    error: str = ""


def after_list(  # noqa: PLR0913 - one argument for each fact of a list
    state: WatchState,
    pods: Iterable[PodSpec],
    resource_version: str,
    *,
    requested_s: float,
    now_s: float,
    now: datetime,
    truncated: bool = False,
) -> WatchState:
    """Return the state after a consistent list of this machine's Node object.

    Args:
        state: state before the list.
        pods: pods of the list, reduced by :func:`compact`.
        resource_version: resource version of the list.
        requested_s: time of the request for the first page of the list, in monotonic seconds.
        now_s: current time in monotonic seconds.
        now: current wall-clock time.
        truncated: whether pods beyond the limits are missing in the list.
    """
    listed = tuple(pods)
    named = {each.uid: each for each in listed if each.uid}
    comparable = state.listed_s is not None and not state.foreign and not truncated
    vanished = [uid for uid in state.pods if uid not in named] if comparable else []
    return WatchState(
        pods=named,
        deleted=_newest([*state.deleted, *vanished]),
        resource_version=resource_version,
        listed_s=requested_s,
        connected_s=now_s,
        answered_s=now_s,
        answered_at=now,
        truncated=truncated,
        unnamed=len(listed) - len(named),
        foreign="",
    )


def after_events(state: WatchState, events: Iterable[PodEvent], now_s: float, now: datetime) -> WatchState:
    """Return the state after watch events, the last of which was received at the given time.

    The pods are copied once for all events. After an unreadable event a new list is required.
    """
    pods, deleted = dict(state.pods), dict.fromkeys(state.deleted)
    version, unnamed, truncated = state.resource_version, state.unnamed, state.truncated
    for event in events:
        version = event.resource_version or version
        if event.kind is EventKind.BOOKMARK:
            continue
        if event.kind is None or event.pod is None or not event.pod.uid:
            unnamed += 1
            continue
        uid = event.pod.uid
        deleted.pop(uid, None)
        if event.kind is EventKind.DELETED:
            pods.pop(uid, None)
            deleted[uid] = None
        elif uid in pods or len(pods) < MAX_PODS + MAX_ENDED:
            pods[uid] = event.pod
        else:
            truncated = True
    return replace(
        state,
        pods=pods,
        deleted=_newest(deleted),
        resource_version=version,
        answered_s=now_s,
        answered_at=now,
        truncated=truncated,
        unnamed=unnamed,
    )


def after_connection(state: WatchState, now_s: float, now: datetime) -> WatchState:
    """Return the state after the API server has accepted a watch from the resource version of the state."""
    since_s = now_s if state.connected_s is None else state.connected_s
    return replace(state, connected_s=since_s, answered_s=now_s, answered_at=now, error="")


def after_interruption(state: WatchState, error: str) -> WatchState:
    """Return the state after a lost connection; the pods are kept."""
    return replace(state, connected_s=None, error=error)


def after_expiry(state: WatchState) -> WatchState:
    """Return the state after the resource version has expired (410): changes are lost, and a new list is required."""
    return replace(state, connected_s=None, resource_version="", error="the version expired; listing again")


def needs_list(state: WatchState) -> bool:
    """Return whether the pods must be listed before the next watch, such as after an unreadable event."""
    return not state.resource_version or state.unnamed > 0 or state.truncated or bool(state.foreign)


def restored(pods: Iterable[PodSpec], at: datetime) -> WatchState:
    """Return the state with pods stored by an earlier run, which provide pod facts but do not prove deletions."""
    return WatchState(
        pods={each.uid: each for each in pods if each.uid}, answered_at=at, error="not listed since the start"
    )


def retry_s(failures: int, jitter: float, retry_after_s: float | None = None) -> float:
    """Return the seconds until the next attempt, with bounded exponential back-off and jitter of up to 50%.

    Args:
        failures: consecutive failed attempts, at least 1.
        jitter: random number from 0 to 1, which shortens the delay.
        retry_after_s: seconds in the ``Retry-After`` header; ``None`` without the header.
    """
    delay_s = min(LAST_RETRY_S, FIRST_RETRY_S * 2.0 ** min(failures - 1, 16))
    return max(delay_s * (1 - JITTER_SHARE * jitter), retry_after_s or 0.0)


def compact(spec: PodSpec) -> PodSpec:
    """Return a pod with only the annotations that the planners use.

    Other annotations are dropped, since they can have 256 KiB and may contain secrets. The source of a pod that is not
    a mirror pod is the API server, regardless of its source annotation, which the author of the pod can set. An ended
    pod is kept without its definition.
    """
    annotations = {ANNOTATION_SOURCE: "api"}
    if ANNOTATION_MIRROR in spec.annotations:
        known = (ANNOTATION_HASH, ANNOTATION_MIRROR, ANNOTATION_SOURCE)
        annotations = {key: spec.annotations[key] for key in known if key in spec.annotations}
    spec = replace(spec, annotations=annotations, listed_by=PodListSource.API_SERVER)
    return replace(spec, labels={}, containers=(), empty_dirs=(), images=(), claims=()) if spec.phase in ENDED else spec


def proof_problem(state: WatchState, now_s: float) -> str:
    """Return the reason why a pod missing in the watch does not count as deleted, for display; empty if it counts."""
    if state.listed_s is None or state.answered_s is None:
        return state.error or "not listed yet"
    if state.connected_s is None or state.foreign:
        return state.foreign or state.error or "interrupted"
    if state.unnamed or state.truncated:
        return TRUNCATED if state.truncated else f"{state.unnamed} unreadable pods or changes"
    if not 0 <= now_s - state.answered_s <= FRESH_S:
        return f"no answer for more than {format_duration(FRESH_S)}"
    if now_s - state.connected_s < SYNC_GRACE_S:
        return f"connected for less than {format_duration(SYNC_GRACE_S)}"
    return ""


def is_current(state: WatchState, now_s: float) -> bool:
    """Return whether the watch is current, so that its pods can be used as facts."""
    connected = state.connected_s is not None and state.listed_s is not None and not state.foreign
    return connected and state.answered_s is not None and 0 <= now_s - state.answered_s <= FRESH_S


def pod_list(state: WatchState, now_s: float, now: datetime) -> PodList | None:
    """Return the pod list for the planners; ``None`` without listed or stored pods, and for a list of another node.

    Args:
        state: state of the watch.
        now_s: current time in monotonic seconds.
        now: current wall-clock time, from which the wall-clock time of the list is computed.
    """
    if (state.listed_s is None and not state.pods) or (state.listed_s is not None and state.foreign):
        return None
    uids = set(state.pods)
    for each in state.pods.values():
        uids.update(each.annotations[key] for key in (ANNOTATION_HASH, ANNOTATION_MIRROR) if key in each.annotations)
    return PodList(
        PodListSource.API_SERVER,
        frozenset(uids),
        synced=not proof_problem(state, now_s),
        deleted=frozenset(state.deleted),
        listed_at=None if state.listed_s is None else now - timedelta(seconds=now_s - state.listed_s),
    )


def reading(state: WatchState, address: str, now_s: float) -> PodListReading:
    """Return the status of the watch for display."""
    problem = proof_problem(state, now_s)
    if state.answered_at is None:
        completeness = Completeness.UNKNOWN
    else:
        completeness = Completeness.OUTDATED if problem else Completeness.SYNCED
    return PodListReading(
        PodListSource.API_SERVER,
        address,
        state.answered_at,
        len(state.pods),
        completeness,
        error=state.error,
        detail="" if problem == state.error else problem,
    )


def _newest(uids: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(uids))[-MAX_DELETED:]
