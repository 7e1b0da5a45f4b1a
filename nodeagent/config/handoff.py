"""Checking a configuration for a process that does not load the models: ``python -I -m nodeagent.config.handoff``.

Standard input has what to load, pickled; standard output gets the settings, pickled. Both ends are this project's own
processes, one the child of the other. A configuration that cannot be used is told on standard error, with exit code 2.
"""

from __future__ import annotations

import pickle  # from this process to its parent
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from nodeagent.config.loading import effective, load
from nodeagent.config.policies import settings
from nodeagent.config.toml_writer import toml_value
from nodeagent.errors import ConfigError

if TYPE_CHECKING:
    from nodeagent.config.settings import Origin, Settings


def checked(origin: Origin) -> Settings:
    """Return the settings that an origin stands for now.

    Raises:
        ConfigError: one line per fault.
    """
    loaded = load(origin.path, dict(origin.overrides))
    made = settings(loaded.config)
    values = tuple((key, toml_value(value)) for key, (value, _) in effective(loaded).items())
    return replace(made, dry_run=made.dry_run or origin.dry_run, origin=origin, values=values)


def main() -> None:
    """Load what standard input names."""
    origin: Origin = pickle.load(sys.stdin.buffer)  # noqa: S301 - written by our parent
    try:
        made = checked(origin)
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(2)
    pickle.dump(made, sys.stdout.buffer)


if __name__ == "__main__":
    main()
