"""What the agent answers is shown as the command's own look would be."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from nodeagent.act.gc.preview import plans_for
from nodeagent.api import documents as document
from nodeagent.cli import control_answers as told
from nodeagent.model import ContainerState, Hold
from nodeagent.plan.gc.images import ImageGCPolicy
from nodeagent.plan.gc.planner import GCPolicy
from nodeagent.plan.gc.scope import Scope
from nodeagent.plan.gc.storage_breakdown import Breakdown, Part, Share
from nodeagent.store.history import PastAction, PastPass
from tests.unit.builders import NOW, container, filesystem, image, log_directory, sandbox, snapshot


def through_json(shown: Any) -> Any:
    return json.loads(document.dumps(shown, "json"))


@pytest.mark.parametrize("percent", [50, 95])
@pytest.mark.parametrize("scope", [Scope.IMAGES, Scope.CONTAINERS, Scope.ALL])
def test_a_preview_comes_through_whole(scope: Scope, percent: int) -> None:
    seen = replace(
        snapshot(image("a"), image("b"), image("c")),
        containers=(container("c1", state=ContainerState.EXITED), container("c2", state=ContainerState.RUNNING)),
        sandboxes=(sandbox("web"), sandbox("db", ready=True)),
        pod_log_directories=(log_directory("uid-gone"),),
        image_filesystem=filesystem(percent),
        warnings=("careful",),
    )
    plans = plans_for(scope, seen, GCPolicy(images=ImageGCPolicy(minimum_age_s=0)))
    shown = through_json(document.preview(scope.value, seen, plans))
    again, their_plans = told.preview(shown)
    assert through_json(document.preview(scope.value, again, their_plans)) == shown
    ours = [each.reason.sentence for plan in plans for each in plan.decisions]
    assert [each.reason.sentence for plan in their_plans for each in plan.decisions] == ours
    assert ours


def test_history_comes_through_whole() -> None:
    action = PastAction("image", "sha256:1", "app:v1", ("app:v1",), "done", "", "all-unused", "unused", 5, 0.5)
    past = PastPass(
        "p1", NOW, 1.5, "interval", "images", "", False, "complete", "", 5, 4, 90, 80, (action,), '{"signal": "x"}'
    )
    shown = through_json(document.history([past], []))
    assert told.passes(shown) == (past,)


def test_holds_come_through_whole() -> None:
    hold = Hold("1", "", "all of them", "ann", NOW, NOW + timedelta(hours=1))
    assert told.holds(through_json(document.holds([hold], NOW))) == (hold,)


@pytest.mark.parametrize("exact", [True, False])
def test_breakdown_comes_through_whole(exact: bool) -> None:
    shares = (Share(Part.IMAGES_IN_USE, 7, (("app:v1 (shop/web)", 7),)), Share(Part.OTHER, 5, (), exact=False))
    value = Breakdown(filesystem(91), shares, exact)
    again = told.breakdown(through_json(document.breakdown(value)))
    assert (again.shares, again.exact) == (value.shares, value.exact)
    assert again.filesystem.used_percent == 91


def test_breakdown_without_a_reading_is_an_error() -> None:
    with pytest.raises(ValueError, match="imagefs is null"):
        told.breakdown({"imagefs": None, "shares": [], "exact": True})
