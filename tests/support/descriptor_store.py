"""File descriptor store in the test process, in place of systemd's store."""

from __future__ import annotations

import os

from nodeagent.host.systemd import DescriptorStore


class CopyingStore(DescriptorStore):
    """File descriptor store that duplicates descriptors as systemd does.

    Attributes:
        number: the stored descriptor; ``None`` if the store is empty.
        copies: number of descriptors stored so far.
    """

    def __init__(self) -> None:
        super().__init__(environment={})
        self.number: int | None = None
        self.copies = 0

    def keep(self, number: int) -> bool:
        """Store a duplicate of a descriptor, replacing the stored descriptor."""
        self.forget()
        self.number = os.dup(number)
        self.copies += 1
        return True

    def forget(self) -> bool:
        """Close the stored descriptor."""
        number, self.number = self.number, None
        if number is not None:
            os.close(number)
        return True
