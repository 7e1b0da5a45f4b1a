"""``nodeagent explain``: the verdict of an image, container or pod, and its past removals."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from nodeagent.cli.display import Line, standard_output, warn
from nodeagent.cli.exit_codes import ExitCode, fail
from nodeagent.cli.reading import read, show_document
from nodeagent.cli.table import ago, short_reference, size
from nodeagent.gc.documents.passes import Explained, ExplanationDocument
from nodeagent.model.outlook import ThresholdKind
from nodeagent.trend.shortage import first_threshold
from nodeagent.trend.words import part_words, when_words
from nodeagent.units import format_local_time, localize_times

if TYPE_CHECKING:
    from nodeagent.cli.options import Source
    from nodeagent.gc.agent import Agent

_LABEL: Final = 15
_OTHERS: Final = {
    "container": "container snapshots of this image or of images with common layers",
    "lease": "leases",
    "snapshot-child": "other snapshots",
    "other-namespace": "another namespace of containerd",
    "ingest": "pulls in progress",
    "unlisted-image": "images that CRI does not list",
}


def show(source: Source, name: str, form: str) -> None:
    """Print the verdict of an image, container or pod with its details, then its past removals."""
    if not name.strip():
        fail("the name is empty: add the name, digest or id of an image, a container or a pod", ExitCode.USAGE)

    async def read_node(agent: Agent) -> ExplanationDocument:
        from nodeagent.daemon.status import (  # noqa: PLC0415 - not needed if the daemon responds
            StatusReader,
            explanation_document,
        )

        return await explanation_document(agent, StatusReader(agent), None, name)

    found = read("Explain", ExplanationDocument, {"name": name}, source, read_node)
    for warning in found.warnings:
        warn(f"nodeagent: {warning}")
    if not found.explanations and not found.past:
        hint = f"; did you mean {' or '.join(found.similar)}?" if found.similar else ""
        fail(f"{name}: no such image, container or pod on this node or in the history{hint}", ExitCode.USAGE)
    show_document(found, form, explanation_lines)


def show_reason(code: str) -> None:
    """Print the meaning of a reason code and what to do about it; ``all`` prints every code."""
    from difflib import get_close_matches  # noqa: PLC0415 - needed only here

    from nodeagent.model.reason_glossary import GLOSSARY  # noqa: PLC0415

    codes = {each.value: each for each in GLOSSARY}
    chosen = list(codes) if code == "all" else [code]
    if not set(chosen) <= codes.keys():
        similar = [each for each in codes if code and code in each][:3] or get_close_matches(code, codes, n=3)
        hint = f"; did you mean {' or '.join(similar)}?" if similar else ""
        fail(f"{code}: no such reason code{hint}; 'nodeagent explain --reason all' lists all", ExitCode.USAGE)
    lines = []
    for each in chosen:
        meaning = GLOSSARY[codes[each]]
        lines.append(Line(each, "bold").append(f"  {meaning.items}", "dim"))
        lines += [Line(f"  {text}", hang=2) for text in (meaning.text, meaning.advice) if text]
    standard_output().write(lines)


def explanation_lines(found: ExplanationDocument, _: int | None = None) -> Iterator[Line]:
    """Yield the verdicts of all found items with their details, then the past removals."""
    for number, each in enumerate(found.explanations):
        if number:
            yield Line()
        yield Line(_title(each), "bold", hang=len(f"{each.kind} "))
        for label, text in _item_lines(each, found.observed_at):
            yield Line(f"  {label:<{_LABEL}}{text}", hang=2 + _LABEL)
    if found.past and not found.explanations:
        yield Line(f"{found.asked}: no longer on this node; in the history:", "bold")
    yield from _growth_lines(found)
    for past in found.past:
        why = localize_times("; ".join(filter(None, (past.reason.sentence, past.detail))))
        yield Line(f"{format_local_time(past.started_at)}: {past.name}: {past.outcome}, {why}")


def _growth_lines(found: ExplanationDocument) -> Iterator[Line]:
    """Yield the growth of the found pods and images; if it is unknown, one line that says so."""
    growing = [part_words(outlook, each) for outlook in found.outlook for each in outlook.growth]
    for text in growing:
        yield Line(f"growth: {text}", hang=len("growth: "))
    unknown = first_threshold(found.outlook, frozenset(ThresholdKind))
    if unknown is not None and found.explanations and not growing:
        yield Line(f"growth: {when_words(unknown.forecast)}", "dim")


def _title(value: Explained) -> str:
    if value.attempt is None:
        return f"{value.kind} {value.name}"
    return f"{value.kind} {value.name} attempt {value.attempt} {value.id[:12]}"


def _item_lines(value: Explained, now: datetime) -> Iterator[tuple[str, str]]:
    """Yield the label and the text of each line that explains an item."""
    yield "verdict", f"{value.verdict}: {localize_times(value.reason.sentence)}"
    for each in value.also_kept_by:
        yield "also", localize_times(each.sentence)
    if value.when:
        yield "removal" if str(value.verdict) == "remove" else "removable", localize_times(value.when)
    if value.eligible_at is not None:
        yield "eligible from", format_local_time(value.eligible_at)
    if value.pod is not None:
        yield "pod", f"{'deleted' if value.pod.gone else 'present'}: {value.pod.how}"
    for user in value.users:
        yield "referenced by", user
    if str(value.kind) == "image":
        yield from _image_lines(value, now)


def _image_lines(value: Explained, now: datetime) -> Iterator[tuple[str, str]]:
    for name in value.names:
        yield "id" if name == value.id else "name", name
    first = "first by this reading" if value.first_detected in {None, now} else ago(value.first_detected, now)
    used = "no use observed" if value.last_used is None else f"last used {ago(value.last_used, now)}"
    yield "detected", f"{first}, {used}"
    if value.origin:
        yield "origin", value.origin
    if value.position is not None:
        yield "order", f"{value.position} of {value.positions} in removal order"
    yield "size", f"{size(value.size_bytes)} reported by the runtime"
    bound = value.sharing is None
    yield "frees alone", f"{size(value.frees_alone_bytes, upper_bound=bound)}, if only this image is removed"
    if value.removals_before:
        frees = size(value.frees_bytes, upper_bound=bound)
        yield "frees in plan", f"{frees}, after the {value.removals_before} preceding removal(s) of the plan"
    sharing = value.sharing
    if sharing is None:
        return
    yield "layers", f"{size(sharing.unique_bytes)} of this image only, {size(sharing.shared_bytes)} shared"
    shared = []
    for size_bytes, same in groupby(sharing.with_images, attrgetter("bytes")):
        image, *others = same
        more = f" and {len(others)} more images" if len(others) > 1 else " and 1 more image" if others else ""
        shared.append(f"{size(size_bytes)} with {short_reference(image.name)}{more}")
    shared += [f"{size(each.bytes)} with {_OTHERS.get(each.kind, each.kind)}" for each in sharing.with_others]
    if shared:
        yield "shares layers", "; ".join(shared)
