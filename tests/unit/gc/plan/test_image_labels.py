"""Images kept or selected by their labels, and images whose labels are unknown."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given, strategies as st

from nodeagent.gc.pass_state import plans_for
from nodeagent.gc.plan.explanation import explain
from nodeagent.gc.plan.image_protection import ProtectionPolicy, labels_named, parse_rule
from nodeagent.gc.plan.images import plan_image_gc
from nodeagent.gc.plan.policy import GCPolicy, ImageGCPolicy, Scope
from nodeagent.model.node import Hold, NodeSnapshot
from nodeagent.model.runtime import Label, LabelReading
from nodeagent.record import replace
from tests.unit.builders import NOW, codes, decided, filesystem, image, removed, snapshot, used
from tests.unit.gc_strategies import EXAMPLES

KEEP: Label = ("keep", "yes")
ANY: Label = ("keep", None)


def policy(*rules: str) -> ImageGCPolicy:
    return ImageGCPolicy(protection=ProtectionPolicy(tuple(map(parse_rule, rules))))


def node(*asked: Label, unread: tuple[str, ...] = (), holds: tuple[str, ...] = ()) -> NodeSnapshot:
    """Return a full node with the images ``a``, with the label ``keep=yes``, and ``b``."""
    labelled = replace(image("a"), labels=frozenset({KEEP, ANY} & set(asked)))
    until = NOW + timedelta(hours=1)
    return snapshot(
        (labelled, used(9)),
        (image("b"), used(8)),
        image_filesystem=filesystem(100),
        label_reading=LabelReading(frozenset(asked), dict.fromkeys(unread, "call failed")),
        holds=tuple(Hold("1", each, "test", "root", NOW, until) for each in holds),
    )


@pytest.mark.parametrize(
    ("rules", "observed", "expected"),
    [
        pytest.param(["label:keep=yes"], node(KEEP), {"a": "protected"}, id="value"),
        pytest.param(["label:keep"], node(ANY), {"a": "protected"}, id="any value"),
        pytest.param(["label:keep=no"], node(("keep", "no")), {}, id="other value"),
        pytest.param(["label:keep"], node(ANY, unread=("b",)), {"a": "protected", "b": "labels-unknown"}, id="unread"),
        pytest.param(["registry.example/b"], node(ANY, unread=("a",)), {"b": "protected"}, id="no rule names a label"),
        pytest.param(
            ["registry.example/b", "label:x"], node(("x", None), unread=("b",)), {"b": "protected"}, id="both"
        ),
        pytest.param(["label:keep"], node(KEEP), {"a": "labels-unknown", "b": "labels-unknown"}, id="another was read"),
        pytest.param([], node(ANY, holds=("label:keep",)), {"a": "held"}, id="hold"),
        pytest.param([], node(ANY, unread=("b",), holds=("label:keep",)), {"a": "held", "b": "labels-unknown"}, id="h"),
        pytest.param(
            [], node(holds=(" label:keep ",)), {"a": "labels-unknown", "b": "labels-unknown"}, id="hold placed later"
        ),
    ],
)
def test_image_with_a_label_or_with_unknown_labels_is_kept(
    rules: list[str], observed: NodeSnapshot, expected: dict[str, str]
) -> None:
    plan = plan_image_gc(observed, policy(*rules), remove_all_unused=True)
    assert {each: code for each, code in codes(plan).items() if each not in removed(plan)} == expected


def test_reason_names_the_rule_or_the_cause() -> None:
    observed = node(KEEP, unread=("b",))
    plan = plan_image_gc(observed, policy("label:keep=yes"))
    assert decided(plan, "a").reason.sentence == "protected by label:keep=yes, which matches label keep=yes"
    assert decided(plan, "b").reason.sentence == ("labels unknown, and a rule or a hold names a label: call failed")
    (found,) = explain(observed, GCPolicy(images=policy("label:keep=yes")), (plan,), "b")
    assert found.when.startswith("once its labels are known; then ")


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["nginx", "regex:label:x", "sha256:" + "a" * 64], set()),
        (["label:a", " label:b=c=d "], {("a", None), ("b", "c=d")}),
    ],
)
def test_labels_are_read_only_for_rules_that_name_labels(texts: list[str], expected: set[Label]) -> None:
    assert labels_named(texts) == expected


@pytest.mark.parametrize(("pattern", "expected"), [("label:keep=yes", ["a"]), ("label:keep", ["a"])])
def test_images_are_selected_by_a_label(pattern: str, expected: list[str]) -> None:
    observed = node(KEEP, ANY, unread=("b",))
    (plan,) = plans_for(Scope.IMAGES, observed, GCPolicy(), None, (pattern,))
    assert removed(plan) == expected


LABELS = st.frozensets(st.sampled_from([("k", None), ("k", "1"), ("k", "2"), ("l", None), ("l", "1")]))


@EXAMPLES
@given(st.lists(LABELS, min_size=1, max_size=6), LABELS, LABELS, st.sets(st.integers(0, 5)), st.booleans())
def test_image_is_removable_only_if_it_is_known_to_have_no_named_label(
    labels: list[frozenset[Label]],
    named: frozenset[Label],
    asked: frozenset[Label],
    unread: set[int],
    by_hold: bool,
) -> None:
    texts = [f"label:{key}" if value is None else f"label:{key}={value}" for key, value in sorted(named, key=str)]
    until = NOW + timedelta(hours=1)
    observed = snapshot(
        *((replace(image(str(number)), labels=own), used(9)) for number, own in enumerate(labels)),
        image_filesystem=filesystem(100),
        label_reading=LabelReading(asked, {str(each): "call failed" for each in unread}),
        holds=tuple(Hold(each, each, "", "root", NOW, until) for each in texts) if by_hold else (),
    )
    plan = plan_image_gc(observed, policy(*(() if by_hold else texts)), remove_all_unused=True)
    expected = {
        str(number)
        for number, own in enumerate(labels)
        if not named or (named <= asked and number not in unread and not named & own)
    }
    assert set(removed(plan)) == expected
