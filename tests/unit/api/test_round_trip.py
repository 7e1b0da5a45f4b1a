"""Round trip of documents: decoding returns the encoded values."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from nodeagent.api.common import decode, encode
from nodeagent.gc.documents.history import HistoryDocument
from nodeagent.gc.documents.holds import HoldList
from nodeagent.gc.documents.passes import DiskUsageDocument, PreviewDocument
from nodeagent.gc.pass_state import plans_for
from nodeagent.gc.plan.breakdown import Breakdown, Member, Share, UsageCategory
from nodeagent.gc.plan.policy import GCPolicy, ImageGCPolicy, Scope
from nodeagent.model.clock import TRUSTED
from nodeagent.model.node import Hold
from nodeagent.model.runtime import ContainerState
from nodeagent.record import replace
from nodeagent.store.history import PastAction, PastPass
from tests.unit.builders import NOW, container, filesystem, image, log_directory, sandbox, snapshot


@pytest.mark.parametrize("percent", [50, 95])
@pytest.mark.parametrize("scope", [Scope.IMAGES, Scope.CONTAINERS, Scope.ALL])
def test_preview_round_trip_keeps_snapshot_and_plans(scope: Scope, percent: int) -> None:
    observed = replace(
        snapshot(image("a"), image("b"), image("c")),
        containers=(container("c1", state=ContainerState.EXITED), container("c2", state=ContainerState.RUNNING)),
        sandboxes=(sandbox("web"), sandbox("db", ready=True)),
        pod_log_directories=(log_directory("uid-deleted"), log_directory("\udcff")),
        image_filesystem=filesystem(percent),
        warnings=("careful",),
    )
    plans = plans_for(scope, observed, GCPolicy(images=ImageGCPolicy(minimum_age_s=0)))
    text = encode(PreviewDocument.of(scope.value, observed, plans))
    decoded = decode(text, PreviewDocument)
    decoded_plans = tuple(each.to_model() for each in decoded.plans)
    assert encode(decoded) == text
    assert encode(PreviewDocument.of(scope.value, decoded.snapshot(), decoded_plans)) == text
    sentences = [each.reason.sentence for plan in plans for each in plan.decisions]
    assert [each.reason.sentence for plan in decoded_plans for each in plan.decisions] == sentences
    assert sentences


def test_history_round_trip_keeps_passes() -> None:
    action = PastAction("image", "sha256:1", "app:v1", ("app:v1",), "done", "", "all-unused", "unused", 5, 0.5)
    record = '{"signal": "x"}'
    past = PastPass(
        "p1", NOW, 1.5, "interval", "images", "", False, "complete", "", 5, 4, 90, 80, (action,), record, 0.25
    )
    document = HistoryDocument.of([past], [])
    assert decode(encode(document), HistoryDocument) == document
    assert document.passes[0].eviction == json.loads(record)
    assert document.passes[0].settled_s == 0.25


def test_hold_list_round_trip_keeps_holds() -> None:
    hold = Hold("1", "", "all of them", "ann", NOW, NOW + timedelta(hours=1))
    document = HoldList.of([hold], NOW, TRUSTED)
    (decoded,) = decode(encode(document), HoldList).holds
    assert (decoded.id, decoded.target, decoded.until) == ("1", "all images", hold.until)
    assert decode(encode(document), HoldList) == document


def test_ended_hold_is_not_listed() -> None:
    assert HoldList.of([Hold("1", "", "", "ann", NOW - timedelta(hours=1), NOW)], NOW, TRUSTED).holds == ()


@pytest.mark.parametrize("exact", [True, False])
def test_disk_usage_round_trip_keeps_breakdown(exact: bool) -> None:
    shares = (
        Share(UsageCategory.IMAGES_IN_USE, 7, 2, (Member("app:v1", 7, 2, "shop/web", "old"),)),
        Share(UsageCategory.UNEXPLAINED, 5, exact=False),
    )
    decoded = decode(
        encode(DiskUsageDocument.of(Breakdown(filesystem(91), shares, exact))), DiskUsageDocument
    ).to_model()
    assert (decoded.shares, decoded.exact) == (shares, exact)
    assert decoded.filesystem.used_percent == 91
