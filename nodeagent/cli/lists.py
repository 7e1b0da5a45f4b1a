"""``nodeagent images``, ``containers`` and ``pods``: every item with its verdict.

With a daemon, the modules that print a list are imported while the daemon observes the node.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from nodeagent.cli.reading import ask
from nodeagent.gc.documents import lists

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from nodeagent.api.codec import Document
    from nodeagent.cli.list_request import ListRequest
    from nodeagent.cli.listing import ListOptions
    from nodeagent.cli.source import Source
    from nodeagent.gc.previewer import Previews

    D = TypeVar("D", bound=Document)
    L = TypeVar("L", bound=lists.Listing)
    ReadPreviews = Callable[[Previews], Coroutine[Any, Any, D]]


def list_images(source: Source, options: ListOptions) -> None:
    """Print every image with its verdict.

    Raises:
        UsageError: a list option is invalid.
    """
    _print("Images", lists.Images, source, options, _images, "no images")


def list_containers(source: Source, options: ListOptions) -> None:
    """Print every container with its verdict.

    Raises:
        UsageError: a list option is invalid.
    """
    _print("Containers", lists.Containers, source, options, _containers, "no containers")


def list_pods(source: Source, options: ListOptions) -> None:
    """Print every pod of the runtime with its deletion status.

    Raises:
        UsageError: a list option is invalid.
    """
    _print("PodList", lists.Pods, source, options, _pods, "no pods")


def read_list(
    operation: str,
    kind: type[D],
    source: Source,
    local: ReadPreviews[D],
    *,
    meanwhile: Callable[[], object] | None = None,
) -> D:
    """Return the document of an operation, from the daemon or else created by ``local``.

    Args:
        operation: name in :data:`~nodeagent.api.operations.OPERATIONS`.
        kind: type of the document.
        source: source of the document.
        local: creates the document without a daemon.
        meanwhile: called while the daemon creates the document, or before the node is read.
    """
    answer = ask(operation, kind, {}, source, meanwhile=meanwhile)
    if answer is not None:
        return answer
    if meanwhile is not None:
        meanwhile()
    from nodeagent.cli.local_reading import read_preview  # noqa: PLC0415 - not needed if the daemon responds

    return read_preview(source, local)


def _print(
    operation: str,
    kind: type[L],
    source: Source,
    options: ListOptions,
    local: ReadPreviews[L],
    empty: str,
) -> None:
    @cache
    def request() -> ListRequest[Any]:
        from nodeagent.cli.list_request import ListRequest  # noqa: PLC0415 - imported while the daemon responds
        from nodeagent.cli.list_views import BY_OPERATION  # noqa: PLC0415 - imported while the daemon responds

        return ListRequest.of(BY_OPERATION[operation], options)

    document = read_list(operation, kind, source, local, meanwhile=request)
    request().print(document, empty=empty, now=document.observed_at)


async def _images(node: Previews) -> lists.Images:
    from nodeagent.gc.documents import list_readings as documents  # noqa: PLC0415 - not needed if the daemon responds

    return await documents.list_images(node)


async def _containers(node: Previews) -> lists.Containers:
    from nodeagent.gc.documents import list_readings as documents  # noqa: PLC0415 - not needed if the daemon responds

    return await documents.list_containers(node)


async def _pods(node: Previews) -> lists.Pods:
    from nodeagent.gc.documents import list_readings as documents  # noqa: PLC0415 - not needed if the daemon responds

    return await documents.list_pods(node)
