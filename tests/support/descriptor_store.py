"""A descriptor store in the test process, in place of systemd's."""

from __future__ import annotations

import os

from nodeagent.host.fdstore import DescriptorStore


class CopyingStore(DescriptorStore):
    """A descriptor store that copies descriptors as systemd does.

    Attributes:
        number: the copy; ``None`` without one.
        copies: number of copies so far.
    """

    def __init__(self) -> None:
        super().__init__(environment={})
        self.number: int | None = None
        self.copies = 0

    def keep(self, number: int) -> bool:
        """Replace the copy."""
        self.forget()
        self.number = os.dup(number)
        self.copies += 1
        return True

    def forget(self) -> bool:
        """Close the copy."""
        number, self.number = self.number, None
        if number is not None:
            os.close(number)
        return True
