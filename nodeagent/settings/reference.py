"""The configuration as TOML and as a Markdown reference, both generated from the models."""

from __future__ import annotations

import json
import re
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path

from msgspec import structs

from nodeagent.config import validation as fields
from nodeagent.settings.settings import Config
from nodeagent.text import escape, masked

_BEGIN = "<!-- config reference: begin -->"
_END = "<!-- config reference: end -->"


def to_toml(config: Config, *, commented: bool) -> str:
    """Return a configuration as TOML; ``commented`` adds descriptions and comments out the defaults."""
    lines: list[str] = []
    section = ""
    for each in fields.settings_of(Config):
        if each.section != section:
            section = each.section
            lines += ["", f"[{section}]"]
        lines += _setting(each, fields.value_of(config, each), commented=commented)
    return "\n".join(lines).lstrip("\n") + "\n"


def sourced_toml(values: Mapping[str, tuple[object, str]]) -> str:
    """Return values by dotted key as TOML, each with its source in a comment."""
    lines: list[str] = []
    section = ""
    for key, (value, source) in sorted(values.items(), key=lambda item: "." in item[0]):
        above, _, name = key.rpartition(".")
        if above != section:
            lines += [*([""] if lines else []), f"[{above}]"]
            section = above
        lines.append(f"{name} = {toml_value(value)}  # {masked(source)}")
    return "\n".join(lines) + "\n"


def _setting(setting: fields.Setting, value: object, *, commented: bool) -> list[str]:
    line = f"{setting.name} = {toml_value(value)}"
    if not commented:
        return [line]
    text = textwrap.wrap(f"{setting.description} Form: {setting.form}.", 110)
    return ["", *(f"# {each}" for each in text), f"#{line}" if value == setting.default else line]


def toml_value(value: object) -> str:
    """Return the value of a setting as TOML."""
    if isinstance(value, tuple | list):
        return "[" + ", ".join(toml_value(each) for each in value) + "]"
    if isinstance(value, fields.Section):
        value = {name: each for name, each in structs.asdict(value).items() if each is not None}
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_toml_key(key)} = {toml_value(each)}" for key, each in value.items()) + "}"
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    return escape(json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f"))  # JSON escapes are valid TOML


def _toml_key(key: object) -> str:
    text = str(key)
    return text if re.fullmatch(r"[A-Za-z0-9_-]+", text) else toml_value(text)


def reference() -> str:
    """Return a Markdown table of all settings with form, default and effect."""
    lines = [
        "Durations have units (`2m`, `1h30m`, `7d`); sizes have suffixes (`500Mi`, `2G`) or are bytes.",
    ]
    section = None
    for each in fields.settings_of(Config):
        if each.section != section:
            section = each.section
            title = f"`[{section}]`" if section else "Top level"
            lines += ["", f"### {title}", "", "| key | form | default | effect |", "| --- | --- | --- | --- |"]
        form = each.form.replace("|", "\\|")
        lines.append(f"| `{each.name}` | {form} | `{toml_value(each.default)}` | {each.description} |")
    return "\n".join(lines) + "\n"


def embed_reference(text: str) -> str:
    """Return a Markdown document with the configuration reference between its two markers regenerated.

    Raises:
        ValueError: a marker is missing.
    """
    before, begin, rest = text.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not begin or not end:
        raise ValueError(f"the markers {_BEGIN} and {_END} are missing")
    return f"{before}{begin}\n\n{reference()}\n{end}{after}"


def main(arguments: list[str]) -> int:
    """Run ``embed [--check] FILE``; return the exit code: 1 for a checked file that is out of date."""
    *options, name = arguments
    document = Path(name)
    before = document.read_text(encoding="utf-8")
    after = embed_reference(before)
    if options != ["--check"]:
        document.write_text(after, encoding="utf-8")
    elif before != after:
        sys.stderr.write(f"{document}: out of date; run `make docs`\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
