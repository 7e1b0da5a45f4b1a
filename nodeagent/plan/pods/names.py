"""Display names of containers and sandboxes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nodeagent.model.workload import Container, Sandbox


def container_name(container: Container) -> str:
    """Return ``namespace/pod/container``; without kubelet labels the container name, or its id without a name."""
    return container.display_name


def sandbox_name(sandbox: Sandbox) -> str:
    """Return ``namespace/pod``, or the id of a sandbox without a name."""
    return f"{sandbox.namespace}/{sandbox.name}" if sandbox.name else sandbox.id
