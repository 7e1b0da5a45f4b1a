"""Source of the document of a command."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping
    from os import PathLike
    from typing import Any

    from nodeagent.act.agent import Agent
    from nodeagent.api.codec import Document

    ReadNode = Callable[[Agent], Coroutine[Any, Any, Document]]
    """Creates the document from an agent of this node, with deferred imports."""


class Source(NamedTuple):
    """The source of a command's document.

    Attributes:
        config: configuration file of the command; ``None`` for the default one.
        overrides: settings of the command line, by key.
        direct: whether the node is read even if a daemon is running.
    """

    config: str | PathLike[str] | None = None
    overrides: Mapping[str, str | int] = {}
    direct: bool = False
