"""Manual pages: one for each command and document, complete, and valid for groff."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from typer.core import TyperGroup
from typer.main import get_command

from nodeagent.cli.help import topics
from nodeagent.cli.main import app
from nodeagent.config.validation import settings_of
from nodeagent.settings.settings import Config

MAN = Path(__file__).parents[3] / "systemd/man"
CHARACTERS = {"\\-": "-", "\\(aq": "'", "\\(ga": "`", "\\(dq": '"', "\\e": "\\"}


def plain(name: str) -> str:
    """Return the text of a manual page without roff requests, font changes and escapes."""
    text = re.sub(r"^\.(br\n|[A-Z]+ ?)|\\f[BIP]|\\[&:]", "", (MAN / name).read_text(), flags=re.MULTILINE)
    text = re.sub(r"\\\[u([0-9A-F]+)\]", lambda found: chr(int(found[1], 16)), text)
    return re.sub("|".join(map(re.escape, CHARACTERS)), lambda found: CHARACTERS[found[0]], text)


def test_every_command_and_setting_is_documented() -> None:
    tree = get_command(app)
    assert isinstance(tree, TyperGroup)
    names = {f"nodeagent-{name}.1" for name, command in tree.commands.items() if not command.hidden}
    assert {path.name for path in MAN.glob("*.[15]")} == {"nodeagent.1", "nodeagent.toml.5"} | names
    assert "\nnodeagent gc images\n" in plain("nodeagent-gc.1")
    assert "\n-n, --dry-run / --no-dry-run\n" in plain("nodeagent-gc.1")
    assert "\n-h, --help\n" in plain("nodeagent-gc.1")
    assert "\nnodeagent-gc(1)\n" in plain("nodeagent.1")
    assert "\n130\n" in plain("nodeagent.1")
    settings = plain("nodeagent.toml.5")
    assert [each.name for each in settings_of(Config) if f"\n{each.name}\n" not in settings] == []


def test_every_document_has_a_page_with_its_headings_and_examples() -> None:
    documents = topics()
    assert {path.name for path in MAN.glob("*.7")} == {f"nodeagent-{topic}.7" for topic in documents}
    for topic, path in documents.items():
        page = plain(f"nodeagent-{topic}.7")
        document = path.read_text()
        for fence in re.findall(r"^```\w*\n(.*?)^```", document, re.MULTILINE | re.DOTALL):
            for example in fence.splitlines():
                assert f"\n{example}\n" in page
        prose = re.sub(r"^```.*?^```", "", document, flags=re.MULTILINE | re.DOTALL)
        for heading in re.findall(r"^##+ (.+)", prose, re.MULTILINE):
            assert heading.replace("`", "") in page, heading


def test_references_between_pages_lead_to_existing_pages() -> None:
    names = [path.name for path in MAN.iterdir()]
    for name in names:
        for page, section in re.findall(r"(nodeagent[a-z.-]*)\((\d)\)", plain(name)):
            assert f"{page}.{section}" in names, f"{name}: {page}({section})"


def test_link_to_another_document_is_a_reference_to_its_page() -> None:
    page = plain("nodeagent-eviction.7")
    assert "eviction through the API server (nodeagent-kubernetes(7))" in page
    assert "nodeagent-image-gc(7)" in page.partition("\nSEE ALSO\n")[2]


def test_row_of_a_table_is_a_list_item_with_the_headings_of_its_cells() -> None:
    page = plain("nodeagent-configuration.7")
    assert '\nkubeconfig\nform: absolute path, or empty\ndefault: ""\neffect: kubeconfig with server' in page
    assert "\nnodeagent du\nshow the usage of the image filesystem by category\n" in plain("nodeagent-commands.7")


@pytest.mark.skipif(shutil.which("groff") is None, reason="groff is not installed")
def test_groff_prints_no_warning() -> None:
    ended = subprocess.run(
        ["groff", "-man", "-Tutf8", "-ww", "-rLL=78n", *sorted(map(str, MAN.iterdir()))],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={"PATH": os.environ["PATH"]},
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "nodeagent.toml - configuration of nodeagent" in ended.stdout
