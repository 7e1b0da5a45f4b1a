"""Document of the configuration in force, with the source of each value."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodeagent.api.codec import Document, Part
from nodeagent.schemas import SchemaId
from nodeagent.settings.settings import DEFAULT_SOURCE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class Setting(Part, frozen=True, kw_only=True):
    """A value in TOML and its source: a file, an environment variable or ``default``."""

    value: str
    source: str


class EffectiveConfig(Document, frozen=True, kw_only=True, tag=SchemaId.CONFIG.value):
    """All settings by key, such as ``image_gc.high_threshold_percent``."""

    settings: dict[str, Setting]

    @classmethod
    def of(cls, values: Iterable[tuple[str, str]], sources: Mapping[str, str]) -> EffectiveConfig:
        """Return the document of all settings; a setting without a source has its default."""
        return cls(
            settings={key: Setting(value=value, source=sources.get(key, DEFAULT_SOURCE)) for key, value in values}
        )
