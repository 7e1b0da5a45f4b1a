"""Write the manual pages into ``systemd/man``: ``python systemd/manual.py [--check]``.

The pages of commands are built from the command tree, nodeagent.toml(5) from the descriptions of the settings, and the
pages of section 7 from the installed documents. docutils writes them, myst-docutils parses the documents. The pages
are committed, so that neither a node nor the build of a package requires these libraries.
"""

# ruff: noqa: INP001 - a script, run by its path

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from docutils import nodes
from docutils.core import publish_doctree, publish_from_doctree
from docutils.utils import new_document
from myst_parser.parsers.docutils_ import Parser
from typer import Context
from typer.core import TyperGroup
from typer.main import get_command

from nodeagent import __version__
from nodeagent.cli.help import ALIASES, EXAMPLES, topics
from nodeagent.cli.main import app
from nodeagent.config.validation import settings_of
from nodeagent.settings.reference import toml_value
from nodeagent.settings.settings import Config

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

DIRECTORY: Final = Path(__file__).resolve().parent / "man"
_BREAK: Final = "\u200b"  # a possible line break in a long word
_OPTIONS: Final = {"output_encoding": "unicode", "report_level": 2, "halt_level": 2, "_disable_config": True}
_MARKDOWN: Final = {"myst_all_links_external": True, "myst_highlight_code_blocks": False}
_FILES: Final = {
    "/etc/nodeagent/config.toml": "The configuration, see nodeagent.toml(5).",
    "/etc/nodeagent/config.d/*.toml": "Drop-ins, applied in the order of their names.",
    "/var/lib/nodeagent": "State: image use, history, holds.",
}
_VARIABLES: Final = {"NODEAGENT_SECTION__KEY": "Sets a value, such as NODEAGENT_IMAGE_GC__HIGH_THRESHOLD_PERCENT=70."}
_SETTINGS: Final = """\
A TOML file. Drop-ins in config.d beside it override it in the order of their names; variables NODEAGENT_SECTION__KEY
override the files, and options of a command override the variables. Tables are merged, other values are replaced. Every
setting has a default; an unknown setting is an error.

Durations are written with units (2m, 1h30m, 7d), sizes with suffixes (500Mi, 2G) or as bytes."""


def main(arguments: list[str]) -> int:
    """Write the pages, or with ``--check`` compare them; return the exit code: 1 if they differ."""
    written = {path.name: path.read_text(encoding="utf-8") for path in DIRECTORY.iterdir()}
    current = pages()
    if arguments == ["--check"]:
        differing = sorted(name for name in written.keys() | current.keys() if written.get(name) != current.get(name))
        sys.stderr.writelines(f"{DIRECTORY / name}: out of date; run `make docs`\n" for name in differing)
        return int(bool(differing))
    for name in written.keys() - current.keys():
        (DIRECTORY / name).unlink()
    for name, text in current.items():
        (DIRECTORY / name).write_text(text, encoding="utf-8")
    return 0


def pages() -> dict[str, str]:
    """Return the text of all manual pages by file name, such as ``nodeagent-gc.1``."""
    tree = get_command(app)
    root = Context(tree, info_name="nodeagent", **tree.context_settings)
    commands = list(_subcommands(root))
    documents = {_name(topic): path for topic, path in topics().items()}
    others = ["nodeagent.toml(5)", *(f"{name}(7)" for name in documents), "journalctl(1)", "systemctl(1)", "crictl(1)"]
    made = [_page("nodeagent", 1, "User commands", _summary(root), [*_overview(root, commands), _see_also(others)])]
    for context in commands:
        see = _see_also(["nodeagent(1)", "nodeagent.toml(5)"])
        made.append(_page(_name(context.info_name), 1, "User commands", _summary(context), [*_command(context), see]))
    see = _see_also(["nodeagent(1)", "nodeagent-config(1)"])
    made.append(_page("nodeagent.toml", 5, "File formats", "configuration of nodeagent", [*_settings(), see]))
    made += [_document(name, path) for name, path in documents.items()]
    return dict(made)


