"""Manual pages, generated from the help of the command tree and the descriptions of the settings.

One page for each command with its sub-commands, one for the program, and one for the configuration file.
Source: man-pages(7), man(7).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import typer
from typer.core import TyperGroup, TyperOption

from nodeagent import __version__
from nodeagent.cli.examples import EXAMPLES
from nodeagent.config.models import Config
from nodeagent.config.toml_writer import settings_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

PROGRAM: Final = "nodeagent"
_SETTINGS_PAGE: Final = "nodeagent.toml"
_LONG_WORD: Final = 40
_BREAK: Final = "\0"  # a possible line break, before escaping
_ESCAPES: Final = str.maketrans(
    {
        "\\": "\\e",
        "-": "\\-",
        "'": "\\(aq",
        "`": "\\(ga",
        "~": "\\(ti",
        "^": "\\(ha",
        _BREAK: "\\:",
    }
)

_FILES: Final = (
    ("/etc/nodeagent/config.toml", "The configuration, see nodeagent.toml(5)."),
    ("/etc/nodeagent/config.d/*.toml", "Drop-ins, applied in the order of their names."),
    ("/var/lib/nodeagent", "State: image use, history, holds, plan key."),
)


def pages(root: TyperGroup) -> dict[str, str]:
    """Return the pages of a command tree by file name, such as ``nodeagent-gc.1``."""
    context = typer.Context(root, info_name=PROGRAM, **root.context_settings)
    commands = {name: root.get_command(context, name) for name in root.list_commands(context)}
    visible = {name: command for name, command in commands.items() if command is not None and not command.hidden}
    pages = {f"{PROGRAM}.1": _overview(context, visible)}
    for name, command in visible.items():
        pages[f"{PROGRAM}-{name}.1"] = _page(typer.Context(command, info_name=name, parent=context))
    return pages | {f"{_SETTINGS_PAGE}.5": _settings_page()}


def _overview(context: typer.Context, commands: Mapping[str, object]) -> str:
    lines = [*_head(PROGRAM, 1, "User commands", _first_sentence(context.command.help or ""))]
    lines += [".SH SYNOPSIS", f".B {PROGRAM}", f"[{_italic('OPTION')}]... {_italic('COMMAND')} [{_italic('ARG')}]..."]
    lines += [".SH DESCRIPTION", *_paragraphs(context.command.help or "")]
    lines += [".SH OPTIONS", *_parameters(context), ".SH COMMANDS"]
    for name, command in commands.items():
        lines += [".TP", f".BR {_word(f'{PROGRAM}-{name}')} (1)", _text(_first_sentence(getattr(command, "help", "")))]
    lines += _exit_status(context)
    lines += [".SH FILES"]
    for path, meaning in _FILES:
        lines += [".TP", f".I {_word(path)}", _text(meaning)]
    lines += [
        ".SH ENVIRONMENT",
        ".TP",
        ".BI NODEAGENT_ SECTION __ KEY",
        _text("Sets a value of the configuration, such as NODEAGENT_IMAGE_GC__HIGH_THRESHOLD_PERCENT=70."),
        ".SH SEE ALSO",
        _references([(_SETTINGS_PAGE, 5), ("journalctl", 1), ("systemctl", 1), ("crictl", 1)]),
    ]
    return "\n".join(lines) + "\n"


def _page(context: typer.Context) -> str:
    command = context.command
    help_text = command.help or ""
    name = f"{PROGRAM}-{context.info_name}"
    lines = [*_head(name, 1, "User commands", _first_sentence(help_text)), ".SH SYNOPSIS", *_synopsis(context)]
    subcommands = list(_subcommands(context))
    for each in subcommands:
        lines += [".br", *_synopsis(each)]
    lines += [".SH DESCRIPTION", *_paragraphs(help_text), ".SH OPTIONS", *_parameters(context)]
    if subcommands:
        lines.append(".SH COMMANDS")
    for each in subcommands:
        lines += [f".SS {_word(each.command_path)}", *_paragraphs(each.command.help or ""), *_parameters(each)]
    lines += _exit_status(context)
    lines += _examples([context, *subcommands])
    lines += [".SH SEE ALSO", _references([(PROGRAM, 1), (_SETTINGS_PAGE, 5)])]
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
    return [f".B {_word(context.command_path)}", _text(" ".join(pieces))]


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
        lines += [".TP", f"{mark} {_word(' '.join(name.split()))}", _text(description or "")]
    return lines


def _exit_status(context: typer.Context) -> list[str]:
    epilog = (context.command.epilog or "").partition("Exit codes: ")[2].rstrip(".")
    if not epilog:
        return []
    lines = [".SH EXIT STATUS"]
    for code, meaning in re.findall(r"(\d+) (.+?)(?=, \d+ |$)", epilog):
        lines += [".TP", f".B {code}", _text(meaning)]
    return lines


def _examples(contexts: Iterable[typer.Context]) -> list[str]:
    """Return the examples of these commands."""
    lines: list[str] = []
    for context in contexts:
        for title, command in EXAMPLES.get(" ".join(context.command_path.split()[1:]), ()):
            lines += [".TP", _text(title), f".B {_word(command)}"]
    return [".SH EXAMPLES", *lines] if lines else []


def _settings_page() -> str:
    lines = [*_head(_SETTINGS_PAGE, 5, "File formats", "configuration of nodeagent")]
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
    for each in settings_of(Config()):
        if each.section != section:
            section = each.section
            lines += [f".SH {_word(f'[{section}]' if section else 'TOP LEVEL')}"]
        lines += [".TP", f".B {_word(each.name)}", _text(each.description)]
        lines += [".br", _text(f"Form: {each.form}."), ".br", _text(f"Default: {each.value}")]
    lines += [".SH SEE ALSO", _references([(PROGRAM, 1), (f"{PROGRAM}-config", 1)])]
    return "\n".join(lines) + "\n"


def _head(name: str, section: int, manual: str, summary: str) -> list[str]:
    title = f'.TH {_word(name.upper())} {section} "" "{PROGRAM} {__version__}" "{manual}"'
    return [title, ".nh", ".ad l", ".SH NAME", f"{_escaped(name)} \\- {_escaped(summary.rstrip('.'))}"]


def _references(names: Iterable[tuple[str, int]]) -> str:
    *others, last = [f".BR {_word(name)} ({section})" for name, section in names]
    return "\n".join([*(f"{each}," for each in others), last])


def _first_sentence(text: str) -> str:
    whole = " ".join(text.split())
    return re.split(r"(?<=[.:;])\s", whole, maxsplit=1)[0].rstrip(".:;")


def _paragraphs(text: str) -> list[str]:
    parts = [_text(" ".join(each.split())) for each in text.split("\n\n") if each.strip()]
    return [line for each in parts for line in (".PP", each)][1:]


def _text(text: str) -> str:
    """Return running text, escaped so that no line is parsed as a request."""
    whole = _escaped(" ".join(_breakable(each) for each in text.split()))
    return f"\\&{whole}" if whole.startswith((".", "'")) else whole


def _word(text: str) -> str:
    """Return one escaped argument of a request."""
    whole = _escaped(text).replace('"', "\\(dq")
    return f'"{whole}"' if " " in whole or not whole else whole


def _italic(text: str) -> str:
    return f"\\fI{text}\\fR"


def _breakable(word: str) -> str:
    return word if len(word) <= _LONG_WORD else word.replace(",", f",{_BREAK}")


def _escaped(text: str) -> str:
    return text.translate(_ESCAPES)
