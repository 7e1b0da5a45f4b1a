"""Differences between two garbage collection policies, by configuration key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nodeagent.plan.gc.saved_plan import encode_policy
from nodeagent.record import Record
from nodeagent.units import format_bytes, format_duration

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from nodeagent.plan.gc.policy import GCPolicy
    from nodeagent.plan.gc.saved_plan import Json

SETTINGS: Final[Mapping[str, str]] = {
    "images.high_threshold_percent": "image_gc.high_threshold_percent",
    "images.low_threshold_percent": "image_gc.low_threshold_percent",
    "images.minimum_age_s": "image_gc.minimum_age",
    "images.maximum_unused_age_s": "image_gc.maximum_unused_age",
    "images.minimum_gain_bytes": "image_gc.minimum_gain",
    "images.max_images_per_pass": "image_gc.max_images_per_pass",
    "images.max_bytes_per_pass": "image_gc.max_bytes_per_pass",
    "images.protection.rules": "protect.images",
    "images.protection.keep_last_n_tags_per_repository": "protect.keep_last_n_tags_per_repository",
    "images.protection.irreplaceable": "image_gc.irreplaceable",
    "images.protection.unreachable_registries": "image_gc.unreachable_registries",
    "containers.minimum_age_s": "container_gc.minimum_age",
    "containers.max_per_pod_container": "container_gc.max_per_pod_container",
    "containers.max_containers": "container_gc.max_containers",
    "containers.deleted_pod_grace_s": "container_gc.deleted_pod_grace",
    "containers.include_unlabelled": "container_gc.include_unlabelled",
    "sandboxes.minimum_age_s": "container_gc.sandbox_minimum_age",
    "sandboxes.include_unlabelled": "container_gc.include_unlabelled",
    "logs.minimum_age_s": "container_gc.log_minimum_age",
    "logs.period_s": "container_gc.interval",
}
"""Configuration key of each field of a policy, by the path of the field."""


class SettingDifference(Record):
    """One setting that differs between two policies.

    Attributes:
        setting: configuration key of the setting.
        before: value in the first policy, in the syntax of the configuration.
        after: value in the second policy, in the syntax of the configuration.
    """

    setting: str
    before: str
    after: str


def compare_policies(before: GCPolicy, after: GCPolicy) -> tuple[SettingDifference, ...]:
    """Return the settings that differ, in configuration order; for a list only the entries that differ."""
    old, new = dict(_values(encode_policy(before))), dict(_values(encode_policy(after)))
    found: dict[str, SettingDifference] = {}
    for path, setting in SETTINGS.items():
        if old[path] != new[path]:
            sides = _text(path, old[path], new[path]), _text(path, new[path], old[path])
            if sides[0] == sides[1]:  # equal only after rounding
                sides = str(old[path]), str(new[path])
            found.setdefault(setting, SettingDifference(setting, *sides))
    return tuple(found.values())


def _values(document: Mapping[str, Json], path: str = "") -> Iterator[tuple[str, Json]]:
    """Yield path and value of every field of an encoded policy."""
    for key, value in document.items():
        if isinstance(value, dict):
            yield from _values(value, f"{path}{key}.")
        else:
            yield f"{path}{key}", value


def _text(path: str, value: Json, other: Json) -> str:
    if isinstance(value, list) and isinstance(other, list):
        return ", ".join(str(each) for each in value if each not in other) or "-"
    if isinstance(value, bool):
        return str(value).lower()
    if path.endswith("_s") and isinstance(value, int | float):
        return format_duration(value)
    if "bytes" in path and isinstance(value, int):
        return format_bytes(value) if value else "0"
    return str(value)
