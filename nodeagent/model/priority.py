"""Pod priorities reserved for system pods.

Source: Kubernetes ``pkg/apis/scheduling/types.go``.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

CRITICAL_PRIORITY: Final = 2_000_000_000
"""Lowest priority of a critical pod. Source: ``SystemCriticalPriority``."""

NODE_CRITICAL_PRIORITY: Final = CRITICAL_PRIORITY + 1000
"""Priority of ``system-node-critical``. Source: ``SystemCriticalPriority`` plus 1000."""

CRITICAL_CLASS_PRIORITIES: Final[Mapping[str, int]] = MappingProxyType(
    {"system-node-critical": NODE_CRITICAL_PRIORITY, "system-cluster-critical": CRITICAL_PRIORITY}
)
"""Priority of each critical priority class, for manifests that name only the class."""
