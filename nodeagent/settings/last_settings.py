"""Last valid settings, stored for graceful shutdown when the agent starts with an invalid configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nodeagent.errors import StoreError
from nodeagent.files import read_file, replace_file

if TYPE_CHECKING:
    from nodeagent.settings.settings import Settings

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
