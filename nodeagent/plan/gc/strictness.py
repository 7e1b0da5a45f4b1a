"""The stricter of two garbage collection policies, field by field.

A saved plan contains the policy with which it was created. A plan may be outdated, or be of a user with fewer
permissions than the author of the configuration. Its policy may therefore only restrict the current policy: every field
is set to the value that keeps more items. A field without a declared rule raises an error, so that a plan cannot
override a new setting unnoticed.
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
"""Function of the saved and the current value of a field that returns the value that keeps more items."""


def stricter(saved: GCPolicy, current: GCPolicy) -> GCPolicy:
    """Return the policy with the stricter value of each field, which keeps every item that one of the policies keeps.

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
    """Return the larger value; the current value if the values cannot be compared (NaN)."""
    return max(current, saved)


def _smaller_limit(saved: int, current: int) -> int:
    """Return the smaller limit on removals; a limit of 0 is no limit."""
    limits = [each for each in (saved, current) if each > 0]
    return min(limits, default=0)


def _larger_keep_limit(saved: int, current: int) -> int:
    """Return the larger number of items to keep; a negative number keeps all items."""
    return -1 if saved < 0 or current < 0 else max(saved, current)


def _larger_or_off(saved: float, current: float) -> float:
    """Return the larger maximum age, or 0, which disables removal by age, if one of the ages is 0."""
    return _larger(saved, current) if saved > 0 and current > 0 else 0.0


def _only_if_both(saved: bool, current: bool) -> bool:  # noqa: FBT001 - values of a setting
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
"""Strictness rule of each field, by policy type and field name."""
