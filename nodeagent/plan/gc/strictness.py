"""The stricter of two garbage collection policies, field by field.

A saved plan contains the policy under which it was made. The plan is data that may be old, or from a caller with
fewer rights than the author of the configuration, so its policy may only restrict the policy in force: every field gets
the value that keeps more items. A field without a declared rule is an error, never a default, so that a new setting
cannot be overridden by a plan unnoticed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from nodeagent.plan.gc.image_origin import Irreplaceable
from nodeagent.plan.gc.image_protection import ProtectionPolicy
from nodeagent.plan.gc.policy import ContainerGCPolicy, GCPolicy, ImageGCPolicy, PodLogPolicy, SandboxGCPolicy
from nodeagent.record import Record, replace

_Policy = TypeVar("_Policy", bound=Record)
Rule = Callable[[Any, Any], Any]
"""Receives the plan's value and the value in force; returns the one that keeps more items."""


def stricter(saved: GCPolicy, current: GCPolicy) -> GCPolicy:
    """Return the policy with the stricter value of each field: it keeps every item that either policy keeps.

    Raises:
        TypeError: a field of a policy has no rule in ``STRICTNESS``.
    """
    return _stricter(saved, current)


def _stricter(saved: _Policy, current: _Policy) -> _Policy:
    rules = STRICTNESS.get(type(current), {})
    chosen = {}
    for name in type(current).__struct_fields__:
        rule = rules.get(name)
        if rule is None:
            raise TypeError(f"{type(current).__name__}.{name} has no strictness rule")
        chosen[name] = rule(getattr(saved, name), getattr(current, name))
    return replace(current, **chosen)


def _larger(saved: float, current: float) -> float:
    """Return the larger value; the first one, which is in force, if they cannot be compared (NaN)."""
    return max(current, saved)


def _smaller_limit(saved: int, current: int) -> int:
    """Return the smaller limit on removals, where 0 means no limit."""
    limits = [each for each in (saved, current) if each > 0]
    return min(limits, default=0)


def _larger_keep_limit(saved: int, current: int) -> int:
    """Return the larger number of kept items, where a negative number keeps all."""
    return -1 if saved < 0 or current < 0 else max(saved, current)


def _larger_or_off(saved: float, current: float) -> float:
    """Return the larger maximum age, where 0 disables removal by age."""
    return _larger(saved, current) if saved > 0 and current > 0 else 0.0


def _only_if_both(saved: bool, current: bool) -> bool:  # noqa: FBT001 - values of a setting, not flags
    return saved and current


def _stricter_treatment(saved: Irreplaceable, current: Irreplaceable) -> Irreplaceable:
    return max(saved, current, key=(Irreplaceable.IGNORE, Irreplaceable.LAST, Irreplaceable.NEVER).index)


def _union(saved: tuple[object, ...], current: tuple[object, ...]) -> tuple[object, ...]:
    return tuple(dict.fromkeys((*saved, *current)))


STRICTNESS: Final[Mapping[type, Mapping[str, Rule]]] = {
    GCPolicy: dict.fromkeys(("images", "containers", "sandboxes", "logs"), _stricter),
    ImageGCPolicy: {
        "high_threshold_percent": _larger,
        "low_threshold_percent": _larger,
        "minimum_age_s": _larger,
        "maximum_unused_age_s": _larger_or_off,
        "minimum_gain_bytes": _larger,
        "max_images_per_pass": _smaller_limit,
        "max_bytes_per_pass": _smaller_limit,
        "protection": _stricter,
    },
    ProtectionPolicy: {
        "rules": _union,
        "keep_last_n_tags_per_repository": _larger,
        "irreplaceable": _stricter_treatment,
        "unreachable_registries": _union,
    },
    ContainerGCPolicy: {
        "minimum_age_s": _larger,
        "max_per_pod_container": _larger_keep_limit,
        "max_containers": _larger_keep_limit,
        "deleted_pod_grace_s": _larger,
        "include_unlabelled": _only_if_both,
    },
    SandboxGCPolicy: {
        "minimum_age_s": _larger,
        "include_unlabelled": _only_if_both,
    },
    PodLogPolicy: {
        "minimum_age_s": _larger,
        "period_s": _larger,
    },
}
"""The rule of each field, by policy type."""
