"""Selection of the source of a command's document: the running daemon or the node."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from nodeagent.config.paths import has_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping
    from os import PathLike
    from typing import Any

    from nodeagent.api.codec import Document
    from nodeagent.gc.agent import Agent

    D = TypeVar("D", bound=Document)
    ReadNode = Callable[[Agent], Coroutine[Any, Any, D]]
    """Function that creates the document from an agent of this node; its imports are deferred."""


class Source(NamedTuple):
    """Options that select the daemon or the node as the source of a command's document.

    Attributes:
        config: configuration file of the command; ``None`` for the default file.
        overrides: settings of the command line, by key.
        direct: whether the node is read even if a daemon is running.
    """

    config: str | PathLike[str] | None = None
    overrides: Mapping[str, str | int] = {}
    direct: bool = False


def is_client(
    config: str | PathLike[str] | None, overrides: Mapping[str, object], *, root_too: bool, direct: bool = False
) -> bool:
    """Return whether a command uses a running daemon; arguments: see ``control_client.daemon_for_user``."""
    allowed = os.geteuid() != 0 or root_too
    return allowed and not direct and config is None and not overrides and not has_settings(os.environ)
