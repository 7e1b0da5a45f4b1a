"""Display names of containers and sandboxes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodeagent.model.workload import LABEL_POD_NAME, LABEL_POD_NAMESPACE

if TYPE_CHECKING:
    from nodeagent.model import Container, Sandbox


def container_name(container: Container) -> str:
    """Return ``namespace/pod/container``; without kubelet labels the container's own name, else its id."""
    labels = container.labels
    if LABEL_POD_NAME in labels:
        return f"{labels.get(LABEL_POD_NAMESPACE, '')}/{labels[LABEL_POD_NAME]}/{container.name}"
    return container.name or container.id


def sandbox_name(sandbox: Sandbox) -> str:
    """Return ``namespace/pod``, or the id of a sandbox without a name."""
    return f"{sandbox.namespace}/{sandbox.name}" if sandbox.name else sandbox.id
