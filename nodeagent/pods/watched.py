"""Pods of this node from the API server's watch, shared by all readers of one process."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from nodeagent.errors import StoreError
from nodeagent.files import open_regular, replace_file
from nodeagent.host.node import node_name
from nodeagent.model.pods import PodList, PodListReading, PodSpec
from nodeagent.pods.plan import watch

if TYPE_CHECKING:
    from nodeagent.units import Clock

_MAX_EVENTS: Final = 1000


class WatchedPods:
    """Latest state of the pod watch, which is kept over reloads and outages of the API server.

    Attributes:
        address: address of the pod list, for display; empty while no watch is configured.
    """

    def __init__(self, clock: Clock) -> None:
        """Create an empty state without a configured watch."""
        self._clock = clock
        self.address = ""
        self._state = watch.WatchState()
        self._events: list[watch.PodEvent] = []
        self._answered: tuple[float, datetime] | None = None

    def add(self, event: watch.PodEvent, now_s: float, now: datetime) -> None:
        """Add an event of the watch; the state is computed when it is read, so that an event takes constant time."""
        self._events.append(event)
        self._answered = now_s, now
        if len(self._events) == _MAX_EVENTS:
            self.state = self.state

    @property
    def state(self) -> watch.WatchState:
        """The latest state of the watch."""
        if self._answered is not None:
            self.state = watch.after_events(self._state, self._events, *self._answered)
        return self._state

    @state.setter
    def state(self, state: watch.WatchState) -> None:
        self._state, self._events, self._answered = state, [], None

    @property
    def configured(self) -> bool:
        """Whether a watch of the pods is configured."""
        return bool(self.address)

    @property
    def is_current(self) -> bool:
        """Whether the watch is configured and its pods are up to date."""
        return self.configured and watch.is_current(self.state, self._clock.monotonic_s())

    @property
    def is_complete(self) -> bool:
        """Whether the pods are current, without an omitted or unreadable pod or change since the last list."""
        return self.is_current and not self.state.unnamed and not self.state.truncated

    @property
    def pods(self) -> tuple[PodSpec, ...]:
        """The last received pods, current or outdated; empty without a watch, and for a Node of another machine."""
        if not self.configured or (self.state.listed_s is not None and self.state.foreign):
            return ()
        return tuple(self.state.pods.values())

    def pod_list(self) -> PodList | None:
        """Return the pod list for the planners; ``None`` without a configured watch."""
        if not self.configured:
            return None
        return watch.pod_list(self.state, self._clock.monotonic_s(), self._clock.now())

    def reading(self) -> PodListReading | None:
        """Return the state of the watch, for display; ``None`` without a configured watch."""
        return watch.reading(self.state, self.address, self._clock.monotonic_s()) if self.configured else None

    @property
    def outdated(self) -> str:
        """Statement that the pods are not current, with the cause; empty without a configured watch."""
        if not self.configured or self.is_current:
            return ""
        return (
            f"the pods of the API server are not current: {watch.proof_problem(self.state, self._clock.monotonic_s())}"
        )

    def warn(self, warnings: list[str]) -> None:
        """Add a warning while the pods are not current, and a warning if pods are malformed."""
        if outdated := self.outdated:
            warnings.append(outdated)
        if self.configured and self.state.truncated:
            warnings.append(f"pods watched at the API server are truncated: {watch.TRUNCATED}")
        malformed = [each.malformed for each in self.pods if each.malformed]
        if malformed:
            more = f" and {len(malformed) - 1} more" if len(malformed) > 1 else ""
            warnings.append(f"malformed pod in the API server's list, kept: {malformed[0]}{more}")

    def reset(self) -> None:
        """Discard the pods and the address, such as after the watch was disabled."""
        self.address, self.state = "", watch.WatchState()


def list_address(node: str) -> str:
    """Return the address of a node's pod list at the API server, for display."""
    return f"API server, pods of {node}"


def restore_pods(watched: WatchedPods, directory: Path, configured_name: str) -> None:
    """Restore the watched pods of an earlier run of the agent, for use until the first list. Blocks.

    Args:
        watched: receives the restored pods.
        directory: state directory of the agent.
        configured_name: name of the node; empty for the host name.

    Raises:
        StoreError: the stored pods cannot be read.
    """
    name = node_name(configured_name)
    watched.address = list_address(name)
    stored = read_watched_pods(directory, name)
    if stored is not None:
        watched.state = watch.restored(stored.pods, stored.at)


FILE_NAME: Final = "api-pods.json"
MAX_BYTES: Final = 8 << 20
_FORMAT: Final = 1


class StoredPods(msgspec.Struct, frozen=True, kw_only=True):
    """Stored pods of a node.

    Attributes:
        version: version of the file format.
        node: name of the node.
        at: time of the last response of the API server, aware UTC.
    """

    version: int
    node: str
    at: datetime
    pods: tuple[PodSpec, ...]


def write_watched_pods(directory: Path, node: str, pods: Iterable[PodSpec], at: datetime) -> None:
    """Write the pods to the file; blocks.

    Raises:
        StoreError: the file cannot be written, or would exceed ``MAX_BYTES``; the previous file is kept.
    """
    path = directory / FILE_NAME
    text = msgspec.json.encode(StoredPods(version=_FORMAT, node=node, at=at, pods=tuple(pods)))
    if len(text) > MAX_BYTES:
        raise StoreError(f"cannot write {path}: more than {MAX_BYTES} bytes")
    try:
        directory.mkdir(mode=0o750, parents=True, exist_ok=True)
        replace_file(path, text.decode())
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror or error}") from error


def read_watched_pods(directory: Path, node: str) -> StoredPods | None:
    """Return the stored pods of a node; ``None`` if no usable file of the node exists. Blocks.

    Raises:
        StoreError: the file cannot be read, exceeds ``MAX_BYTES`` or is malformed.
    """
    path = directory / FILE_NAME
    try:
        with open_regular(path) as file:
            text = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror or error}") from error
    if len(text) > MAX_BYTES:
        raise StoreError(f"{path}: more than {MAX_BYTES} bytes; not used")
    try:
        found = msgspec.json.decode(text, type=StoredPods)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise StoreError(f"{path}: malformed; not used") from error
    return found if found.version == _FORMAT and found.node == node and found.at.tzinfo is not None else None
