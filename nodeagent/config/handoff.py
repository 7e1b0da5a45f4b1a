"""Configuration loading in a child process, for a parent without pydantic: ``python -I -m nodeagent.config.handoff``.

Standard input is a pickled ``Origin``, standard output the pickled ``Settings``; both processes run this project's own
code. An invalid configuration is reported on standard error, with exit code 2.
"""

from __future__ import annotations

import pickle  # pickles are exchanged only with the parent process
import sys
from typing import TYPE_CHECKING

from nodeagent.config.loading import effective, load
from nodeagent.config.policies import settings
from nodeagent.config.settings import DEFAULT_SOURCE
from nodeagent.config.toml_writer import toml_value
from nodeagent.errors import ConfigError
from nodeagent.record import replace

if TYPE_CHECKING:
    from nodeagent.config.settings import Origin, Settings


def checked(origin: Origin) -> Settings:
    """Load the configuration of an origin and return its settings.

    Raises:
        ConfigError: the configuration is invalid; one line per error.
    """
    loaded = load(origin.path, dict(origin.overrides))
    own = settings(loaded.config)
    found = effective(loaded)
    return replace(
        own,
        dry_run=own.dry_run or origin.dry_run,
        origin=origin,
        values=tuple((key, toml_value(value)) for key, (value, _) in found.items()),
        sources=tuple((key, source) for key, (_, source) in found.items() if source != DEFAULT_SOURCE),
    )


def main() -> None:
    """Write the settings of the origin on standard input to standard output."""
    origin: Origin = pickle.load(sys.stdin.buffer)  # noqa: S301 - written by the parent process
    try:
        loaded = checked(origin)
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(2)
    pickle.dump(loaded, sys.stdout.buffer)


if __name__ == "__main__":
    main()
