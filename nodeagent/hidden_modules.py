"""Import of libraries without their optional dependencies."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType


@contextmanager
def hidden_modules(*names: str) -> Iterator[None]:
    """Make imports of these modules fail within the block, unless they are imported already.

    Later imports of these modules succeed: TLS code can import ``ssl`` although asyncio was imported without ``ssl``.
    """
    hidden = [name for name in names if name not in sys.modules]
    for name in hidden:
        sys.modules[name] = cast("ModuleType", None)  # makes an import statement raise ImportError
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]
