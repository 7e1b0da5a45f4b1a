"""Manual pages, generated from the help of the command tree, the descriptions of the settings and the documents.

There is one page per command with its subcommands, one for the program, one for the configuration file, and one per
document.
Source: man-pages(7), man(7).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import typer
from typer.core import TyperGroup, TyperOption

from nodeagent.cli.examples import EXAMPLES
from nodeagent.cli.manual_documents import document_pages, document_references
from nodeagent.cli.roff import PROGRAM, head, italic, references, text_line, word
from nodeagent.config.fields import settings_of
from nodeagent.config.models import Config
from nodeagent.config.toml_writer import toml_value

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

_SETTINGS_PAGE: Final = "nodeagent.toml"
_FILES: Final = (
    ("/etc/nodeagent/config.toml", "The configuration, see nodeagent.toml(5)."),
    ("/etc/nodeagent/config.d/*.toml", "Drop-ins, applied in the order of their names."),
    ("/var/lib/nodeagent", "State: image use, history, holds, plan key."),
)


def pages(root: TyperGroup) -> dict[str, str]:
    """Return the text of all manual pages by file name, such as ``nodeagent-gc.1``."""
    context = typer.Context(root, info_name=PROGRAM, **root.context_settings)
    commands = {name: root.get_command(context, name) for name in root.list_commands(context)}
    visible = {name: command for name, command in commands.items() if command is not None and not command.hidden}
    pages = {f"{PROGRAM}.1": _overview(context, visible)}
    for name, command in visible.items():
        pages[f"{PROGRAM}-{name}.1"] = _page(typer.Context(command, info_name=name, parent=context))
    return pages | {f"{_SETTINGS_PAGE}.5": _settings_page()} | document_pages()


def _overview(context: typer.Context, commands: Mapping[str, object]) -> str:
    lines = [*head(PROGRAM, 1, "User commands", _first_sentence(context.command.help or ""))]
    lines += [".SH SYNOPSIS", f".B {PROGRAM}", f"[{italic('OPTION')}]... {italic('COMMAND')} [{italic('ARG')}]..."]
    lines += [".SH DESCRIPTION", *_paragraphs(context.command.help or "")]
    lines += [".SH OPTIONS", *_parameters(context), ".SH COMMANDS"]
    for name, command in commands.items():
        lines += [
            ".TP",
            f".BR {word(f'{PROGRAM}-{name}')} (1)",
            text_line(_first_sentence(getattr(command, "help", ""))),
        ]
    lines += _exit_status(context)
    lines += [".SH FILES"]
    for path, meaning in _FILES:
        lines += [".TP", f".I {word(path)}", text_line(meaning)]
    lines += [
        ".SH ENVIRONMENT",
        ".TP",
        ".BI NODEAGENT_ SECTION __ KEY",
        text_line("Sets a value of the configuration, such as NODEAGENT_IMAGE_GC__HIGH_THRESHOLD_PERCENT=70."),
        ".SH SEE ALSO",
        references([(_SETTINGS_PAGE, 5), *document_references(), ("journalctl", 1), ("systemctl", 1), ("crictl", 1)]),
    ]
    return "\n".join(lines) + "\n"


def _page(context: typer.Context) -> str:
    command = context.command
    help_text = command.help or ""
    name = f"{PROGRAM}-{context.info_name}"
    lines = [*head(name, 1, "User commands", _first_sentence(help_text)), ".SH SYNOPSIS", *_synopsis(context)]
    subcommands = list(_subcommands(context))
    for each in subcommands:
        lines += [".br", *_synopsis(each)]
    lines += [".SH DESCRIPTION", *_paragraphs(help_text), ".SH OPTIONS", *_parameters(context)]
    if subcommands:
        lines.append(".SH COMMANDS")
    for each in subcommands:
        lines += [f".SS {word(each.command_path)}", *_paragraphs(each.command.help or ""), *_parameters(each)]
    lines += _exit_status(context)
    lines += _examples([context, *subcommands])
    lines += [".SH SEE ALSO", references([(PROGRAM, 1), (_SETTINGS_PAGE, 5)])]
    return "\n".join(lines) + "\n"


def _subcommands(context: typer.Context) -> Iterator[typer.Context]:
    command = context.command
    if not isinstance(command, TyperGroup):
        return
    for name in command.list_commands(context):
        subcommand = command.get_command(context, name)
        if subcommand is not None and not subcommand.hidden:
            yield typer.Context(subcommand, info_name=name, parent=context)


def _synopsis(context: typer.Context) -> list[str]:
    pieces = context.command.collect_usage_pieces(context)
    return [f".B {word(context.command_path)}", text_line(" ".join(pieces))]


def _parameters(context: typer.Context) -> list[str]:
    lines: list[str] = []
    nested = context.parent is not None and context.parent.parent is not None
    for parameter in context.command.get_params(context):
        if nested and parameter.name == "help":
            continue
        record = parameter.get_help_record(context)
        if record is None:
            continue
        name, description = record
        mark = ".B" if isinstance(parameter, TyperOption) else ".I"
        lines += [".TP", f"{mark} {word(' '.join(name.split()))}", text_line(description or "")]
    return lines


def _exit_status(context: typer.Context) -> list[str]:
    epilog = (context.command.epilog or "").partition("Exit codes: ")[2].rstrip(".")
    if not epilog:
        return []
    lines = [".SH EXIT STATUS"]
    for code, meaning in re.findall(r"(\d+) (.+?)(?=, \d+ |$)", epilog):
        lines += [".TP", f".B {code}", text_line(meaning)]
    return lines


def _examples(contexts: Iterable[typer.Context]) -> list[str]:
    """Return the lines of the section EXAMPLES for these commands; empty without examples."""
    lines: list[str] = []
    for context in contexts:
        for title, command in EXAMPLES.get(" ".join(context.command_path.split()[1:]), ()):
            lines += [".TP", text_line(title), f".B {word(command)}"]
    return [".SH EXAMPLES", *lines] if lines else []


def _settings_page() -> str:
    lines = [*head(_SETTINGS_PAGE, 5, "File formats", "configuration of nodeagent")]
    lines += [
        ".SH SYNOPSIS",
        ".I /etc/nodeagent/config.toml",
        ".br",
        ".I /etc/nodeagent/config.d/*.toml",
        ".SH DESCRIPTION",
        *_paragraphs(
            "A TOML file. Drop-ins in config.d beside it override it in the order of their names; variables "
            "NODEAGENT_SECTION__KEY override the files, and options of a command override the variables. Tables are "
            "merged, other values are replaced. Every setting has a default; an unknown setting is an error.\n\n"
            "Durations are written with units (2m, 1h30m, 7d), sizes with suffixes (500Mi, 2G) or as bytes."
        ),
    ]
    section = None
    for each in settings_of(Config):
        if each.section != section:
            section = each.section
            lines += [f".SH {word(f'[{section}]' if section else 'TOP LEVEL')}"]
        lines += [".TP", f".B {word(each.name)}", text_line(each.description)]
        lines += [".br", text_line(f"Form: {each.form}."), ".br", text_line(f"Default: {toml_value(each.default)}")]
    lines += [".SH SEE ALSO", references([(PROGRAM, 1), (f"{PROGRAM}-config", 1)])]
    return "\n".join(lines) + "\n"


def _first_sentence(text: str) -> str:
    whole = " ".join(text.split())
    return re.split(r"(?<=[.:;])\s", whole, maxsplit=1)[0].rstrip(".:;")


def _paragraphs(text: str) -> list[str]:
    parts = [text_line(" ".join(each.split())) for each in text.split("\n\n") if each.strip()]
    return [line for each in parts for line in (".PP", each)][1:]