def _page(name: str, section: int, group: str, summary: str, content: Iterable[nodes.Node]) -> tuple[str, str]:
    """Return the file name and the text of a page."""
    document = new_document(name)
    listed = nodes.docinfo()
    for key, value in (("version", f"nodeagent {__version__}"), ("manual section", section), ("manual group", group)):
        listed += nodes.field("", nodes.field_name("", key), nodes.field_body("", _text(str(value))))
    document += [nodes.title("", name), nodes.subtitle("", summary), listed, *content]
    for each in list(document.findall(nodes.Text)):
        if not isinstance(each.parent, nodes.FixedTextElement):
            each.parent.replace(each, nodes.Text(re.sub(r"\S{40,}", _breakable, each.replace("\n", " "))))
    text = publish_from_doctree(document, writer="manpage", settings_overrides=_OPTIONS)
    # Lines are neither justified nor hyphenated: neither suits options, paths and code.
    text = text.replace(".SH Name\n", ".nh\n.nr HY 0\n.ad l\n.SH NAME\n", 1)
    return f"{name}.{section}", re.sub(r"[^\x00-\x7F]", _escape, text)


def _breakable(word: re.Match[str]) -> str:
    return re.sub("[,_/]", rf"\g<0>{_BREAK}", word[0])


def _escape(character: re.Match[str]) -> str:
    return r"\:" if character[0] == _BREAK else f"\\[u{ord(character[0]):04X}]"


def _section(title: str, *content: nodes.Node) -> nodes.section:
    return nodes.section("", nodes.title("", title), *content)


def _paragraphs(text: str) -> list[nodes.Node]:
    return [_text(each) for each in text.split("\n\n")]


def _text(text: str) -> nodes.paragraph:
    return nodes.paragraph("", " ".join(text.split()))


def _definitions(items: Iterable[tuple[str, str]]) -> nodes.definition_list:
    return nodes.definition_list("", *(_definition([nodes.Text(term)], [_text(text)]) for term, text in items))


def _definition(term: Iterable[nodes.Node], content: Iterable[nodes.Node]) -> nodes.definition_list_item:
    return nodes.definition_list_item("", nodes.term("", "", *term), nodes.definition("", *content))


def _see_also(names: Iterable[str]) -> nodes.section:
    return _section("SEE ALSO", _text(", ".join(names)))


def _name(part: str | None) -> str:
    return f"nodeagent-{part}"


# ---- commands


def _subcommands(context: Context) -> Iterator[Context]:
    group = context.command
    if isinstance(group, TyperGroup):
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            if command is not None and not command.hidden:
                yield Context(command, info_name=name, parent=context)


def _summary(context: Context) -> str:
    return re.split(r"[.:;]?(?:\s*$|(?<=[.:;])\s)", " ".join((context.command.help or "").split()), maxsplit=1)[0]


def _overview(root: Context, commands: Iterable[Context]) -> Iterator[nodes.Node]:
    yield _section("SYNOPSIS", _text("nodeagent [OPTION]... COMMAND [ARG]..."))
    yield _section("DESCRIPTION", *_paragraphs(root.command.help or ""))
    yield _section("OPTIONS", _parameters(root))
    listed = ((f"{_name(each.info_name)}(1)", _summary(each)) for each in commands)
    yield _section("COMMANDS", _definitions(listed))
    yield _section("ALIASES", _definitions((each, " ".join(words)) for each, words in ALIASES.items()))
    yield from _exit_status(root)
    yield _section("FILES", _definitions(_FILES.items()))
    yield _section("ENVIRONMENT", _definitions(_VARIABLES.items()))


def _command(context: Context) -> Iterator[nodes.Node]:
    subcommands = list(_subcommands(context))
    usage = ((each.command_path, *each.command.collect_usage_pieces(each)) for each in (context, *subcommands))
    yield _section("SYNOPSIS", nodes.line_block("", *(nodes.line("", " ".join(each)) for each in usage)))
    yield _section("DESCRIPTION", *_paragraphs(context.command.help or ""))
    yield _section("OPTIONS", _parameters(context))
    if subcommands:
        yield _section("COMMANDS", *map(_subcommand, subcommands))
    yield from _exit_status(context)
    examples = [
        (title, command)
        for each in (context, *subcommands)
        for title, command in EXAMPLES.get(" ".join(each.command_path.split()[1:]), ())
    ]
    if examples:
        shown = (_definition([nodes.Text(title)], [nodes.literal_block("", text)]) for title, text in examples)
        yield _section("EXAMPLES", nodes.definition_list("", *shown))


