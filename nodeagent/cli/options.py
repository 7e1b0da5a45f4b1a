"""Options shared by several commands, each declared once.

Command modules do not use ``from __future__ import annotations``, since typer reads the annotations of a command at run
time.
"""

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from enum import StrEnum
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer
from typer._click.exceptions import NoSuchOption
from typer.core import TyperGroup

from nodeagent.cli.completion_values import namespaces
from nodeagent.cli.exit_codes import end_without_reader
from nodeagent.cli.help import ALIASES, example_text, expand_alias, reads_only
from nodeagent.cli.listing import ListOptions, ListView
from nodeagent.errors import UsageError
from nodeagent.units import parse_duration_s

if TYPE_CHECKING:
    from nodeagent.gc.plan.policy import SpaceGoal

Overrides = Mapping[str, str | int]
"""Setting values from command-line options, by the key of the setting."""


class Source(NamedTuple):
    """Options that select the daemon or the node as the source of a command's document.

    Attributes:
        config: configuration file of the command; ``None`` for the default file.
        overrides: settings of the command line, by key.
        direct: whether the node is read even if a daemon is running.
    """

    config: Path | None = None
    overrides: Mapping[str, str | int] = {}
    direct: bool = False


class CollectOptions(NamedTuple):
    """The options of one command that removes items.

    Attributes:
        scope: kinds of items, as in :class:`~nodeagent.gc.plan.policy.Scope`.
        dry_run: whether nothing is removed; ``None`` for ``dry_run`` of the configuration.
        only: patterns of the images to remove; empty for all images.
        is_named: whether every image in ``only`` is to be removed, so that a kept image is a failure.
        goal: requested space; ``None`` for the thresholds.
    """

    scope: str
    config: Path | None
    dry_run: bool | None
    yes: bool
    output: str
    show_kept: bool
    overrides: Mapping[str, str | int] = {}
    direct: bool = False
    only: tuple[str, ...] = ()
    is_named: bool = False
    goal: "SpaceGoal | None" = None

    @property
    def is_table(self) -> bool:
        """Whether the output is a table; ``wide`` adds ids and the sentences of reasons."""
        return self.output in ("table", "wide")


class CommandGroup(TyperGroup):
    """Command group whose help lists each command with the first line of its docstring, without the full stop.

    The examples of a command precede its epilog.
    """

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ANN401 - types of a module private to typer
        """Return a command by name, with its examples; ``None`` for an unknown command."""
        command = super().get_command(ctx, cmd_name)
        examples = example_text(" ".join((*ctx.command_path.split()[1:], cmd_name)))
        if command is not None and examples and not (command.epilog or "").startswith(examples):
            command.epilog = f"{examples}\n\n{command.epilog or ''}".rstrip()
        return command

    def __init__(self, **options: Any) -> None:  # noqa: ANN401 - options of typer's group
        """Create a group without the suggestions of typer, which name commands that remove items too."""
        super().__init__(**{**options, "suggest_commands": False})

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:  # noqa: ANN401 - types of a module private to typer
        """Return the command named by the first words with its arguments; fail for an unknown command."""
        group, name = ctx.command_path.split()[1:], args[0]
        words = args if group else expand_alias(args)
        if not ctx.resilient_parsing and not name.startswith("-") and self.get_command(ctx, words[0]) is None:
            names = [*self.commands, *([] if group else ALIASES)]
            similar = [each for each in get_close_matches(name, names) if reads_only([*group, each])]
            hint = f"; did you mean {' or '.join(map(repr, similar))}?" if similar else ""
            ctx.fail(f"no command {' '.join((*group, name))!r}{hint}")
        return super().resolve_command(ctx, words)

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401 - types of a module private to typer
        """Run a command; reword the errors of an invalid option value and of an option that only the group has.

        If the reader of the output has ended, the process exits.
        """
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            error.message = _worded(error.message)
            raise
        except NoSuchOption as error:
            if any(error.option_name in each.opts for each in self.params):
                error.message, error.possibilities = _of_group(error.option_name, ctx), ()
            raise
        except BrokenPipeError:  # typer would exit with 1
            end_without_reader()

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401, ARG002 - types of a module private to typer
        """Write the commands grouped by panel, with unabridged summaries."""
        panels: dict[str, list[tuple[str, str]]] = {}
        for name in self.commands:
            title, text = self.describe(name)
            panels.setdefault(title, []).append((name, text.strip().partition("\n")[0].removesuffix(".")))
        for title, rows in panels.items():
            with formatter.section(title):
                formatter.write_dl(rows)

    def describe(self, name: str) -> tuple[str, str]:
        """Return the panel and the description of a command."""
        command: Any = self.commands[name]
        return command.rich_help_panel or "Commands", command.help or ""


