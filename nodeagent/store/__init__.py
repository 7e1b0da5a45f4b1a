"""The agent's memory: when each image was first detected and last used, and what snapshots occupy.

One sqlite file under the state directory. The memory never stops the agent: with a full disk, a read-only path or a
broken file it goes on in memory, says so once, and writes everything back when the file works again. A broken file is
set aside under another name, never deleted.
"""

from nodeagent.store.clock_jumps import ClockJump, shifted
from nodeagent.store.database import SnapshotFigures, Store, StoreHealth
from nodeagent.store.holds import HoldFile
from nodeagent.store.usage import merge_usage

__all__ = ["ClockJump", "HoldFile", "SnapshotFigures", "Store", "StoreHealth", "merge_usage", "shifted"]
