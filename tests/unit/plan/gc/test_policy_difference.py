"""Comparison of policies by setting."""

from __future__ import annotations

from nodeagent.config.models import Config
from nodeagent.config.policies import policies
from nodeagent.config.toml_writer import settings_of
from nodeagent.plan.gc.image_protection import ProtectionPolicy, parse_rule
from nodeagent.plan.gc.policy_difference import SETTINGS, SettingDifference, compare_policies
from nodeagent.plan.gc.saved_plan import encode_policy
from nodeagent.record import replace

POLICY = policies(Config())


def test_every_field_of_a_policy_has_a_setting() -> None:
    def paths(value: object, path: str = "") -> set[str]:
        if not isinstance(value, dict):
            return {path.removesuffix(".")}
        return set().union(*(paths(each, f"{path}{key}.") for key, each in value.items()))

    assert SETTINGS.keys() == paths(encode_policy(POLICY))
    known = {f"{each.section}.{each.name}" for each in settings_of(Config())}
    assert set(SETTINGS.values()) <= known


def test_equal_policies_have_no_difference() -> None:
    assert compare_policies(POLICY, policies(Config())) == ()


def test_difference_has_the_setting_and_both_values_as_in_the_configuration() -> None:
    images = replace(
        POLICY.images,
        high_threshold_percent=70,
        minimum_age_s=5400.0,
        max_bytes_per_pass=2 << 30,
        protection=ProtectionPolicy((parse_rule("r/a"), parse_rule("r/b")), 0),
    )
    sandboxes = replace(POLICY.sandboxes, include_unlabelled=True)
    containers = replace(POLICY.containers, include_unlabelled=True)
    changed = replace(POLICY, images=images, sandboxes=sandboxes, containers=containers)
    assert compare_policies(POLICY, changed) == (
        SettingDifference("image_gc.high_threshold_percent", "85", "70"),
        SettingDifference("image_gc.minimum_age", "2m", "1h30m"),
        SettingDifference("image_gc.max_bytes_per_pass", "0", "2.00 GiB"),
        SettingDifference("protect.images", "-", "r/a, r/b"),
        SettingDifference("container_gc.include_unlabelled", "false", "true"),
    )


def test_values_with_equal_rounding_are_shown_exactly() -> None:
    one, other = (
        replace(POLICY, images=replace(POLICY.images, minimum_age_s=86_400.0 + seconds)) for seconds in (1.0, 2.0)
    )
    assert compare_policies(one, other) == (SettingDifference("image_gc.minimum_age", "86401.0", "86402.0"),)
