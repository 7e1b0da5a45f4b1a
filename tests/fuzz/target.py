"""A fuzz target, and the error of its defects."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class DefectError(AssertionError):
    """An inconsistent result of a target."""


@dataclass(frozen=True, slots=True)
class Target:
    """One input controlled by other users.

    Attributes:
        run: processes an input and returns whether it was accepted; raises for a defect only.
        seeds: valid inputs, the source of the mutations.
    """

    run: Callable[[bytes], bool]
    seeds: tuple[bytes, ...]
