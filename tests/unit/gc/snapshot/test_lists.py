"""Cross-checked runtime lists: missing items are contradictions, changes on the node are not."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, strategies as st

from nodeagent.errors import NodeAgentError, RuntimeNotFoundError, RuntimeRequestError, RuntimeTimeoutError
from nodeagent.gc.plan.images import plan_image_gc
from nodeagent.gc.plan.policy import ImageGCPolicy
from nodeagent.gc.snapshot.lists import MAX_STATUS_CALLS, CheckedLists, ListCheck
from nodeagent.model.runtime import ContainerState
from tests.unit.builders import RUNTIME, container, filesystem, image, sandbox, snapshot, used

if TYPE_CHECKING:
    from collections.abc import Collection

    from nodeagent.model.node import NodeSnapshot
    from nodeagent.model.runtime import Container, Image, Sandbox
    from nodeagent.runtime.cri import ContainerUsage

PODS = 6


class Runtime:
    """A fake runtime with one running container and one image per pod; lists omit the ``hidden`` ids."""

    def __init__(self, pods: int = PODS) -> None:
        self.images = {f"i{n}": image(f"i{n}") for n in range(pods + 2)}
        self.containers = {
            f"c{n}": container(f"c{n}", pod=f"p{n}", state=ContainerState.RUNNING, image_ref=f"i{n}")
            for n in range(pods)
        }
        self.sandboxes = {f"sb-p{n}": sandbox(f"p{n}", ready=True) for n in range(pods)}
        self.hidden: set[str] = set()
        self.kernel = False
        self.status_error: RuntimeRequestError | None = None
        self.status_calls = 0

    async def list_images(self) -> tuple[Image, ...]:
        return tuple(each for each in self.images.values() if each.id not in self.hidden)

    async def list_containers(self) -> tuple[Container, ...]:
        return tuple(each for each in self.containers.values() if each.id not in self.hidden)

    async def list_sandboxes(self) -> tuple[Sandbox, ...]:
        return tuple(each for each in self.sandboxes.values() if each.id not in self.hidden)

    async def container_status(self, container_id: str) -> Container:
        self.status_calls += 1
        if self.status_error is not None:
            raise self.status_error
        if container_id not in self.containers:
            raise RuntimeNotFoundError("ContainerStatus", container_id, "NOT_FOUND", "")
        return self.containers[container_id]

    async def sandbox_status(self, sandbox_id: str) -> Sandbox:
        self.status_calls += 1
        if sandbox_id not in self.sandboxes:
            raise RuntimeNotFoundError("PodSandboxStatus", sandbox_id, "NOT_FOUND", "")
        return self.sandboxes[sandbox_id]

    async def image_status(self, reference: str) -> Image | None:
        return self.images.get(reference)

    async def list_container_stats(self, _only: Collection[str] | None = None, /) -> tuple[ContainerUsage, ...]:
        return ()

    def find_running(self, known: Collection[str]) -> tuple[frozenset[str], bool]:
        existing = {*self.containers, *self.sandboxes}
        return (frozenset(existing), True) if self.kernel and existing & set(known) else (frozenset(), False)

    def check(self) -> ListCheck:
        async def no_records() -> None:
            return None

        return ListCheck(self, self.find_running, no_records, no_records, confirm_s=0.0)


def read(check: ListCheck) -> CheckedLists:
    return asyncio.run(check.read(with_images=True))


def removed_images(checked: CheckedLists) -> set[str]:
    """Return the ids of the images that a plan based on these lists removes."""
    listed = checked.lists
    node: NodeSnapshot = snapshot(
        *((each, used()) for each in listed.images or ()),
        containers=listed.containers,
        sandboxes=listed.sandboxes,
        image_filesystem=filesystem(99),
        contradictions=checked.contradictions,
        runtime=RUNTIME,
    )
    plan = plan_image_gc(node, ImageGCPolicy(minimum_age_s=0.0), remove_all_unused=True)
    return {each.id for each in plan.removals}


IDS = st.sets(st.sampled_from([*(f"c{n}" for n in range(PODS)), *(f"sb-p{n}" for n in range(PODS))]))


@given(hidden=IDS)
def test_image_of_a_container_missing_since_the_previous_reading_is_never_removed(hidden: set[str]) -> None:
    runtime = Runtime()
    check = runtime.check()
    assert removed_images(read(check)) == {"i6", "i7"}
    runtime.hidden = hidden
    for _ in range(2):
        checked = read(check)
        assert bool(checked.contradictions) == bool(hidden)
        assert removed_images(checked) == (set() if hidden else {"i6", "i7"})
    runtime.hidden = set()
    assert removed_images(read(check)) == {"i6", "i7"}


@given(hidden=IDS)
def test_image_of_a_running_container_missing_in_the_first_reading_is_never_removed(hidden: set[str]) -> None:
    runtime = Runtime()
    runtime.kernel = True
    runtime.hidden = hidden
    all_hidden = len(hidden) == 2 * PODS  # empty lists cannot be compared with cgroups
    checked = read(runtime.check())
    assert bool(checked.contradictions) == (bool(hidden) and not all_hidden)
    assert all_hidden or removed_images(checked) == (set() if hidden else {"i6", "i7"})


@given(hidden=st.sets(st.sampled_from([f"c{n}" for n in range(PODS)]), min_size=PODS // 2))
def test_half_the_containers_missing_in_the_first_reading_is_a_contradiction_without_cgroups(hidden: set[str]) -> None:
    runtime = Runtime()
    runtime.hidden = hidden
    assert removed_images(read(runtime.check())) == set()


@given(removed=IDS, kernel=st.booleans())
def test_removal_of_any_objects_is_no_contradiction(removed: set[str], *, kernel: bool) -> None:
    runtime = Runtime()
    runtime.kernel = kernel
    check = runtime.check()
    read(check)
    for removed_id in removed:
        runtime.sandboxes.pop(removed_id, None)
    for container_id, each in list(runtime.containers.items()):
        if container_id in removed or each.sandbox_id not in runtime.sandboxes:
            del runtime.containers[container_id]
    empty = len(runtime.sandboxes) - len(runtime.containers)
    checked = read(check)
    suspicious = not kernel and empty >= 2 and 2 * empty >= len(runtime.sandboxes)
    assert bool(checked.contradictions) == suspicious
    assert suspicious or removed_images(checked) == set(runtime.images) - {
        each.image_ref for each in runtime.containers.values()
    }


@given(hidden=st.sets(st.sampled_from([f"i{n}" for n in range(PODS + 2)])))
def test_incomplete_image_list_keeps_only_images(hidden: set[str]) -> None:
    runtime = Runtime()
    runtime.hidden = hidden
    checked = read(runtime.check())
    in_use = bool(hidden - {"i6", "i7"})
    assert [each.images_only for each in checked.contradictions] == [True] * in_use
    assert removed_images(checked) == (set() if in_use else {"i6", "i7"} - hidden)


@pytest.mark.parametrize(
    ("error", "contradicts"),
    [
        (RuntimeTimeoutError("ContainerStatus", "c1", "DEADLINE_EXCEEDED", ""), True),
        (RuntimeRequestError("ContainerStatus", "c1", "INTERNAL", "disk failure"), True),
        (RuntimeRequestError("ContainerStatus", "c1", "UNKNOWN", "No such container: c1"), False),
    ],
)
def test_failed_status_of_a_vanished_container_is_a_contradiction_unless_it_is_not_found(
    error: RuntimeRequestError, *, contradicts: bool
) -> None:
    runtime = Runtime()
    check = runtime.check()
    read(check)
    del runtime.containers["c1"]
    runtime.status_error = error
    assert bool(read(check).contradictions) == contradicts


def test_status_calls_for_vanished_objects_are_bounded() -> None:
    runtime = Runtime(3000)
    check = runtime.check()
    read(check)
    runtime.containers.clear()
    runtime.sandboxes.clear()
    assert read(check).contradictions == ()
    assert runtime.status_calls <= 2 * MAX_STATUS_CALLS


def test_removed_containers_are_not_checked_again_during_a_persistent_contradiction() -> None:
    runtime = Runtime()
    check = runtime.check()
    read(check)
    runtime.hidden = {"c1"}
    calls = []
    for number in range(10, 40):
        runtime.containers[f"c{number}"] = container(f"c{number}", pod="p2", image_ref="i2")
        runtime.containers.pop(f"c{number - 1}", None)
        before = runtime.status_calls
        assert read(check).contradictions
        calls.append(runtime.status_calls - before)
    assert max(calls) <= 2, "status is read only for the missing and for the removed container"
    runtime.hidden = set()
    assert not read(check).contradictions


def test_missing_container_remains_a_contradiction_after_the_removal_of_thousands_of_others() -> None:
    runtime = Runtime(3000)
    check = runtime.check()
    read(check)
    runtime.hidden = {"c1000"}
    assert read(check).contradictions
    for number in set(range(3, 3000)) - {1000}:
        del runtime.containers[f"c{number}"], runtime.sandboxes[f"sb-p{number}"]
    for _ in range(3):
        assert "i1000" not in removed_images(read(check))


async def test_records_are_those_of_the_second_reading_after_a_suspicion() -> None:
    runtime = Runtime()
    records: list[NodeAgentError] = []

    async def no_stored() -> None:
        return None

    async def list_records() -> NodeAgentError:
        runtime.hidden = {"c1"} if not records else set()
        records.append(NodeAgentError(f"listing {len(records) + 1} failed"))
        return records[-1]

    runtime.kernel = True
    check = ListCheck(runtime, runtime.find_running, no_stored, list_records, confirm_s=0.0)
    checked = await check.read(with_images=True)
    assert str(checked.records) == "listing 2 failed"
    assert checked.contradictions == ()


async def test_concurrent_readings_do_not_contradict_each_other() -> None:
    """Start a slow reading before, and end it after, a reading that lists a new container."""
    runtime = Runtime()
    check = runtime.check()
    await check.read(with_images=True)
    listing, release = asyncio.Event(), asyncio.Event()
    sandboxes = runtime.list_sandboxes

    async def slow_sandboxes() -> tuple[Sandbox, ...]:
        found = await sandboxes()
        listing.set()
        await release.wait()
        return found

    runtime.list_sandboxes = slow_sandboxes  # type: ignore[method-assign]
    older = asyncio.ensure_future(check.read(with_images=True))
    await listing.wait()
    runtime.list_sandboxes = sandboxes  # type: ignore[method-assign]
    runtime.containers["c9"] = container("c9", pod="p1", state=ContainerState.RUNNING, image_ref="i1")
    await check.read(with_images=True)
    release.set()
    assert (await older).contradictions == ()
