"""Declaration of lists, the common options of list commands, and the columns of each list in table order.

A list is declared once, as a ``ListView``: its columns define the cells of the table, the keys of ``--sort-by`` and
the keys of ``--filter``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import UTC, datetime
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

from nodeagent.cli.groups import Group, in_groups, repository
from nodeagent.cli.table import SHORTEST, Heading, age, done_cell, short_id, short_reference, size_cell
from nodeagent.text import Cut
from nodeagent.units import format_duration, format_local_time, localize_times

if TYPE_CHECKING:
    from nodeagent.gc.documents.history import NodeStopDocument, PastPassDocument
    from nodeagent.gc.documents.holds import HoldFields
    from nodeagent.gc.documents.lists import ContainerDocument, ImageDocument, Pod

R = TypeVar("R")


class ListScope(Enum):
    """Scope of a column: the tables that show the column.

    Attributes:
        TABLE: every table.
        WIDE: ``-o wide``.
        FULL: every table whose values are not cut: in a pipe, or with ``--no-trunc``.
        KEY: no table; the column is only a key of ``--sort-by`` and ``--filter``.
    """

    TABLE = "table"
    WIDE = "wide"
    FULL = "full"
    KEY = "key"


class Column(NamedTuple, Generic[R]):
    """A column of a list.

    Attributes:
        key: key of ``--sort-by`` and ``--filter``.
        heading: title, alignment and shortening.
        value: returns the sort value of a row; rows with ``None`` are sorted last.
        show: returns the cell of a row, given the time of the document.
        scope: the tables that show the column.
        texts: returns the texts compared with ``--filter``; ``None`` for a column without a filter.
        brief: returns the shortened cell for a terminal without ``--no-trunc``; ``None`` for the cell of ``show``.
        values: returns all values of ``--filter``, in lower case and compared without regard to case; ``None`` for a
            column with any values.
        resolve: returns the ids of the rows that a value of ``--filter`` names, in addition to ``texts``.
    """

    key: str
    heading: Heading
    value: Callable[[R], Any]
    show: Callable[[R, datetime], str]
    scope: ListScope = ListScope.TABLE
    texts: Callable[[R], Sequence[str]] | None = None
    brief: Callable[[R], str] | None = None
    values: Callable[[], tuple[str, ...]] | None = None
    resolve: Callable[[Sequence[R], str], Collection[str]] | None = None


def text(
    key: str,
    title: str,
    value: Callable[[R], str],
    *,
    cut: Cut | None = None,
    name: bool = False,
    at_least: int = SHORTEST,
    scope: ListScope = ListScope.TABLE,
    texts: Callable[[R], Sequence[str]] | None = None,
    brief: Callable[[R], str] | None = None,
    values: Callable[[], tuple[str, ...]] | None = None,
    resolve: Callable[[Sequence[R], str], Collection[str]] | None = None,
    optional: bool = False,
) -> Column[R]:
    """Return a text column; ``texts`` returns the texts compared with ``--filter``, by default only the value."""
    return Column(
        key,
        Heading(title, cut=cut, name=name, at_least=at_least, optional=optional),
        value,
        lambda row, _: value(row),
        scope,
        texts or (lambda row: (value(row),)),
        brief,
        values,
        resolve,
    )


def identifier(key: str, title: str, value: Callable[[R], str], *, scope: ListScope = ListScope.TABLE) -> Column[R]:
    """Return a column of ids, cut to twelve digits on a terminal; ``--filter`` matches the full and the short id."""

    def forms(row: R) -> tuple[str, ...]:
        return value(row), short_id(value(row))

    return text(key, title, value, scope=scope, texts=forms, brief=lambda row: short_id(value(row)))


def size(
    key: str,
    title: str,
    value: Callable[[R], int | None],
    *,
    scope: ListScope = ListScope.TABLE,
    mark: Callable[[R], str] = lambda _: "",
    missing: str = "?",
) -> Column[R]:
    """Return a column of sizes in bytes, each with the prefix of ``mark``; ``missing`` is shown for ``None``."""

    def show(row: R, _: datetime) -> str:
        size_bytes = value(row)
        return missing if size_bytes is None else f"{mark(row)}{size_cell(size_bytes)}"

    return Column(key, Heading(title, right=True), value, show, scope)


def count(
    key: str,
    title: str,
    value: Callable[[R], int | None],
    *,
    scope: ListScope = ListScope.TABLE,
    optional: bool = False,
) -> Column[R]:
    """Return a column of whole numbers; empty for ``None``."""

    def show(row: R, _: datetime) -> str:
        number = value(row)
        return "" if number is None else str(number)

    heading = Heading(title, right=True, optional=optional)
    return Column(key, heading, value, show, scope, lambda row: (show(row, EPOCH),))


def since(
    key: str,
    title: str,
    value: Callable[[R], datetime | None],
    *,
    missing: str = "?",
    first: str = "",
    scope: ListScope = ListScope.TABLE,
) -> Column[R]:
    """Return a column of ages; ``missing`` is shown for ``None``, ``first`` (if given) for the time of the document."""

    def show(row: R, now: datetime) -> str:
        moment = value(row)
        if moment is None:
            return missing
        return first if first and moment == now else age(moment, now)

    return Column(key, Heading(title, is_time=True), value, show, scope)


def time(key: str, title: str, value: Callable[[R], datetime], *, name: bool = False) -> Column[R]:
    """Return a column of times, shown in the local time zone; ``--filter`` matches the shown time."""

    def show(row: R, _: datetime) -> str:
        return format_local_time(value(row))

    return Column(key, Heading(title, name=name, is_time=True), value, show, texts=lambda row: (show(row, EPOCH),))


def duration(key: str, title: str, value: Callable[[R], float], *, scope: ListScope = ListScope.TABLE) -> Column[R]:
    """Return a column of durations; ``value`` returns seconds."""
    return Column(key, Heading(title, is_time=True), value, lambda row, _: format_duration(value(row)), scope)


class ListView(NamedTuple, Generic[R]):
    """The declaration of a list.

    Attributes:
        rows: name of the document field with the rows.
        columns: the columns in table order.
        id: returns the id of a row, printed with ``--quiet``.
        name: returns the name of a row, printed with ``-o name``.
        style: returns the style of a row; empty for plain text.
        namespace: returns the namespace of a row, selected with ``--namespace``; ``None`` for a list without it.
        in_namespace: columns of a table of one namespace, in place of the columns with the same keys.
        groups: the list of ``--group``, whose rows ``group`` returns; ``None`` for a list without groups.
        group: returns the groups of rows.
        watched: returns the part of a row that is compared by ``--watch``; a change prints the list again.
    """

    rows: str
    columns: Sequence[Column[R]]
    id: Callable[[R], str]
    name: Callable[[R], str]
    style: Callable[[R], str] = lambda _: ""
    namespace: Callable[[R], str] | None = None
    in_namespace: Sequence[Column[R]] = ()
    groups: ListView[Any] | None = None
    group: Callable[[Sequence[R]], Sequence[Any]] = lambda rows: rows
    watched: Callable[[R], object] = lambda row: row

    @property
    def sort_keys(self) -> tuple[str, ...]:
        """The keys of ``--sort-by``."""
        return tuple(each.key for each in self.columns)

    @property
    def filter_keys(self) -> tuple[str, ...]:
        """The keys of ``--filter``."""
        return tuple(each.key for each in self.columns if each.texts is not None)


class ListOptions(NamedTuple):
    """The options of a list command.

    Attributes:
        form: ``table``, ``wide``, ``json``, ``yaml``, ``name``, ``jsonpath`` or ``custom-columns``.
        sort_by: key of a column, with the prefix ``-`` for descending order; empty for the order of the document.
        filters: conditions ``KEY=VALUE`` or ``KEY!=VALUE``; ``*``, ``?`` and ``[...]`` in a value are wildcards.
        headers: whether a table has headings.
        truncate: whether values are cut to the width of a terminal.
        quiet: whether only ids are printed.
        namespace: namespace of the printed rows; empty for all namespaces.
        expression: template of ``jsonpath``, or columns of ``custom-columns``.
        watch_s: interval in seconds at which the list is read again; ``None`` for a list that is printed once.
        group: whether the images of a repository are one row.
    """

    form: str = "table"
    sort_by: str = ""
    filters: tuple[str, ...] = ()
    headers: bool = True
    truncate: bool = True
    quiet: bool = False
    namespace: str = ""
    expression: str = ""
    watch_s: float | None = None
    group: bool = False

    @property
    def is_table(self) -> bool:
        """Whether the output is a table: ``table`` or ``wide`` without ``--quiet``."""
        return self.form in ("table", "wide") and not self.quiet


EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_NAME_CELLS: Final = 16
_REASON_CELLS: Final = 12
_PASS_CELLS: Final = 17
"""Width of the time at the beginning of the id of a pass, by which ``history`` finds the pass, and of an ellipsis."""
_FAILURES: Final = ("Error", "OOMKilled", "Exited")


def _values(*groups: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(str(each).lower() for group in groups for each in group))


# The closed sets of values are imported when a filter needs them: their modules are slow to import.


def _verdicts() -> tuple[str, ...]:
    from nodeagent.model.decision import Verdict  # noqa: PLC0415

    return _values(Verdict)


def _reasons() -> tuple[str, ...]:
    from nodeagent.model.reason_codes import ReasonCode  # noqa: PLC0415

    return _values(ReasonCode)


def _triggers() -> tuple[str, ...]:
    from nodeagent.gc.executor import PassTrigger  # noqa: PLC0415

    return _values(PassTrigger)


def _pass_scopes() -> tuple[str, ...]:
    from nodeagent.cluster import FAILED_PODS  # noqa: PLC0415
    from nodeagent.gc.plan.policy import Scope  # noqa: PLC0415

    return _values(Scope, ["pods", FAILED_PODS])


def _results() -> tuple[str, ...]:
    from nodeagent.gc.executor import PassEnd  # noqa: PLC0415
    from nodeagent.store.history import INTERRUPTED, RUNNING  # noqa: PLC0415

    return _values(PassEnd, ["failed", "dry-run", RUNNING, INTERRUPTED])


def _reasons_of_passes() -> tuple[str, ...]:
    """Return the reasons of recorded actions: of removals and evictions, of an undo, of the deletion of failed pods."""
    from nodeagent.cluster.plan.failed_pods import PodVerdict  # noqa: PLC0415
    from nodeagent.gc.pass_history import UNDO  # noqa: PLC0415

    return _values(_reasons(), [UNDO, PodVerdict.DELETE])


def _container_states() -> tuple[str, ...]:
    from nodeagent.model.runtime import ContainerState  # noqa: PLC0415
    from nodeagent.pods.plan.status import CONTAINER_WORDS  # noqa: PLC0415

    return _values(ContainerState, CONTAINER_WORDS)


def _pod_statuses() -> tuple[str, ...]:
    from nodeagent.pods.plan.status import StatusWord  # noqa: PLC0415

    return _values(StatusWord, ["present"])


_SENTENCE: Final = 40


def _verdict_style(row: ImageDocument | ContainerDocument) -> str:
    return "red" if str(row.verdict) == "remove" else ""


def _bound(row: ImageDocument) -> str:
    return "\u2264" if str(row.accounting) == "upper-bound" and row.frees_bytes is not None else ""


def _verdict(value: Callable[[Any], str], *, optional: bool = False) -> Column[Any]:
    return text("verdict", "VERDICT", value, values=_verdicts, optional=optional)


def _reason(value: Callable[[Any], str]) -> Column[Any]:
    return text("reason", "REASON", value, values=_reasons, cut=Cut.END, at_least=_REASON_CELLS)


def _message(value: Callable[[Any], str]) -> Column[Any]:
    """Return the column of a sentence, with local times."""
    return text(
        "message",
        "MESSAGE",
        lambda row: localize_times(value(row)),
        scope=ListScope.WIDE,
        cut=Cut.END,
        at_least=_SENTENCE,
    )


def _references(row: ImageDocument) -> tuple[str, ...]:
    return (*row.repo_tags, *row.repo_digests, row.id)


def _name(row: ImageDocument) -> str:
    return _references(row)[0]


def _image_names(row: ImageDocument) -> tuple[str, ...]:
    """Return all names of an image with the short forms that ``explain`` accepts; the id of an image without names."""
    names = _references(row)[:-1]
    return tuple(dict.fromkeys((*names, *(form for name in names for form in _spellings(name))))) or (row.id,)


def _resolve_images(rows: Sequence[ImageDocument], name: str) -> Collection[str]:
    """Return the ids of the images that a name, digest or id names, as in ``explain``."""
    from nodeagent.gc.plan.image_users import ImageIndex  # noqa: PLC0415 - needed only for a filter by name
    from nodeagent.model.runtime import Image  # noqa: PLC0415

    return ImageIndex([Image(each.id, each.repo_tags, each.repo_digests) for each in rows]).resolve(name)


def _spellings(name: str) -> tuple[str, ...]:
    from nodeagent.gc.plan.image_users import spellings  # noqa: PLC0415 - needed only for a filter by image

    return tuple(sorted(spellings(name)))


def _short_name(row: ImageDocument) -> str:
    others = len(row.repo_tags) - 1
    return f"{short_reference(_name(row))} (+{others})" if others > 0 else short_reference(_name(row))


IMAGE_GROUPS: Final[ListView[Group[ImageDocument]]] = ListView(
    "images",
    (
        text("repository", "REPOSITORY", lambda row: row.name, cut=Cut.PATH, name=True, at_least=_NAME_CELLS),
        count("images", "IMAGES", lambda row: len(row.items)),
        Column(
            "last-used",
            Heading("LAST USED", is_time=True),
            lambda row: row.newest_use,
            lambda row, now: row.use_cell(now),
        ),
        size("frees", "FREES", lambda row: row.planned_bytes, mark=lambda row: _bound(row.items[0])),
        text("verdict", "VERDICT", lambda row: row.verdict),
        text("reason", "REASON", lambda row: row.reason, cut=Cut.END, at_least=_REASON_CELLS),
    ),
    id=lambda row: row.name,
    name=lambda row: row.name,
    style=lambda row: "red" if row.verdict == "remove" else "",
)


def _without_use(row: ImageDocument) -> ImageDocument:
    """Return a row without its last use: of an image in use, it is the time of the reading."""
    from msgspec import structs  # noqa: PLC0415 - not needed for the completion

    return structs.replace(row, last_used=None)


IMAGES: Final[ListView[ImageDocument]] = ListView(
    "images",
    (
        text(
            "name",
            "IMAGE",
            _name,
            cut=Cut.PATH,
            name=True,
            at_least=_NAME_CELLS,
            texts=_image_names,
            brief=_short_name,
            resolve=_resolve_images,
        ),
        identifier("id", "IMAGE ID", lambda row: row.id, scope=ListScope.WIDE),
        size("size", "SIZE", lambda row: row.size_bytes),
        size("frees", "FREES", lambda row: row.frees_bytes, mark=_bound, scope=ListScope.WIDE),
        since("last-used", "LAST USED", lambda row: row.last_used, missing="none seen"),
        since("first-detected", "DETECTED", lambda row: row.first_detected, first="now", scope=ListScope.WIDE),
        text(
            "pinned",
            "PINNED",
            lambda row: "true" if row.pinned else "false",
            scope=ListScope.WIDE,
            values=lambda: ("true", "false"),
        ),
        text("origin", "ORIGIN", lambda row: row.origin or "", scope=ListScope.WIDE, cut=Cut.END),
        _verdict(lambda row: str(row.verdict)),
        _reason(lambda row: str(row.reason.code)),
        _message(lambda row: row.reason.sentence),
        text(
            "other-tags",
            "OTHER TAGS",
            lambda row: ",".join(row.repo_tags[1:]),
            scope=ListScope.FULL,
            texts=lambda row: row.repo_tags[1:],
        ),
    ),
    id=lambda row: row.id,
    name=_name,
    style=_verdict_style,
    watched=_without_use,
    groups=IMAGE_GROUPS,
    group=lambda rows: in_groups(rows, lambda row: repository(_name(row))),
)


def _state(row: ContainerDocument) -> str:
    """Return the state as kubectl shows it, with the exit code of a failure or the restarts of a crash loop."""
    if not row.status:  # of a daemon of an earlier version
        return row.state
    if row.status == "CrashLoop":
        return f"{row.status} x{row.attempt}"
    if row.status in _FAILURES:
        return f"{row.exit_reason or row.status} ({'?' if row.exit_code is None else row.exit_code})"
    return row.status


def _pod(row: ContainerDocument) -> str:
    return f"{row.pod_namespace}/{row.pod_name}" if row.pod_name else ""


CONTAINERS: Final[ListView[ContainerDocument]] = ListView(
    "containers",
    (
        text(
            "pod",
            "POD",
            _pod,
            cut=Cut.PATH,
            name=True,
            at_least=_NAME_CELLS,
            texts=lambda row: (row.pod_name, _pod(row)),
        ),
        text("namespace", "NAMESPACE", lambda row: row.pod_namespace, scope=ListScope.KEY),
        text("name", "CONTAINER", lambda row: row.name, cut=Cut.MIDDLE, name=True),
        identifier("id", "CONTAINER ID", lambda row: row.id, scope=ListScope.WIDE),
        text(
            "state",
            "STATE",
            _state,
            texts=lambda row: (row.state, row.status.lower()),
            values=_container_states,
        ),
        count("attempt", "ATTEMPT", lambda row: row.attempt, optional=True),
        count("exit-code", "EXIT CODE", lambda row: row.exit_code, scope=ListScope.WIDE),
        since("created", "AGE", lambda row: row.created_at),
        _verdict(lambda row: str(row.verdict), optional=True),  # the reason implies it
        _reason(lambda row: str(row.reason.code)),
        text(
            "image",
            "IMAGE",
            lambda row: row.image,
            scope=ListScope.WIDE,
            cut=Cut.PATH,
            texts=lambda row: (row.image, *_spellings(row.image)) if row.image else ("",),
            brief=lambda row: short_reference(row.image),
        ),
        _message(lambda row: row.reason.sentence),
    ),
    id=lambda row: row.id,
    name=lambda row: f"{_pod(row)}/{row.name}" if row.pod_name else row.name,
    style=_verdict_style,
    namespace=lambda row: row.pod_namespace,
    in_namespace=(text("pod", "POD", lambda row: row.pod_name, cut=Cut.MIDDLE, name=True, at_least=_NAME_CELLS),),
)


def _sandboxes(row: Pod) -> str:
    return f"{sum(each.ready for each in row.sandboxes)}/{len(row.sandboxes)}"


def _instances(row: Pod) -> str:
    states = [each.state for sandbox in row.sandboxes for each in sandbox.containers]
    return f"{states.count('running')}/{len(states)}"


def _running(row: Pod) -> str:
    return "" if row.running is None else f"{row.running}/{row.expected}"


def _presence(row: Pod) -> str:
    return "deleted" if row.gone else "present"


PODS: Final[ListView[Pod]] = ListView(
    "pods",
    (
        text("namespace", "NAMESPACE", lambda row: row.namespace, cut=Cut.END),
        text("name", "NAME", lambda row: row.name, cut=Cut.MIDDLE, name=True, at_least=_NAME_CELLS),
        identifier("uid", "UID", lambda row: row.uid, scope=ListScope.WIDE),
        text("running", "RUNNING", _running),
        text(
            "status",
            "STATUS",
            lambda row: row.status or _presence(row),
            texts=lambda row: (row.status.lower(), _presence(row)),
            values=_pod_statuses,
        ),
        count("restarts", "RESTARTS", lambda row: row.restarts),
        text("sandboxes", "SANDBOXES", _sandboxes, scope=ListScope.WIDE),
        text("containers", "CONTAINERS", _instances, scope=ListScope.WIDE),
        since(
            "created",
            "AGE",
            lambda row: max((each.created_at for each in row.sandboxes if each.created_at), default=None),
        ),
        text("evidence", "EVIDENCE", lambda row: row.how, scope=ListScope.WIDE, cut=Cut.END, at_least=_SENTENCE),
    ),
    id=lambda row: row.uid,
    name=lambda row: f"{row.namespace}/{row.name}",
    style=lambda row: "red" if row.gone else "",
    namespace=lambda row: row.namespace,
    in_namespace=(text("namespace", "NAMESPACE", lambda row: row.namespace, scope=ListScope.KEY),),
)


def _target(row: HoldFields) -> str:
    return row.image or "all images"


HOLDS: Final[ListView[HoldFields]] = ListView(
    "holds",
    (
        text("id", "HOLD", lambda row: row.id),
        text(
            "image",
            "IMAGE",
            _target,
            cut=Cut.PATH,
            name=True,
            at_least=_NAME_CELLS,
            brief=lambda row: short_reference(_target(row)),
        ),
        text("by", "BY", lambda row: row.by, cut=Cut.END),
        duration("expires", "EXPIRES IN", lambda row: row.seconds_left),
        since("placed", "AGE", lambda row: row.placed_at, scope=ListScope.WIDE),
        text("why", "REASON", lambda row: row.why, cut=Cut.END, at_least=24),
    ),
    id=lambda row: row.id,
    name=_target,
    watched=lambda row: row.id,
)


def counted_kinds(passes: Iterable[PastPassDocument]) -> str:
    """Return the removed or restored items by kind, such as ``3 images, 1 container``; empty for none."""
    from nodeagent.model.decision import ItemKind  # noqa: PLC0415 - slow to import

    counts = Counter(
        each.kind for past in passes for each in past.actions if each.outcome in ("done", "gone", "restored")
    )
    known = {str(each): each for each in ItemKind}
    return ", ".join(
        known[kind].counted(number) if kind in known else f"{number} {kind}" for kind, number in counts.most_common()
    )


def _recorded_reasons(row: PastPassDocument) -> list[str]:
    return sorted({each.reason.code for each in row.actions})


def _usage(row: PastPassDocument) -> str:
    before, after = row.imagefs_percent_before, row.imagefs_percent_after
    return "" if before is None or after is None else f"{before}%-{after}%"


PASSES: Final[ListView[PastPassDocument]] = ListView(
    "passes",
    (
        time("started", "STARTED", lambda row: row.started_at),
        text("id", "PASS", lambda row: row.id, name=True, cut=Cut.END, at_least=_PASS_CELLS),
        text("trigger", "TRIGGER", lambda row: row.trigger, values=_triggers, optional=True),
        text("scope", "SCOPE", lambda row: row.scope, values=_pass_scopes, optional=True),
        text("result", "RESULT", lambda row: "dry-run" if row.dry_run else row.end, values=_results),
        text("removed", "REMOVED", lambda row: done_cell(row.trigger, row.done, len(row.actions))),
        text("kinds", "KINDS", lambda row: counted_kinds([row]), optional=True),
        size("freed", "FREED", lambda row: row.freed_bytes if row.done else None, missing=""),
        size("predicted", "PREDICTED", lambda row: row.predicted_bytes, scope=ListScope.WIDE),
        duration("duration", "DURATION", lambda row: row.duration_s, scope=ListScope.WIDE),
        text("imagefs", "IMAGEFS", _usage, scope=ListScope.WIDE),
        text(
            "reason",
            "REASON",
            lambda row: ",".join(_recorded_reasons(row)),
            scope=ListScope.KEY,
            texts=lambda row: tuple(_recorded_reasons(row)),
            values=_reasons_of_passes,
        ),
        _message(lambda row: row.end_detail),
    ),
    id=lambda row: row.id,
    name=lambda row: row.id,
    style=lambda row: "red" if row.end in ("runtime-lost", "refused", "interrupted") else "",
)

NODE_STOPS: Final[ListView[NodeStopDocument]] = ListView(
    "node_stops",
    (
        time("started", "NODE STOP", lambda row: row.started_at, name=True),
        text("kind", "KIND", lambda row: row.kind),
        text("result", "RESULT", lambda row: row.end),
        count("pods", "PODS", lambda row: len(row.pods)),
    ),
    id=lambda row: row.id,
    name=lambda row: row.id,
    style=lambda row: "" if row.end == "complete" else "red",
)
