"""Manual pages: one for each command and document, complete, and valid for groff."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
from typer.core import TyperGroup
from typer.main import get_command

from nodeagent.cli.main import app
from nodeagent.cli.manual import pages
from nodeagent.cli.topics import topics
from nodeagent.config.fields import settings_of
from nodeagent.config.models import Config

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def root() -> TyperGroup:
    command = get_command(app)
    assert isinstance(command, TyperGroup)
    return command


@pytest.fixture(scope="module")
def manual() -> dict[str, str]:
    return pages(root())


def test_every_command_and_setting_is_documented(manual: dict[str, str]) -> None:
    assert {"nodeagent.1", "nodeagent-gc.1", "nodeagent-doctor.1", "nodeagent-config.1"} <= set(manual)
    assert '.SS "nodeagent gc images"' in manual["nodeagent-gc.1"]
    assert '.B "\\-n, \\-\\-dry\\-run"' in manual["nodeagent-gc.1"]
    assert ".BR nodeagent\\-gc (1)" in manual["nodeagent.1"]
    assert ".B 130" in manual["nodeagent.1"]
    for each in settings_of(Config):
        assert f".B {each.name}\n" in manual["nodeagent.toml.5"]


def test_no_text_line_is_parsed_as_a_request(manual: dict[str, str]) -> None:
    known = {"TH", "SH", "SS", "PP", "TP", "B", "I", "BR", "BI", "br", "nh", "ad"}
    known |= {"IP", "RS", "RE", "nf", "fi"}
    for name, text in manual.items():
        assert text.endswith("\n")
        for line in text.splitlines():
            assert not line.startswith("'")
            assert not line.startswith(".") or line[1:].split()[0] in known, f"{name}: {line}"


CHARACTERS = {"\\-": "-", "\\(aq": "'", "\\(ga": "`", "\\(ti": "~", "\\(ha": "^", "\\(dq": '"', "\\e": "\\"}


def plain(page: str) -> str:
    """Return the text of a manual page without roff requests, font changes and escapes."""
    text = re.sub(r"^\.(br\n|[A-Z]+ ?)|\\f[BIR]|\\[&:]", "", page, flags=re.MULTILINE)
    text = re.sub(r"\\\[u([0-9A-F]+)\]", lambda found: chr(int(found[1], 16)), text)
    return re.sub("|".join(map(re.escape, CHARACTERS)), lambda found: CHARACTERS[found[0]], text)


def test_every_document_has_a_page_with_its_headings_and_examples(manual: dict[str, str]) -> None:
    documents = topics()
    assert {name for name in manual if name.endswith(".7")} == {f"nodeagent-{topic}.7" for topic in documents}
    for topic, path in documents.items():
        page = plain(manual[f"nodeagent-{topic}.7"])
        document = path.read_text()
        for fence in re.findall(r"^```\w*\n(.*?)^```", document, re.MULTILINE | re.DOTALL):
            for example in fence.splitlines():
                assert f"\n{example}\n" in page
        prose = re.sub(r"^```.*?^```", "", document, flags=re.MULTILINE | re.DOTALL)
        for heading in re.findall(r"^##+ (.+)", prose, re.MULTILINE):
            assert heading.replace("`", "") in page, heading


def test_references_between_pages_lead_to_existing_pages(manual: dict[str, str]) -> None:
    for name, text in manual.items():
        for page, section in re.findall(r"(nodeagent[a-z.-]*) ?\((\d)\)", plain(text)):
            assert f"{page}.{section}" in manual, f"{name}: {page}({section})"


def test_link_to_another_document_is_a_reference_to_its_page(manual: dict[str, str]) -> None:
    page = plain(manual["nodeagent-eviction.7"])
    assert "eviction through the API server (nodeagent-kubernetes(7))" in page
    assert "SH SEE ALSO" not in page
    assert "nodeagent-image-gc (7)" in page


def test_row_of_a_table_is_a_paragraph_with_the_headings_of_its_cells(manual: dict[str, str]) -> None:
    page = plain(manual["nodeagent-configuration.7"])
    assert '\nkubeconfig\nform: absolute path, or empty\ndefault: ""\neffect: kubeconfig with server' in page
    assert "\nnodeagent du\nshow the usage of the image filesystem by category\n" in plain(
        manual["nodeagent-commands.7"]
    )


@pytest.mark.skipif(shutil.which("groff") is None, reason="groff is not installed")
def test_groff_prints_no_warning(manual: dict[str, str], tmp_path: Path) -> None:
    for name, text in manual.items():
        (tmp_path / name).write_text(text)
    ended = subprocess.run(
        ["groff", "-man", "-Tutf8", "-ww", "-rLL=78n", *sorted(map(str, tmp_path.iterdir()))],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={"PATH": os.environ["PATH"]},
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "nodeagent.toml - configuration of nodeagent" in ended.stdout.replace("\x1b[1m", "").replace(
        "\x1b[0m", ""
    ).replace("\x1b[22m", "")


def commands(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield a command and all its subcommands, each with its path."""
    yield path, command
    for name, each in getattr(command, "commands", {}).items():
        yield from commands(each, f"{path} {name}")


def test_help_of_commands_and_options_is_one_short_line() -> None:
    lines = {path: command.help.partition("\n")[0].removesuffix(".") for path, command in commands(root(), "nodeagent")}
    for path, command in commands(root(), "nodeagent"):
        lines |= {f"{path} {each.name}": (each.help or "").partition(" [default")[0] for each in command.params}
    own = {name: line for name, line in lines.items() if "completion" not in name and not name.endswith("nodeagent")}
    assert {name: line for name, line in own.items() if len(line) >= 60 or line.endswith(".")} == {}
