"""README, documents and the description of the package: links, commands and files."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any, Final

import pytest

import nodeagent
from nodeagent.config.models import Config
from nodeagent.config.toml_writer import settings_of
from nodeagent.daemon.http.metrics import TEXTFILE_TIME
from nodeagent.telemetry.counters import METRICS

ROOT: Final = Path(__file__).parents[2]
DOCUMENTS: Final = (ROOT / "README.md", *sorted((ROOT / "nodeagent/docs").glob("*.md")))
_LINK: Final = re.compile(r"\]\(([^)\s]+)\)")
_HEADING: Final = re.compile(r"^#+ (.+)$", re.MULTILINE)
_COMMAND: Final = re.compile(r"(?:^[#$] |`)nodeagent ([^`\n#]+)", re.MULTILINE)
_OPTION: Final = re.compile(r"^--[a-z-]+")
_FENCE: Final = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def anchors(document: Path) -> set[str]:
    """Return the anchors of the headings, derived as by GitHub."""
    headings = _HEADING.findall(_FENCE.sub("", document.read_text(encoding="utf-8")))
    return {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings}


def unknown_part(words: list[str]) -> str:
    """Return the first word of a command line that is no command or option; empty if all are."""
    level: dict[str, Any] = json.loads((ROOT / "nodeagent/cli/completion.json").read_text(encoding="utf-8"))
    options = set(level["options"])
    for word in words:
        option = _OPTION.match(word)
        if option and option[0] not in options:
            return word
        if not option and "commands" in level:
            names = re.split(r"\\?\|", word)
            if not set(names) <= set(level["commands"]):
                return "" if word.isupper() else word
            level = level["commands"][names[0]]
            options |= set(level.get("options", ()))
    return ""


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda each: each.name)
def test_links_lead_to_existing_files_and_headings(document: Path) -> None:
    for link in _LINK.findall(document.read_text(encoding="utf-8")):
        if link.startswith(("https://", "http://")):
            continue
        name, _, anchor = link.partition("#")
        target = (document.parent / name).resolve() if name else document
        assert target.is_file(), link
        assert not anchor or anchor in anchors(target), link


def test_readme_links_every_document() -> None:
    linked = set(_LINK.findall(DOCUMENTS[0].read_text(encoding="utf-8")))
    assert {str(each.relative_to(ROOT)) for each in DOCUMENTS[1:]} <= linked


def test_readme_has_at_most_220_lines() -> None:
    assert len(DOCUMENTS[0].read_text(encoding="utf-8").splitlines()) <= 220


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda each: each.name)
def test_commands_in_documents_exist_with_their_options(document: Path) -> None:
    for line in _COMMAND.findall(document.read_text(encoding="utf-8")):
        assert not unknown_part(line.replace("[", "").replace("]", "").split()), line


@pytest.mark.parametrize(
    ("line", "unknown"),
    [("gc images --dry-run", ""), ("gc image", "image"), ("status --wide", "--wide"), ("trigger LOOP", "")],
)
def test_unknown_commands_and_options_are_found(line: str, unknown: str) -> None:
    assert unknown_part(line.split()) == unknown


def test_files_of_the_typical_changes_exist_and_are_at_most_five_per_change() -> None:
    changes = re.findall(
        r"^\S.*\n(?:    .*\n)+", str(nodeagent.__doc__).partition("Three typical changes")[2], re.MULTILINE
    )
    assert len(changes) == 3
    for change in changes:
        files = [each for each in re.findall(r"``([^`]+)``", change) if each.endswith((".py", ".json"))]
        assert [each for each in files if not any((root / each).is_file() for root in (ROOT, ROOT / "nodeagent"))] == []
        assert 3 <= len(files) <= 5


def test_version_is_stated_in_the_package_only() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["dynamic"] == ["version"]
    assert project["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "nodeagent.__version__"}
    assert "version" not in project["project"]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda each: each.name)
def test_settings_and_metrics_in_documents_exist(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    settings = settings_of(Config())
    keys = {f"{each.section}.{each.name}" for each in settings}
    sections = {each.section for each in settings} - {""}
    named = {each for each in re.findall(r"`([a-z]+\.[a-z_]+)(?: = [^`]*)?`", text) if each.split(".")[0] in sections}
    assert named <= keys
    assert set(re.findall(r"`(nodeagent_[a-z0-9_]+)[`{]", text)) <= {*METRICS, TEXTFILE_TIME}
