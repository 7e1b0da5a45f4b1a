"""Values of list filters: maximum length, closed sets, short names of images."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from nodeagent.cli.listing import CONTAINERS, IMAGES, PASSES, PODS, ListOptions
from nodeagent.cli.lists import ListRequest
from nodeagent.errors import UsageError
from nodeagent.gc.documents.lists import ContainerDocument
from nodeagent.model.decision import Verdict
from tests.unit.builders import NOW
from tests.unit.cli.test_completion import words
from tests.unit.cli.test_listing import KEPT, image

if TYPE_CHECKING:
    from nodeagent.cli.listing import ListView


def test_filter_above_the_maximum_length_is_refused() -> None:
    ListRequest.of(IMAGES, ListOptions(filters=(f"name={'[' * 256}",)))
    with pytest.raises(UsageError, match="257 characters, more than 256"):
        ListRequest.of(IMAGES, ListOptions(filters=(f"name={'[' * 257}",)))


@pytest.mark.parametrize(
    ("view", "filter_text", "listed"),
    [
        (IMAGES, "verdict=delete", "values: remove, keep, failed"),
        (IMAGES, "reason=in-use", "in-use-by-container"),
        (IMAGES, "pinned=yes", "values: true, false"),
        (
            CONTAINERS,
            "state!=dead",
            "values: created, running, exited, unknown, completed, error, oomkilled",
        ),
        (CONTAINERS, "state=dead*", "values: created"),
        (PODS, "status=Gone", "deleted, present"),
        (PODS, "status=", "deleted, present"),
    ],
)
def test_unknown_value_is_refused_with_the_known_ones(view: ListView[Any], filter_text: str, listed: str) -> None:
    with pytest.raises(UsageError, match="unknown value") as refused:
        ListRequest.of(view, ListOptions(filters=(filter_text,)))
    assert listed in str(refused.value)


@pytest.mark.parametrize("filter_text", ["state=CrashLoop", "state=EXITED", "state=*ed", "reason=over-*", "attempt=3"])
def test_known_value_is_accepted_in_any_case_and_as_a_glob(filter_text: str) -> None:
    ListRequest.of(CONTAINERS, ListOptions(filters=(filter_text,)))


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("nginx:1.25", True),
        ("library/nginx:1.25", True),
        ("docker.io/library/nginx:1.25", True),
        ("nginx*", True),
        ("nginx", False),
        ("redis", True),
        ("redis:latest", True),
    ],
)
def test_image_is_found_by_its_short_name(value: str, found: bool) -> None:
    request = ListRequest.of(IMAGES, ListOptions(filters=(f"name={value}",)))
    rows = [image("docker.io/library/nginx:1.25", "docker.io/library/redis:latest")]
    assert request.selected(rows) == (tuple(rows) if found else ())


def container(namespace: str, name: str, **fields: Any) -> ContainerDocument:
    filled = {"exit_code": None, "state": "running", "attempt": 0, "status": "Running", **fields}
    return ContainerDocument(
        id=name,
        name=name,
        pod_namespace=namespace,
        pod_name="web",
        pod_uid="u",
        sandbox_id="s",
        image="",
        created_at=None,
        finished_at=None,
        verdict=Verdict.KEEP,
        reason=KEPT,
        **filled,
    )


def test_namespace_selects_rows_whose_filters_also_match() -> None:
    rows = [container("shop", "a"), container("sho", "b"), container("shop", "c", status="Completed")]
    request = ListRequest.of(CONTAINERS, ListOptions(namespace="shop", filters=("state=running", "namespace=*")))
    rows[2] = msgspec.structs.replace(rows[2], state="exited")
    assert [each.id for each in request.selected(rows)] == ["a"]
    assert not ListRequest.of(CONTAINERS, ListOptions(namespace="sh*")).selected(rows)
    assert not ListRequest.of(CONTAINERS, ListOptions(form="name", namespace="shop")).shows_ids_only


@pytest.mark.parametrize(
    ("fields", "cell"),
    [
        ({}, "Running"),
        ({"status": "Error", "exit_code": 1}, "Error (1)"),
        ({"status": "Error", "exit_code": 128, "exit_reason": "StartError"}, "StartError (128)"),
        ({"status": "OOMKilled", "exit_code": 137, "exit_reason": "OOMKilled"}, "OOMKilled (137)"),
        ({"status": "Completed", "exit_code": 0}, "Completed"),
        ({"status": "CrashLoop", "exit_code": 1, "attempt": 5}, "CrashLoop x5"),
        ({"status": "Exited"}, "Exited (?)"),
        ({"status": "", "state": "exited"}, "exited"),  # from a daemon of an earlier version
    ],
)
def test_state_is_shown_with_exit_code_or_restarts(fields: dict[str, Any], cell: str) -> None:
    column = next(each for each in CONTAINERS.columns if each.key == "state")
    assert column.show(container("shop", "a", **fields), NOW) == cell


@pytest.mark.parametrize(
    ("given", "offered"),
    [
        ("verd", ["verdict="]),
        ("verdict=", ["verdict=remove", "verdict=keep", "verdict=failed"]),
        ("verdict!=k", ["verdict!=keep"]),
        ("state=cr", ["state=created", "state=crashloop"]),
        ("name=", []),
        ("colour=", []),
    ],
)
def test_filters_are_completed_with_their_values(given: str, offered: list[str]) -> None:
    assert words("containers", "--filter", given) == offered


@pytest.mark.parametrize(
    ("filter_text", "listed"),
    [
        (
            "trigger=cron",
            "values: interval, collect-ahead, trigger, once, command, control, apply, leaks, undo, eviction",
        ),
        ("scope=image", "values: images, containers, all, leaks, pods, failed-pods"),
        ("result=ok", "complete, nothing-to-do, shortfall"),
        ("reason=old", "unused-too-long"),
    ],
)
def test_unknown_value_of_the_history_is_refused_with_the_known_ones(filter_text: str, listed: str) -> None:
    with pytest.raises(UsageError, match="unknown value") as refused:
        ListRequest.of(PASSES, ListOptions(filters=(filter_text,)))
    assert listed in str(refused.value)


@pytest.mark.parametrize(
    ("given", "offered"),
    [
        ("trigger=co", ["trigger=collect-ahead", "trigger=command", "trigger=control"]),
        ("scope=f", ["scope=failed-pods"]),
        ("result!=in", ["result!=interrupted"]),
        ("reason=und", ["reason=undo-window-open", "reason=undo"]),
        ("rea", ["reason="]),
    ],
)
def test_filters_of_the_history_are_completed(given: str, offered: list[str]) -> None:
    assert words("history", "--filter", given) == offered


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("sha256:" + "a1" * 32, True),
        ("a1" * 32, True),
        ("a1a1", True),
        ("b1", False),
        ("sha256:" + "d" * 64, True),
        ("docker.io/library/nginx@sha256:" + "d" * 64, True),
    ],
)
def test_image_is_found_by_the_names_that_explain_accepts(value: str, found: bool) -> None:
    named = msgspec.structs.replace(
        image("docker.io/library/nginx:1.25"),
        id="sha256:" + "a1" * 32,
        repo_digests=("docker.io/library/nginx@sha256:" + "d" * 64,),
    )
    other = msgspec.structs.replace(image("docker.io/library/redis:7"), id="sha256:" + "c" * 64)
    rows = [named, other]
    assert ListRequest.of(IMAGES, ListOptions(filters=(f"name={value}",))).selected(rows) == ((named,) if found else ())
    excluded = ListRequest.of(IMAGES, ListOptions(filters=(f"name!={value}",))).selected(rows)
    assert excluded == ((other,) if found else (named, other))


def test_containers_are_found_by_the_short_name_of_their_image() -> None:
    rows = [msgspec.structs.replace(container("shop", "a"), image="docker.io/library/nginx:1.25")]
    for value in ("nginx:1.25", "library/nginx:1.25", "docker.io/library/nginx:1.25"):
        assert ListRequest.of(CONTAINERS, ListOptions(filters=(f"image={value}",))).selected(rows) == tuple(rows)
    assert not ListRequest.of(CONTAINERS, ListOptions(filters=("image=nginx",))).selected(rows)