def command_group(text: str, *, epilog: str | None = None) -> typer.Typer:
    """Return a group of commands that prints its help without a command; ``text`` is its description."""
    return typer.Typer(cls=CommandGroup, help=text, epilog=epilog, no_args_is_help=True, rich_markup_mode=None)


_WORDINGS: Final = (
    (re.compile(r"^.* is not a valid int( range)?\."), "must be a whole number"),
    (re.compile(r"^.* is not a valid float( range)?\."), "must be a number"),
    (re.compile(r"^.* is not in the range x>=(.+)\.$"), r"must be at least \1"),
)
"""Replacements for messages of typer's types: its messages address programmers."""


def _of_group(options: str, ctx: Any) -> str:  # noqa: ANN401 - types of a module private to typer
    return f"{options}: only of '{ctx.command_path}' without a subcommand"


def _worded(message: str) -> str:
    for pattern, words in _WORDINGS:
        message = pattern.sub(words, message)
    return message


class Output(StrEnum):
    """Output formats of commands that print one document."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


class PlanOutput(StrEnum):
    """Output formats of plans and checks; ``wide`` adds ids and sentences of reasons, or a table."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"


_LIST_FORMS: Final = ("table", "wide", "json", "yaml", "name", "jsonpath=", "custom-columns=")
"""Output formats of list commands; the last two are followed by an expression."""


def _list_form(text: str) -> tuple[str, str]:
    """Return the output format of a list and its expression, which only ``jsonpath`` and ``custom-columns`` have.

    Raises:
        UsageError: the format is unknown, or its expression is missing.
    """
    form, equals, expression = text.partition("=")
    if f"{form}{equals}" not in _LIST_FORMS or (equals and not expression):
        raise UsageError(
            f"--output {text}: must be table, wide, json, yaml, name, jsonpath=TEMPLATE or "
            "custom-columns=TITLE:PATH,..."
        )
    return form, expression


def named_file(value: Path | None) -> Path | None:
    """Check that the value of an option or argument is a file name, and return it.

    Raises:
        BadParameter: the value is empty, ``.`` or ``/``.
    """
    if value is not None and not value.name:  # such as an unset shell variable
        raise typer.BadParameter("no file name")
    return value


