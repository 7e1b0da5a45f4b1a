"""The live view of ``nodeagent top``: order and selection of the pods, and the screen at different sizes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pytest
from msgspec import structs

from nodeagent.api.common import decode
from nodeagent.cli.status import status_view
from nodeagent.cli.top import PodSort, TopState, after_key, sorted_pods, top_screen, top_view
from nodeagent.daemon.documents import Top
from nodeagent.model.pressure import Signal
from nodeagent.text import display_width, escape
from tests.unit.cli.test_golden import DOCUMENTS

if TYPE_CHECKING:
    from nodeagent.eviction.documents import RankedPodUsage

FIRST: Final = TopState()
TOP: Final = decode((DOCUMENTS / "top.json").read_text(), Top)
MIB = 1 << 20


def pod(rank: int, **changes: Any) -> RankedPodUsage:
    usage = {"memory_bytes": rank * MIB, "pids": rank, "frees": rank * MIB}
    values = {"rank": rank, "uid": f"uid-{rank}", "name": f"pod-{rank}", **usage, **changes}
    return structs.replace(TOP.pods.pods[0], **values)


def top(*pods: RankedPodUsage, **changes: object) -> Top:
    return structs.replace(TOP, pods=structs.replace(TOP.pods, pods=pods), **changes)


PODS = (pod(1, memory_bytes=5, pids=None), pod(2, memory_bytes=9, pids=3), pod(3, memory_bytes=None, pids=7))


@pytest.mark.parametrize(
    ("sort", "ranks"),
    [
        (PodSort.RANK, [1, 2, 3]),
        (PodSort.MEMORY, [2, 1, 3]),
        (PodSort.PIDS, [3, 2, 1]),
        (PodSort.DISK, [1, 2, 3]),
    ],
)
def test_pods_are_sorted_by_usage_with_unknown_usage_last_and_equal_usage_by_rank(
    sort: PodSort, ranks: list[int]
) -> None:
    assert [each.rank for each in sorted_pods(PODS, sort)] == ranks


@pytest.mark.parametrize(
    ("keys", "state"),
    [
        (["down"], TopState(selected="uid-2")),
        (["down", "down", "down"], TopState(selected="uid-3")),
        (["end", "up"], TopState(selected="uid-2")),
        (["page-down"], TopState(selected="uid-3")),
        (["end", "home"], TopState(selected="uid-1")),
        (["down", "m"], TopState(PodSort.MEMORY, "uid-2")),
        (["m", "down"], TopState(PodSort.MEMORY, "uid-1")),
        (["m", "r", "x"], TopState()),
    ],
)
def test_keys_sort_and_select(keys: list[str], state: TopState) -> None:
    found = TopState()
    for key in keys:
        found = after_key(found, key, PODS, 2)
    assert found == state


def test_selection_of_a_pod_that_is_gone_continues_at_the_first() -> None:
    assert after_key(TopState(selected="gone"), "down", PODS, 2).selected == "uid-2"
    assert after_key(TopState(), "down", (), 2) == TopState()


def screen(found: Top, columns: int, rows: int, state: TopState = FIRST) -> list[str]:
    return [line.text for line in top_screen(found, state, columns, rows)[0]]


@pytest.mark.parametrize("columns", [40, 60, 80, 120, 200])
@pytest.mark.parametrize("rows", [5, 12, 24, 60])
def test_screen_has_at_most_the_rows_and_columns_of_the_terminal(columns: int, rows: int) -> None:
    lines = screen(top(*map(pod, range(1, 100))), columns, rows)
    assert len(lines) <= rows
    assert max(map(display_width, lines)) <= columns


@pytest.mark.parametrize(("rows", "has_passes"), [(24, True), (16, False)])
def test_pods_that_do_not_fit_are_counted_and_further_parts_are_omitted_for_them(rows: int, has_passes: bool) -> None:
    lines = screen(top(*map(pod, range(1, 100))), 80, rows)
    shown = [each for each in lines if "pod-" in each]
    assert 3 <= len(shown) < 99
    assert f"and {99 - len(shown)} more pods" in lines
    assert any(each.startswith("LAST PASSES") for each in lines) is has_passes


def test_selected_pod_is_on_the_screen_and_marked() -> None:
    lines = screen(top(*map(pod, range(1, 100))), 80, 24, TopState(selected="uid-60"))
    assert [each.split()[0] for each in lines if each.startswith(">")] == [">60"]


def test_effect_of_an_eviction_is_in_the_unit_of_the_ranking() -> None:
    pods = (pod(1, frees=2 * MIB, frees_at_least=True), pod(2, frees=None))
    found = top(*pods)
    rows = [each for each in screen(found, 80, 24) if "pod-" in each or "POD" in each]
    place = rows[0].index("FREES") + len("FREES")
    assert [each[:place].split()[-1] for each in rows] == ["FREES", "≥2.00MiB", "?"]
    stalls = structs.replace(found.pods, signal=Signal.IO_PSI_SOME, pods=(pod(1, frees=12.5),))
    assert "12.5%" in "".join(screen(structs.replace(found, pods=stalls), 80, 24))


def test_shutdown_in_progress_is_stated_as_in_status() -> None:
    agent = structs.replace(TOP.agent, ready=False, not_ready_because=("the node is shutting down",))
    found = structs.replace(TOP, agent=agent)
    first = next(status_view(found, 80)).text
    assert "not ready: the node is shutting down" in first
    assert first == next(top_view(found, 80)).text
    assert "the node is shutting down" in screen(found, 80, 24)[0]


def test_pods_are_named_after_the_signal_of_the_shortage() -> None:
    disk = structs.replace(TOP, pods=structs.replace(TOP.pods, signal=Signal.NODEFS_AVAILABLE))
    assert "pods in eviction order for nodefs.available" in [line.text for line in top_view(disk, 80)]


def test_hostile_names_are_escaped_and_keep_the_width() -> None:
    lines = screen(top(pod(1, name="[red]\x1b[31m\u202e\n"), pod(2)), 120, 24)
    assert [escape(each) for each in lines] == lines
    assert any("[red]" in each for each in lines)
