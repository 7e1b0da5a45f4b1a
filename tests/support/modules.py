"""Import of the whole package, for tests of every class of a kind."""

from __future__ import annotations

import importlib
import pkgutil

import nodeagent


def import_all() -> None:
    """Import every module of the package but its entry point."""
    for module in pkgutil.walk_packages(nodeagent.__path__, "nodeagent."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
