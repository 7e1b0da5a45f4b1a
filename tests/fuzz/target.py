"""Fuzz target, and the error that reports its defects."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class DefectError(AssertionError):
    """Defect found by a fuzz target: an inconsistent result."""


@dataclass(frozen=True, slots=True)
class Target:
    """Fuzz target: one kind of input controlled by other users.

    Attributes:
        run: function that processes an input and returns whether the input was accepted; raises only for a defect.
        seeds: valid inputs, from which mutations are derived.
    """

    run: Callable[[bytes], bool]
    seeds: tuple[bytes, ...]
