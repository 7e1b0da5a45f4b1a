"""The agent's memory on disk: image usage, history, holds, evictions, pause and shutdown state.

One SQLite file under the state directory holds usage and history. A failing store never stops the agent: with a full
disk, a read-only path or a corrupt file it continues in memory, logs that once, and writes everything back when the
file works again. A corrupt file is quarantined under another name, never deleted.
"""

from nodeagent.store.clock_jumps import ClockReading
from nodeagent.store.database import SnapshotFigures, Store, StoreHealth
from nodeagent.store.holds import HoldFile
from nodeagent.store.image_usage import merge_usage
from nodeagent.store.observation import GapLimits, gap_limits

__all__ = [
    "ClockReading",
    "GapLimits",
    "HoldFile",
    "SnapshotFigures",
    "Store",
    "StoreHealth",
    "gap_limits",
    "merge_usage",
]
