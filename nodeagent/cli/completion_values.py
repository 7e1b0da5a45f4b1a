"""Values of parameters for shell completion: image names, ids and pods from the running daemon, settings, documents.

The completion scripts of the shells are files beside this module. They pass each word as an argument, so that no shell
expands it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import typer  # noqa: TC002 - typer reads the annotations of the functions

WITHIN_S: Final = 1.5
"""Time limit of a completion, in seconds."""
_MOST_PASSES: Final = 200
_HARMLESS: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@+-]{0,511}")
"""Form of values without shell metacharacters; only these are offered, since they are inserted into a command line."""


def script(shell: str) -> str:
    """Return the completion script of ``bash``, ``zsh`` or ``fish``."""
    return (Path(__file__).parent / f"completion.{shell}").read_text(encoding="utf-8")


def image_names(ctx: typer.Context) -> list[str]:
    """Return the names of the images on the node."""
    return _asked(ctx, "Images", {}, _image_names)


def item_names(ctx: typer.Context) -> list[str]:
    """Return the names of the images and pods, and the ids of the containers on the node."""
    return [
        *image_names(ctx),
        *_asked(ctx, "PodList", {}, _pod_names),
        *_asked(ctx, "Containers", {}, _container_ids),
    ]


def namespaces(ctx: typer.Context) -> list[str]:
    """Return the namespaces of the pods on the node."""
    return list(dict.fromkeys(_asked(ctx, "PodList", {}, lambda found: (each["namespace"] for each in found["pods"]))))


def hold_ids(ctx: typer.Context) -> list[str]:
    """Return the ids of the holds."""
    return _asked(ctx, "Holds", {}, lambda document: (each["id"] for each in document["holds"]))


def pass_ids(ctx: typer.Context) -> list[str]:
    """Return the ids of the newest passes."""
    fields = {"limit": _MOST_PASSES, "quiet": True}
    return _asked(ctx, "History", fields, lambda document: (each["id"] for each in document["passes"]))


def reason_codes() -> list[str]:
    """Return all reason codes, and ``all``."""
    from nodeagent.model.reason_codes import ReasonCode  # noqa: PLC0415

    return ["all", *(each.value for each in ReasonCode)]


def setting_keys() -> list[str]:
    """Return the keys of all settings."""
    from nodeagent.config.validation import settings_of  # noqa: PLC0415
    from nodeagent.settings.settings import Config  # noqa: PLC0415 - slow to import

    return [each.key for each in settings_of(Config)]


def topic_names() -> list[str]:
    """Return the names of the documents of ``nodeagent help``."""
    from nodeagent.cli.help import topics  # noqa: PLC0415 - needed only here

    return [*topics()]


def _asked(
    ctx: typer.Context,
    operation: str,
    fields: Mapping[str, object],
    values_of: Callable[[dict[str, Any]], Iterator[str]],
) -> list[str]:
    """Return the values in an answer of the daemon; empty if the control API is disabled."""
    from nodeagent.api.client import ControlClient  # noqa: PLC0415 - needed only for values listed by the daemon
    from nodeagent.config.paths import read_socket_path  # noqa: PLC0415

    path = read_socket_path(ctx.params.get("config"))
    if path is None:
        return []
    import json  # noqa: PLC0415 - needed only during a completion

    document = json.loads(ControlClient(path).call(operation, fields, within_s=WITHIN_S))
    return [each for each in values_of(document) if _HARMLESS.fullmatch(each)]


def _image_names(document: dict[str, Any]) -> Iterator[str]:
    for each in document["images"]:
        yield from each["repo_tags"] or each["repo_digests"] or [each["id"]]


def _container_ids(document: dict[str, Any]) -> Iterator[str]:
    for each in document["containers"]:
        yield each["id"][:12]


def _pod_names(document: dict[str, Any]) -> Iterator[str]:
    for each in document["pods"]:
        yield f"{each['namespace']}/{each['name']}"