def _subcommand(context: Context) -> nodes.section:
    return _section(context.command_path, *_paragraphs(context.command.help or ""), _parameters(context))


def _parameters(context: Context) -> nodes.definition_list:
    """Return the arguments and options of a command; ``--help`` only for commands of the first level."""
    nested = context.parent is not None and context.parent.parent is not None
    shown = [each for each in context.command.get_params(context) if not (nested and each.name == "help")]
    return _definitions(filter(None, (each.get_help_record(context) for each in shown)))


def _exit_status(context: Context) -> Iterator[nodes.Node]:
    epilog = (context.command.epilog or "").partition("Exit codes: ")[2].rstrip(".")
    if epilog:
        yield _section("EXIT STATUS", _definitions(re.findall(r"(\d+) (.+?)(?=, \d+ |$)", epilog)))


# ---- settings


def _settings() -> Iterator[nodes.Node]:
    yield _section("SYNOPSIS", _text("/etc/nodeagent/config.toml, /etc/nodeagent/config.d/*.toml"))
    yield _section("DESCRIPTION", *_paragraphs(_SETTINGS))
    settings = list(settings_of(Config))
    for section in dict.fromkeys(each.section for each in settings):
        described = (
            (each.name, f"{each.description} Form: {each.form}. Default: {toml_value(each.default)}")
            for each in settings
            if each.section == section
        )
        yield _section(f"[{section}]" if section else "TOP LEVEL", _definitions(described))


# ---- documents


def _document(name: str, path: Path) -> tuple[str, str]:
    """Return the page of a document.

    A row of a table is an item of a list: its cells are sentences, which side by side would be only a few characters
    wide on a terminal of 80 columns.
    """
    source = path.read_text(encoding="utf-8")
    document = publish_doctree(source, str(path), parser=Parser(), settings_overrides={**_OPTIONS, **_MARKDOWN})
    linked = dict.fromkeys(re.findall(r"\]\(([a-z-]+)\.md[#)]", source))
    for link in list(document.findall(nodes.reference)):
        link.parent.replace(link, [*link.children, *_target(link["refuri"])])
    for table in list(document.findall(nodes.table)):
        table.parent.replace(table, nodes.definition_list("", *_rows(table)))
    title, *content = document.children
    see = _see_also(["nodeagent(1)", *(f"{_name(each)}(7)" for each in linked if each != path.stem)])
    return _page(name, 7, "Documents", title.astext(), [_section("DESCRIPTION"), *content, see])


def _target(uri: str) -> list[nodes.Node]:
    """Return the text printed after a link: a manual page, a URL, or nothing for a link within the same page."""
    document = re.fullmatch(r"(?:.*/)?([a-z-]+)\.md(?:#.*)?", uri)
    if document:
        return [nodes.Text(" ("), nodes.strong("", _name(document[1])), nodes.Text("(7))")]
    return [nodes.Text(f" <{uri}>")] if "://" in uri else []


def _rows(table: nodes.table) -> Iterator[nodes.definition_list_item]:
    """Yield the rows: the first cell as term, then the other cells, if several with their headings."""
    headings, *rows = ([_cell(entry) for entry in row.children] for row in table.findall(nodes.row))
    for first, *others in rows:
        text = nodes.paragraph()
        for heading, cell in zip(headings[1:], others, strict=True):
            if text.children:
                text += nodes.raw("", "\n.br", format="manpage")
            if len(others) > 1 and heading:
                text += [*(each.deepcopy() for each in heading), nodes.Text(": ")]
            text += cell
        yield _definition(first or [nodes.Text("—")], [text])


def _cell(entry: nodes.entry) -> list[nodes.Node]:
    return [each for paragraph in entry.children for each in paragraph.children]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
