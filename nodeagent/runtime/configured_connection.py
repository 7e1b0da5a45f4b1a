"""Connection to the configured runtime, with the configured deadlines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nodeagent.runtime.connection import RuntimeConnection, discover_endpoint

if TYPE_CHECKING:
    from nodeagent.config.settings import Settings
    from nodeagent.runtime.connection import CallObserver

_READ_METHODS: Final = (
    "Version",
    "Status",
    "ListImages",
    "ImageStatus",
    "ImageFsInfo",
    "ListPodSandbox",
    "PodSandboxStatus",
    "ListContainers",
    "ContainerStatus",
    "ListContainerStats",
)
_REMOVE_METHODS: Final = (
    "RemoveImage",
    "RemoveContainer",
    "StopPodSandbox",
    "RemovePodSandbox",
    "images.Delete",
    "leases.Delete",
)


def configured_connection(
    settings: Settings,
    *,
    read_timeout_s: float | None = None,
    with_removals: bool = False,
    observer: CallObserver | None = None,
) -> RuntimeConnection:
    """Return a connection to the configured endpoint, or to the first well-known socket.

    Args:
        settings: source of the endpoint and of ``runtime.timeout``, the deadline of reading calls.
        read_timeout_s: deadline of reading calls in seconds; ``None`` for the configured deadline.
        with_removals: whether removing calls have ``runtime.removal_timeout`` as deadline. If false, the deadline of
            each method applies: a node shutdown must not wait for the longer deadline of garbage collection.
        observer: called after every call; see ``RuntimeConnection``.

    Raises:
        RuntimeUnavailableError: no endpoint is configured and no well-known socket exists.
        ConfigError: the configured endpoint is not a unix socket.
    """
    read_s = settings.timeout_s if read_timeout_s is None else read_timeout_s
    deadlines = dict.fromkeys(_READ_METHODS, read_s)
    if with_removals:
        deadlines |= dict.fromkeys(_REMOVE_METHODS, settings.removal_timeout_s)
    return RuntimeConnection(discover_endpoint(settings.endpoint or None), deadlines=deadlines, observer=observer)
