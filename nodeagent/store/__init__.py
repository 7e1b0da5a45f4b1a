"""State on disk: image usage, history, holds, evictions, pause and shutdown state.

Image usage and history are two SQLite files in the state directory, all else small JSON files. A failing store never
stops the agent: with a full disk, a read-only path or a corrupt file it continues in memory, logs that once, and writes
the whole state when the file is writable again. A corrupt database is quarantined under another name, never deleted.

Files of earlier versions are read; databases are migrated with the first write.
"""

from nodeagent.store.clock_record import ClockReading
from nodeagent.store.database import SnapshotFigures, Store
from nodeagent.store.observation import GapLimits, ItemKey, gap_limits
from nodeagent.store.state_file import StoreHealth, merge_usage

__all__ = [
    "ClockReading",
    "GapLimits",
    "ItemKey",
    "SnapshotFigures",
    "Store",
    "StoreHealth",
    "gap_limits",
    "merge_usage",
]
