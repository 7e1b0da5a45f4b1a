"""Import of libraries without dependencies that the agent does not use."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
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


@contextmanager
def replaced_modules(replacements: Mapping[str, ModuleType]) -> Iterator[None]:
    """Make imports of modules within the block return a replacement, unless the modules are imported already.

    Libraries that are imported in the block keep the replacement. Later imports load the module itself.

    Args:
        replacements: replacement by full module name.
    """
    absent = {name: module for name, module in replacements.items() if name not in sys.modules}
    sys.modules.update(absent)
    try:
        yield
    finally:
        for name in absent:
            del sys.modules[name]
