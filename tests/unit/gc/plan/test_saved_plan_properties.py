"""Property tests of saved plans, including forged plans."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from hypothesis import given, settings, strategies as st

from nodeagent.gc.pass_state import plans_for, plans_for_saved
from nodeagent.gc.plan.image_protection import keep_reasons
from nodeagent.gc.plan.planner import plan_containers
from nodeagent.gc.plan.policy import Scope
from nodeagent.gc.plan.saved_plan import SavedItem, SavedPlan, item_digests
from nodeagent.model.decision import ItemKind, Plan, Verdict
from nodeagent.model.runtime import ImageUsage
from tests.unit.builders import NOW, removed
from tests.unit.gc_strategies import EXAMPLES, PODS, image_id, nodes, policies

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nodeagent.gc.plan.policy import GCPolicy
    from nodeagent.model.node import NodeSnapshot


ANY_ID = st.one_of(
    st.sampled_from([f"c{number}" for number in range(10)] + [f"sb-{pod}" for pod in PODS]),
    st.integers(0, 8).map(image_id),
)


def saved_plan(scope: Scope, node: NodeSnapshot, plans: tuple[Plan, ...], forged: Iterable[str]) -> SavedPlan:
    """Return a saved plan with the removals of ``plans`` and with forged removals of further image ids of ``node``."""
    digests = item_digests(node)
    removals = {(each.kind, each.id) for plan in plans for each in plan.removals}
    removals |= {(ItemKind.IMAGE, each) for each in forged}
    items = [
        SavedItem(kind, item_id, item_id, Verdict.REMOVE, "all-unused", "", None, digests.get((kind, item_id), ""))
        for kind, item_id in sorted(removals)
    ]
    return SavedPlan("id", NOW, NOW + timedelta(hours=1), "node", scope, tuple(items))


@settings(EXAMPLES)
@given(
    st.sampled_from([Scope.IMAGES, Scope.CONTAINERS, Scope.ALL]),
    nodes(),
    nodes(),
    policies(),
    policies(),
    st.sets(ANY_ID),
)
def test_applying_any_plan_removes_only_listed_items_that_a_new_plan_removes(  # noqa: PLR0917
    scope: Scope, then: NodeSnapshot, now: NodeSnapshot, policy: GCPolicy, current: GCPolicy, forged: set[str]
) -> None:
    saved = saved_plan(scope, now, plans_for(scope, then, policy), forged)
    listed = {item.id for item in saved.removals}
    plans, drift = plans_for_saved(saved, now, current)
    removed_ids = {each.id for plan in plans for each in plan.removals}
    assert removed_ids <= listed
    assert removed_ids <= {each.id for plan in plans_for(scope, now, current) for each in plan.removals}
    assert removed_ids | {each.item.id for each in drift} == listed
    assert not {(each.item.kind, each.item.id) for each in drift} & {
        (each.kind, each.id) for plan in plans for each in plan.removals
    }
    if scope is not Scope.IMAGES:
        everything = {each.id for plan in plan_containers(now, current).plans for each in plan.removals}
        assert {each.id for plan in plans if plan.kind == "containers" for each in plan.removals} <= everything


@settings(EXAMPLES)
@given(nodes(), policies(), st.sets(ANY_ID))
def test_applying_a_forged_image_plan_removes_no_image_that_the_policy_in_force_keeps(
    node: NodeSnapshot, current: GCPolicy, forged: set[str]
) -> None:
    """Check the removed images with the keep rules of the current policy, without the planner."""
    saved = saved_plan(Scope.IMAGES, node, (), [each.id for each in node.images] + sorted(forged))
    (plan,) = plans_for_saved(saved, node, current)[0]
    rules = current.images
    assert keep_reasons(node, rules.protection, removed(plan)) == dict.fromkeys(removed(plan), ())
    if rules.max_images_per_pass:
        assert len(plan.removals) <= rules.max_images_per_pass
    fs = node.image_filesystem
    over = fs is not None and rules.high_threshold_percent < 100 and fs.used_percent >= rules.high_threshold_percent
    for image in removed(plan):
        usage = node.image_usage.get(image, ImageUsage(NOW, None))
        unused_s = (NOW - (usage.last_used or usage.first_detected)).total_seconds()
        age_s = (NOW - usage.first_detected).total_seconds()
        by_age = 0 < rules.maximum_unused_age_s < unused_s
        assert by_age or (over and age_s >= rules.minimum_age_s)
