"""Fixtures of nodes with a served control API."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from nodeagent.record import replace
from tests.sim.content import Layer
from tests.unit.control_node import MEMBER, Node, served_to_member, serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with serving(tmp_path) as made:
        yield made


@pytest.fixture
def as_actor(node: Node) -> Node:
    """Return the node with an unprivileged group member with write access as the caller."""
    node.peer[0] = MEMBER
    settings = node.context.settings
    node.context.settings = replace(settings, control=replace(settings.control, group_may_act=True))
    return node


@pytest.fixture
async def kept(tmp_path: Path) -> AsyncIterator[Node]:
    """Yield a node that keeps its two dead containers, with an unused image, served to a group member."""
    async with served_to_member(tmp_path, max_per_pod_container=5) as made:
        made.sim.add_image("registry.example/old:v1", layers=[Layer("old", 1 << 20)], age_s=90 * 86_400)
        yield made
