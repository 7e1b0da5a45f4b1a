"""``nodeagent doctor --fix-pin``: pin the sandbox image, so that the kubelet's image GC does not remove it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from nodeagent.cli.output import warn
from nodeagent.cli.session import open_for_command, run_async
from nodeagent.errors import NodeAgentError

if TYPE_CHECKING:
    from nodeagent.act.agent import Agent
    from nodeagent.config.settings import Settings
    from nodeagent.model import Image

_UNCHANGED: Final = "nodeagent: sandbox image not changed"
_READINGS: Final = 10
_INTERVAL_S: Final = 0.2


def fix_pin(settings: Settings) -> None:
    """Set the pinned label on every name of the sandbox image, and report whether CRI lists the image as pinned.

    Raises:
        NodeAgentError: the runtime is unavailable, does not support image labels, or rejects the change.

    Source: containerd CRI plugin, ``labels.PinnedImageLabelKey``.
    """
    run_async(_fix(settings))


async def _fix(settings: Settings) -> None:
    async with open_for_command(settings, record=False) as agent:
        name = (await agent.cri.status()).sandbox_image
        image = None if name is None else await _find(agent, name)
        if name is None:
            warn(f"{_UNCHANGED}: not reported by the runtime")
        elif image is None:
            warn(f"{_UNCHANGED}: {name} not found on the node")
        elif image.pinned:
            warn(f"{_UNCHANGED}: {name} is pinned")
        else:
            await _pin(agent, name, image)


async def _pin(agent: Agent, name: str, image: Image) -> None:
    labelled = [each for each in (*image.references, image.id) if await agent.storage.pin_image(each)]
    if not labelled:
        raise NodeAgentError(f"cannot pin {name}: containerd has none of its names")
    for _ in range(_READINGS):  # the CRI plugin updates its image store after an event of containerd
        found = await _find(agent, name)
        if found is not None and found.pinned:
            warn(f"nodeagent: pinned {name}")
            return
        await asyncio.sleep(_INTERVAL_S)
    warn(
        f"nodeagent: {name} has the pinned label, but the runtime does not report it as pinned: restart containerd, "
        "or update it"
    )


async def _find(agent: Agent, name: str) -> Image | None:
    """Return the CRI record of an image, with the field ``pinned`` that the kubelet reads; ``None`` if absent."""
    return next((each for each in await agent.cri.list_images() if name in each.references), None)
