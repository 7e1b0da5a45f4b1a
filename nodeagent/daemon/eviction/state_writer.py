"""Background writes of the eviction state, so that an eviction waits for the disk for a bounded time only."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from nodeagent.errors import StoreError
from nodeagent.host.node import boot_id

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

    from nodeagent.daemon.context import DaemonContext
    from nodeagent.store.evictions import EvictionFile


class EvictionStateWriter:
    """Writes the outstanding effects and victims of the daemon context, one write at a time."""

    def __init__(self, context: DaemonContext, file: EvictionFile | None, logger: FilteringBoundLogger) -> None:
        """Create a writer; ``None`` for ``file`` disables writing."""
        self._context = context
        self._file = file
        self._logger = logger
        self._writing: asyncio.Future[None] | None = None
        self._unwritten = False
        self._problem = ""

    async def write(self, within_s: float) -> None:
        """Start a write of the latest state, and wait up to ``within_s`` seconds for its end."""
        if self._file is None:
            return
        self._unwritten = True
        if self._writing is None or self._writing.done():
            self._writing = asyncio.ensure_future(self._write_latest(self._file))
        if within_s:
            await asyncio.wait({self._writing}, timeout=within_s)

    async def _write_latest(self, file: EvictionFile) -> None:
        # The state may change during a write; one more write covers all changes since.
        while self._unwritten:
            self._unwritten = False
            state = self._context.eviction
            try:
                await asyncio.to_thread(file.write, boot_id(), state.outstanding, state.victims)
            except StoreError as error:
                if self._problem != str(error):
                    warning = f"{error}; unfinished evictions are lost in a restart"
                    self._logger.warning("eviction_warning", warning=warning)
                self._problem = str(error)
            else:
                self._problem = ""
