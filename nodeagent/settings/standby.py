"""Settings for graceful shutdown while the configuration is invalid: the last valid settings, else the defaults.

With these settings the daemon only keeps logind's inhibitor lock and stops pods in order at a node shutdown. Garbage
collection and eviction wait for a valid configuration.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from nodeagent.errors import ConfigError, StoreError
from nodeagent.files import read_file, replace_file
from nodeagent.record import replace
from nodeagent.settings.loading import effective, load
from nodeagent.settings.models import Config
from nodeagent.settings.reference import toml_value

if TYPE_CHECKING:
    from nodeagent.settings.settings import Origin, Settings

STATE: Final = Path("/var/lib/nodeagent")
"""State directory used if the configuration is unreadable."""
_FILE: Final = "last-settings.toml"


def standby_settings(
    origin: Origin, problem: ConfigError, *, has_lock: bool, directory: Path = STATE
) -> Settings | None:
    """Return settings for graceful shutdown; ``None`` if neither last valid settings nor a lock exist.

    Args:
        origin: sources of the invalid configuration, which a reload reads again.
        problem: error of the invalid configuration.
        has_lock: whether an earlier run of the agent left its inhibitor lock.
        directory: state directory with the last valid settings.
    """
    path = directory / _FILE
    try:
        loaded = load(path, {}, environment={}) if path.exists() else None
    except (ConfigError, OSError):  # file of another version, or damaged
        loaded = None
    if loaded is None and not has_lock:
        return None
    own = (Config() if loaded is None else loaded.config).settings()
    found = {} if loaded is None else effective(loaded)
    return replace(
        own,
        dry_run=own.dry_run or origin.dry_run,
        origin=origin,
        values=tuple((key, toml_value(value)) for key, (value, _) in found.items()),
        invalid_because=str(problem),
        standby_source="defaults" if loaded is None else str(path),
    )


FILE_NAME: Final = "last-settings.toml"
_HEADING: Final = "# The last valid settings, for graceful shutdown while the configuration is invalid. Do not edit.\n"


def write_last_settings(settings: Settings) -> None:
    """Write all settings as TOML to the state directory, unless the file already contains these settings.

    Raises:
        StoreError: the file cannot be written; the previous file is kept.
    """
    path = settings.state_directory / FILE_NAME
    text = _HEADING + "".join(f"{key} = {value}\n" for key, value in settings.values)
    try:
        if path.exists() and read_file(path) == text:
            return
        path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        replace_file(path, text)
    except (OSError, UnicodeError) as error:
        raise StoreError(f"cannot write {path}: {error}") from error
