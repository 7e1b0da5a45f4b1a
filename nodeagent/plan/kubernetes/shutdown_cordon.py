"""Cordon of a registered node for the time of a graceful shutdown, and its end.

The cordon of an operator, and that of the registration, are kept: the agent ends only a cordon of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from nodeagent.plan.kubernetes.registration import CORDONED_ANNOTATION

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nodeagent.model.kubernetes import Node

CORDONED_FOR_SHUTDOWN: Final = "shutdown"
"""Value of the annotation while the agent cordons the node for a shutdown."""


def is_cordoned_for_shutdown(found: Node) -> bool:
    """Return whether a shutdown of the node, an earlier one also, left its cordon."""
    return found.metadata.annotations.get(CORDONED_ANNOTATION) == CORDONED_FOR_SHUTDOWN


def plan_cordon(found: Node) -> Mapping[str, Any] | None:
    """Return the patch that cordons a node for its shutdown; ``None`` if it is unschedulable already.

    It fails with a conflict if the object has changed, since an operator may have cordoned it meanwhile.
    """
    if found.spec.unschedulable:
        return None
    return _patch(found, CORDONED_FOR_SHUTDOWN, {"unschedulable": True})


def plan_uncordon(found: Node) -> Mapping[str, Any] | None:
    """Return the patch that ends the cordon of an earlier or cancelled shutdown; ``None`` without such a cordon.

    The node was schedulable before the shutdown. If it is registered unschedulable, an operator has uncordoned it. The
    patch fails with a conflict if the Node object has changed.
    """
    if not is_cordoned_for_shutdown(found):
        return None
    if not found.spec.unschedulable:  # an operator ended it
        return _patch(found, None, {})
    return _patch(found, None, {"unschedulable": None})


def _patch(found: Node, annotation: str | None, spec: dict[str, Any]) -> dict[str, Any]:
    metadata = {"resourceVersion": found.metadata.resource_version, "annotations": {CORDONED_ANNOTATION: annotation}}
    return {"metadata": metadata, **({"spec": spec} if spec else {})}
