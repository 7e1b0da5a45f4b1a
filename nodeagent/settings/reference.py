"""The configuration as TOML, and the generated tables of the documents: settings and reason codes."""

from __future__ import annotations

import json
import re
import sys
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from msgspec import structs

from nodeagent.config import validation as fields
from nodeagent.model.reason_glossary import GLOSSARY
from nodeagent.settings.settings import Config
from nodeagent.text import escape, masked


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


def reason_table() -> str:
    """Return a Markdown table of all reason codes with items, meaning and action, in alphabetical order."""
    lines = ["| code | item, verdict | meaning | action |", "| --- | --- | --- | --- |"]
    for code in sorted(GLOSSARY):
        cells = (re.sub("'(nodeagent [^']+)'", r"`\1`", each) or "none" for each in GLOSSARY[code])
        lines.append(f"| `{code}` | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


_TABLES: Final[Mapping[str, Callable[[], str]]] = {"config reference": reference, "reason codes": reason_table}
"""Generated parts of documents by the name in their markers."""


def with_tables(text: str) -> str:
    """Return a Markdown document with the content between its markers generated again.

    Raises:
        ValueError: the document has no markers.
    """
    for name, generated in _TABLES.items():
        before, begin, rest = text.partition(f"<!-- {name}: begin -->")
        _, end, after = rest.partition(f"<!-- {name}: end -->")
        if end:
            return f"{before}{begin}\n\n{generated()}\n{end}{after}"
    raise ValueError(f"no markers of a generated table: {', '.join(_TABLES)}")


def main(arguments: list[str]) -> int:
    """Run ``[--check] FILE...``; return the exit code: 1 if a checked file is out of date."""
    outdated = 0
    for document in map(Path, (each for each in arguments if each != "--check")):
        before = document.read_text(encoding="utf-8")
        after = with_tables(before)
        if "--check" not in arguments:
            document.write_text(after, encoding="utf-8")
        elif before != after:
            sys.stderr.write(f"{document}: out of date; run `make docs`\n")
            outdated = 1
    return outdated


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
