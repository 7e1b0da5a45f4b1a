"""Builder of outstanding effects for tests of eviction plans."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from nodeagent.eviction.plan.effects import FREED_WITHIN_S, OutstandingEffect
from nodeagent.eviction.plan.reclaim import ReclaimAction, ReclaimStep, Shortage
from nodeagent.model.pressure import FilesystemLayout, FilesystemRole, Signal
from tests.unit.builders import MIB
from tests.unit.eviction.plan.cases import at

DEDICATED, SPLIT = FilesystemLayout.DEDICATED_IMAGEFS, FilesystemLayout.SPLIT

EVERYTHING = frozenset(
    ReclaimStep(action, role) for action in ReclaimAction for role in (FilesystemRole.NODEFS, FilesystemRole.IMAGEFS)
)

START_S = at(0).monotonic_s


def effect(**fields: Any) -> OutstandingEffect:
    """Return the outstanding effect of an eviction at second 0: 100 MiB predicted on imagefs with 50 MiB available."""
    values: dict[str, Any] = {
        "action": "eviction of shop/web",
        "shortage": Shortage.IMAGEFS,
        "signal": Signal.IMAGEFS_AVAILABLE,
        "before": 50.0 * MIB,
        "predicted": 100 * MIB,
        "since_s": START_S,
        "until_s": START_S + FREED_WITHIN_S,
        "uid": "uid-web",
    }
    return OutstandingEffect(**(values | fields))


effects = st.lists(
    st.builds(
        effect,
        shortage=st.sampled_from(Shortage),
        signal=st.sampled_from(Signal),
        before=st.sampled_from([None, 0.0, 50.0 * MIB]),
        predicted=st.sampled_from([None, 0, 1, 100 * MIB]),
        until_s=st.floats(START_S - 40, START_S + FREED_WITHIN_S),
        uid=st.sampled_from(["", "uid-web"]),
        confirmed=st.booleans(),
        ineffective=st.booleans(),
    ),
    max_size=5,
)
