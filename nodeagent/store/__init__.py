"""The agent's memory: when each image was first detected and last used, and what snapshots occupy.

One sqlite file under the state directory. The memory never stops the agent: with a full disk, a read-only path or a
broken file it goes on in memory, says so once, and writes everything back when the file works again. A broken file is
set aside under another name, never deleted.
"""

from nodeagent.store.clock_jumps import ClockReading
from nodeagent.store.database import SnapshotFigures, Store, StoreHealth
from nodeagent.store.holds import HoldFile
from nodeagent.store.observation import GapLimits, gap_limits
from nodeagent.store.usage import merge_usage

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
