"""The stricter of two policies: every field has a rule, and every rule selects the value that keeps more items."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.plan.gc.image_origin import Irreplaceable
from nodeagent.plan.gc.image_protection import ProtectionPolicy, parse_rule
from nodeagent.plan.gc.policy import ContainerGCPolicy, GCPolicy, ImageGCPolicy, PodLogPolicy, SandboxGCPolicy
from nodeagent.plan.gc.strictness import STRICTNESS, stricter
from nodeagent.record import Record, replace

A, B = parse_rule("a/*"), parse_rule("b/*")


def policy_types(value: Record) -> set[type[Record]]:
    """Return the types of a policy and of all nested policies."""
    found = {type(value)}
    for name in value.__struct_fields__:
        inner = getattr(value, name)
        if isinstance(inner, Record):
            found |= policy_types(inner)
    return found


def field_paths(value: Record, *path: str) -> set[str]:
    """Return the dotted names of all settings in a policy."""
    found: set[str] = set()
    for name in value.__struct_fields__:
        inner = getattr(value, name)
        found |= field_paths(inner, *path, name) if isinstance(inner, Record) else {".".join((*path, name))}
    return found


def with_field(policy: Any, path: str, value: object) -> Any:
    name, _, rest = path.partition(".")
    return replace(policy, **{name: with_field(getattr(policy, name), rest, value) if rest else value})


def field(policy: Any, path: str) -> object:
    for name in path.split("."):
        policy = getattr(policy, name)
    return policy


CASES: dict[str, list[tuple[object, object, object]]] = {
    "images.high_threshold_percent": [(1, 85, 85), (90, 85, 90), (100, 85, 100)],
    "images.low_threshold_percent": [(0, 80, 80), (84, 80, 84)],
    "images.minimum_age_s": [(0.0, 120.0, 120.0), (300.0, 120.0, 300.0), (float("nan"), 120.0, 120.0)],
    "images.maximum_unused_age_s": [(1.0, 0.0, 0.0), (0.0, 60.0, 0.0), (1.0, 60.0, 60.0), (90.0, 60.0, 90.0)],
    "images.minimum_gain_bytes": [(0, 5, 5), (9, 5, 9)],
    "images.max_images_per_pass": [(0, 3, 3), (3, 0, 3), (9, 3, 3), (2, 3, 2), (0, 0, 0), (-1, 3, 3)],
    "images.max_bytes_per_pass": [(0, 3, 3), (3, 0, 3), (9, 3, 3), (2, 3, 2), (0, 0, 0)],
    "images.protection.rules": [((), (A,), (A,)), ((A,), (), (A,)), ((B, A), (A,), (B, A))],
    "images.protection.keep_last_n_tags_per_repository": [(0, 2, 2), (3, 2, 3)],
    "images.protection.irreplaceable": [
        (Irreplaceable.IGNORE, Irreplaceable.LAST, Irreplaceable.LAST),
        (Irreplaceable.NEVER, Irreplaceable.LAST, Irreplaceable.NEVER),
        (Irreplaceable.LAST, Irreplaceable.IGNORE, Irreplaceable.LAST),
    ],
    "images.protection.unreachable_registries": [((), ("a",), ("a",)), (("b", "a"), ("a",), ("b", "a"))],
    "containers.minimum_age_s": [(0.0, 60.0, 60.0), (90.0, 60.0, 90.0)],
    "containers.max_per_pod_container": [(0, 1, 1), (5, 1, 5), (-1, 1, -1), (0, -1, -1)],
    "containers.max_containers": [(0, 10, 10), (20, 10, 20), (-1, 10, -1), (0, -1, -1)],
    "containers.deleted_pod_grace_s": [(0.0, 300.0, 300.0), (600.0, 300.0, 600.0)],
    "containers.include_unlabelled": [(True, False, False), (False, True, False), (True, True, True)],
    "sandboxes.minimum_age_s": [(0.0, 60.0, 60.0), (90.0, 60.0, 90.0)],
    "sandboxes.include_unlabelled": [(True, False, False), (False, True, False), (True, True, True)],
    "logs.minimum_age_s": [(0.0, 300.0, 300.0), (600.0, 300.0, 600.0)],
    "logs.period_s": [(0.0, 60.0, 60.0), (90.0, 60.0, 90.0)],
}


def test_every_field_of_every_policy_has_a_strictness_rule() -> None:
    """Fail for a new setting until its strictness rule is declared."""
    types = policy_types(GCPolicy())
    assert set(STRICTNESS) == types
    for each in types:
        assert set(STRICTNESS[each]) == set(each.__struct_fields__), each.__name__


def test_every_policy_field_has_a_test_case() -> None:
    assert set(CASES) == field_paths(GCPolicy())


def test_field_without_a_rule_is_an_error() -> None:
    class Newer(PodLogPolicy):
        unheard_of_s: float = 0.0

    with pytest.raises(TypeError, match="has no strictness rule"):
        stricter(GCPolicy(), replace(GCPolicy(), logs=Newer()))


@pytest.mark.parametrize(
    ("path", "saved", "current", "expected"), [(path, *case) for path, cases in CASES.items() for case in cases]
)
def test_value_that_keeps_more_items_applies(path: str, saved: object, current: object, expected: object) -> None:
    made = stricter(with_field(GCPolicy(), path, saved), with_field(GCPolicy(), path, current))
    assert field(made, path) == expected
    assert with_field(made, path, None) == with_field(GCPolicy(), path, None)


LIMITS = st.sampled_from([0, 1, 2, 5])
AGES = st.sampled_from([0.0, 60.0, 3600.0])


@st.composite
def image_policies(draw: st.DrawFn) -> ImageGCPolicy:
    high, minimum_s = draw(st.integers(1, 100)), draw(AGES)
    return ImageGCPolicy(
        high,
        draw(st.integers(0, high - 1)),
        minimum_s,
        draw(st.sampled_from([0.0, minimum_s + 1, minimum_s + 1000])),
        draw(LIMITS),
        draw(LIMITS),
        draw(LIMITS),
        ProtectionPolicy(tuple(draw(st.sets(st.sampled_from([A, B])))), draw(LIMITS)),
    )


POLICIES = st.builds(
    GCPolicy,
    images=image_policies(),
    containers=st.builds(ContainerGCPolicy, AGES, st.integers(-1, 3), st.integers(-1, 3), AGES, st.booleans()),
    sandboxes=st.builds(SandboxGCPolicy, AGES, st.booleans()),
    logs=st.builds(PodLogPolicy, AGES, AGES),
)


@given(POLICIES, POLICIES)
def test_stricter_policy_is_valid_and_as_strict_as_both(one: GCPolicy, other: GCPolicy) -> None:
    made = stricter(one, other)
    assert made.images.low_threshold_percent < made.images.high_threshold_percent
    assert not 0 < made.images.maximum_unused_age_s <= made.images.minimum_age_s
    for each in (one, other):
        again = stricter(made, each)
        assert set(again.images.protection.rules) == set(made.images.protection.rules)
        assert with_field(again, "images.protection.rules", ()) == with_field(made, "images.protection.rules", ())
    assert stricter(one, one) == one
