"""Document of the configuration in force, with the source of each value."""

from __future__ import annotations

from nodeagent.api.codec import Document, Part
from nodeagent.model.schemas import SchemaId


class Setting(Part, frozen=True, kw_only=True):
    """A value in TOML and its source: a file, an environment variable or ``default``."""

    value: str
    source: str


class EffectiveConfig(Document, frozen=True, kw_only=True, tag=SchemaId.CONFIG.value):
    """All settings by key, such as ``image_gc.high_threshold_percent``."""

    settings: dict[str, Setting]