def refuse_options_before_subcommand(context: typer.Context) -> None:
    """Check that no option precedes the subcommand: the option would be ignored.

    Raises:
        UsageError: an option precedes the subcommand.
    """
    group: Any = context.command
    subcommand = group.get_command(context, context.invoked_subcommand)
    allowed = {opt for each in subcommand.params for opt in each.opts}
    given = [
        max(each.opts, key=len)
        for each in group.params
        if each.name
        and (source := context.get_parameter_source(each.name)) is not None
        and source.name == "COMMANDLINE"
    ]
    if own := [each for each in given if each not in allowed]:
        raise UsageError(_of_group(", ".join(own), context))
    if given:
        raise UsageError(f"{', '.join(given)}: options must follow '{context.invoked_subcommand}'")


ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        metavar="FILE",
        help="Configuration file [default: /etc/nodeagent/config.toml if it exists]",
        callback=named_file,
    ),
]
EndpointOption = Annotated[
    str | None,
    typer.Option("--endpoint", metavar="unix:///PATH", help="Runtime socket [default: configured, else detected]"),
]
OutputOption = Annotated[Output, typer.Option("--output", "-o", help="Output format")]
PlanOutputOption = Annotated[PlanOutput, typer.Option("--output", "-o", help="Output format")]
RunOption = Annotated[
    bool | None,
    typer.Option("--dry-run/--no-dry-run", "-n", help="Only list removals; --no-dry-run ignores dry_run = true"),
]
DirectOption = Annotated[bool, typer.Option("--direct", help="Read the node itself, not through the daemon")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Remove without confirmation")]
KeptOption = Annotated[bool, typer.Option("--kept", "-k", help="List kept items too, each with its reason")]
ForceOption = Annotated[bool, typer.Option("--force", help="Replace an existing file")]
EveryOption = Annotated[
    float, typer.Option("--every", metavar="SECONDS", min=0.2, help="Refresh interval", show_default=True)
]
PrefixOption = Annotated[
    Path, typer.Option("--prefix", metavar="DIR", help="Directory of the virtual environment", show_default=True)
]
RootOption = Annotated[
    Path | None,
    typer.Option("--root", metavar="DIR", help="Place files below DIR instead of /; run no command"),
]


def since_option(text: str) -> Any:  # noqa: ANN401 - typer's option, for an annotation
    """Return the option ``--since`` with its help text; an empty value, such as an unset variable, is an error."""
    return typer.Option(
        "--since",
        metavar="TIME",
        help=text,
        callback=_given_time,
        autocompletion=lambda: ["today", "yesterday"],
    )


def _given_time(context: typer.Context, parameter: typer.CallbackParam, value: str) -> str:
    source = context.get_parameter_source(parameter.name or "")
    if not value and source is not None and source.name != "DEFAULT":
        raise UsageError("--since: empty; write a time such as 2h, yesterday or 2026-03-01")
    return value


def duration_s(option: str, text: str) -> float:
    """Return the duration given to an option, in seconds.

    Raises:
        UsageError: the text is not a duration.
    """
    try:
        return parse_duration_s(text)
    except ValueError as error:
        raise UsageError(f"{option}: {error}") from error


class SettingOption(NamedTuple):
    """An option that overrides one setting.

    Attributes:
        key: the setting, such as ``image_gc.max_images_per_pass``.
        annotation: the annotated type of the option, for typer.
        flag: the option, such as ``--max-images``.
    """

    key: str
    annotation: Any
    flag: str

    @property
    def parameter(self) -> str:
        """The name of the parameter, unique among the options of one command."""
        return self.key.replace(".", "_")


def _setting(key: str, kind: type, flag: str, metavar: str, text: str) -> SettingOption:
    return SettingOption(key, Annotated[kind | None, typer.Option(flag, metavar=metavar, help=text)], flag)


UNDO_WINDOW: Final = _setting(
    "image_gc.undo_window", str, "--undo-window", "DURATION", "Free space after this time; 0s: immediately"
)
IMAGE_GC: Final = (
    _setting(
        "image_gc.high_threshold_percent", int, "--high", "PERCENT", "Start removing at this imagefs usage, above --low"
    ),
    _setting("image_gc.low_threshold_percent", int, "--low", "PERCENT", "Stop removing at this imagefs usage"),
    _setting("image_gc.minimum_age", str, "--minimum-age", "DURATION", "Keep images detected more recently than this"),
    _setting(
        "image_gc.maximum_unused_age", str, "--maximum-unused-age", "DURATION", "Remove images unused for this long"
    ),
    _setting("image_gc.max_images_per_pass", int, "--max-images", "N", "Remove at most N images in this pass"),
    _setting("image_gc.max_bytes_per_pass", str, "--max-bytes", "SIZE", "Free at most about SIZE in this pass"),
    UNDO_WINDOW,
)
CONTAINER_GC: Final = (
    _setting(
        "container_gc.minimum_age", str, "--dead-minimum-age", "DURATION", "Keep dead containers younger than this"
    ),
    _setting(
        "container_gc.max_per_pod_container",
        *(int, "--max-per-pod-container", "N", "Dead instances kept per container; -1 keeps all"),
    ),
    _setting(
        "container_gc.max_containers", int, "--max-containers", "N", "Dead containers kept in total; -1 keeps all"
    ),
    _setting(
        "container_gc.deleted_pod_grace",
        *(str, "--deleted-pod-grace", "DURATION", "Wait before an absent pod counts as deleted"),
    ),
)
OPTIONS: Final[Mapping[str, str]] = {
    **{each.key: each.flag for each in (*IMAGE_GC, *CONTAINER_GC)},
    "runtime.endpoint": "--endpoint",
}
"""Command-line option of each setting, by the key of the setting."""


def with_setting_options(*options: SettingOption) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that adds setting options to a command, passed by setting key as ``overrides``."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def run(**values: Any) -> None:  # noqa: ANN401 - typer converts values by the annotations below
            given = {option.key: values.pop(option.parameter) for option in options}
            command(**values, overrides={key: value for key, value in given.items() if value is not None})

        added = [(option.parameter, option.annotation, None) for option in options]
        _declare(run, command, added, replaced="overrides")
        return run

    return decorate


def with_collect_options(
    scope: str, *settings: SettingOption, yes: str = "Remove without confirmation"
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that adds the options of a removal to a command, passed as the argument ``request``.

    Args:
        scope: kinds of removed items.
        settings: further options, each of which overrides a setting.
        yes: help of ``--yes``.
    """
    added = {
        "config": (ConfigOption, None),
        "endpoint": (EndpointOption, None),
        "dry_run": (RunOption, None),
        "yes": (Annotated[bool, typer.Option("--yes", "-y", help=yes)], False),
        "output": (PlanOutputOption, PlanOutput.TABLE),
        "show_kept": (KeptOption, False),
        "direct": (DirectOption, False),
    }

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def collect(*, overrides: Overrides, **values: Any) -> None:  # noqa: ANN401 - typer converts values
            given = {name: values.pop(name) for name in added}
            given["output"] = given["output"].value
            overrides = at_endpoint(given.pop("endpoint"), overrides)
            command(**values, request=CollectOptions(scope, **given, overrides=overrides))

        _declare(collect, command, ((name, *one) for name, one in added.items()), replaced="request")
        return with_setting_options(*settings)(collect)

    return decorate


def _declare(
    run: Any,  # noqa: ANN401 - a function whose signature is set
    command: Callable[..., None],
    added: Iterable[tuple[str, Any, Any]],
    *,
    replaced: str,
) -> None:
    """Give ``run`` the parameters of ``command``, and others by name, annotation and default in place of one."""
    own = [each for name, each in inspect.signature(command).parameters.items() if name != replaced]
    parameters = [
        *(each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in own),
        *(
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
            for name, annotation, default in added
        ),
    ]
    run.__signature__ = inspect.Signature(parameters)
    run.__annotations__ = {each.name: each.annotation for each in parameters}


def with_list_options(
    view: "ListView[Any]", *, watches: bool = False
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that adds the list options to a command, passed as the argument ``listing``.

    With ``watches`` the list can be printed again after changes.
    """
    grouped = f"; with --group: {', '.join(view.groups.sort_keys)}" if view.groups is not None else ""
    keys = (
        f"Keys of --sort-by: {', '.join(view.sort_keys)}{grouped}.\n\n"
        f"Keys of --filter: {', '.join(view.filter_keys)}. KEY!=VALUE excludes; *, ? and [...] are wildcards; several "
        "values of one key are alternatives."
    )
    added = {**_list_parameters(view), **(_WATCH_OPTIONS if watches else {})}

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def run(**values: Any) -> None:  # noqa: ANN401 - typer converts values by the annotations below
            given = {name: values.pop(name) for name in added}
            form, expression = _list_form(given["output"])
            command(
                **values,
                listing=ListOptions(
                    form=form,
                    expression=expression,
                    watch_s=given["every"] if given.get("watch") else None,
                    sort_by=given["sort_by"],
                    filters=tuple(given["filters"] or ()),
                    headers=not given["no_headers"],
                    truncate=not given["no_trunc"],
                    quiet=given["quiet"],
                    group=given.get("group", False),
                    namespace="" if given.get("all_namespaces") else given.get("namespace", ""),
                ),
            )

        _declare(run, command, ((name, *one) for name, one in added.items()), replaced="listing")
        run.__doc__ = f"{inspect.getdoc(command)}\n\n{keys}"
        return run

    return decorate


def _list_parameters(view: "ListView[Any]") -> dict[str, tuple[Any, Any]]:
    """Return the type and the default of each list option, by the name of its parameter."""
    return {
        "output": (
            Annotated[
                str,
                typer.Option(
                    "--output",
                    "-o",
                    metavar="table|wide|json|yaml|name|jsonpath=TEMPLATE|custom-columns=TITLE:PATH,...",
                    help="Output format",
                    autocompletion=lambda: [*_LIST_FORMS],
                ),
            ],
            "table",
        ),
        "sort_by": (
            Annotated[
                str,
                typer.Option(
                    "--sort-by",
                    metavar="KEY",
                    help="Order of the rows; -KEY for descending",
                    autocompletion=lambda ctx: sort_completions(view, ctx),
                ),
            ],
            "",
        ),
        "filters": (
            Annotated[
                list[str] | None,
                typer.Option(
                    "--filter",
                    metavar="KEY=VALUE",
                    help="Only rows with this value; repeatable",
                    autocompletion=lambda incomplete: filter_completions(view, incomplete),
                ),
            ],
            None,
        ),
        "no_headers": (Annotated[bool, typer.Option("--no-headers", help="Omit the headings")], False),
        "no_trunc": (
            Annotated[bool, typer.Option("--no-trunc", help="Show full values on a terminal too")],
            False,
        ),
        "quiet": (Annotated[bool, typer.Option("--quiet", "-q", help="Print only ids")], False),
        **(_NAMESPACE_OPTIONS if view.namespace is not None else {}),
        **(_GROUP_OPTIONS if view.groups is not None else {}),
    }


_WATCH_OPTIONS: Final = {
    "watch": (
        Annotated[bool, typer.Option("--watch", "-w", help="Print again after changes, until interrupted")],
        False,
    ),
    "every": (EveryOption, 2.0),
}
_GROUP_OPTIONS: Final = {
    "group": (Annotated[bool, typer.Option("--group", help="Show the images of a repository in one row")], False),
}
_NAMESPACE_OPTIONS: Final = {
    "namespace": (
        Annotated[
            str,
            typer.Option(
                "--namespace",
                "-n",
                metavar="NAMESPACE",
                help="Only pods of this namespace [default: all]",
                autocompletion=namespaces,
            ),
        ],
        "",
    ),
    "all_namespaces": (
        Annotated[bool, typer.Option("--all-namespaces", "-A", help="Pods of all namespaces, as without -n")],
        False,
    ),
}


def sort_completions(view: "ListView[Any]", ctx: typer.Context) -> list[str]:
    """Return the completions of ``--sort-by``, of groups after ``--group``."""
    shown = view.groups if view.groups is not None and ctx.params.get("group") else view
    return [prefix + key for prefix in ("", "-") for key in shown.sort_keys]


def filter_completions(view: "ListView[Any]", incomplete: str) -> list[str]:
    """Return the completions of ``--filter``: keys, and after a key its values if they are known."""
    key, equals, _ = incomplete.partition("=")
    if not equals:
        return [f"{each}=" for each in view.filter_keys]
    columns = {each.key: each for each in view.columns if each.texts is not None}
    column = columns.get(key.removesuffix("!"))
    return [f"{key}={value}" for value in column.values()] if column is not None and column.values is not None else []


def at_endpoint(endpoint: str | None, overrides: Overrides | None = None) -> Overrides:
    """Return the overrides of a command, including the value of ``--endpoint`` if it is set."""
    return {**({} if endpoint is None else {"runtime.endpoint": endpoint}), **(overrides or {})}
