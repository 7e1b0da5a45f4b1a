"""``nodeagent explain``: the verdict of an image, container or pod, and its past removals."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from nodeagent.act.gc.preview import plans_by_loop
from nodeagent.api.codec import encode
from nodeagent.api.explain import Explained, PastRemoval
from nodeagent.api.explain import Explanation as ExplanationDocument
from nodeagent.cli.exit_codes import ExitCode, fail
from nodeagent.cli.output import warn
from nodeagent.cli.session import load_settings, open_for_command, run_async
from nodeagent.errors import StoreError
from nodeagent.host.process_identity import is_running
from nodeagent.plan.decision import ItemKind, Verdict
from nodeagent.plan.gc.explanation import explain
from nodeagent.plan.gc.scope import Scope
from nodeagent.store.history import History
from nodeagent.units import format_time

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from datetime import datetime
    from pathlib import Path

    from nodeagent.act.gc.preview import Preview
    from nodeagent.plan.gc.explanation import Explanation

_PAST: Final = 5
_MAX_NEAR: Final = 3
_MAX_SHARING: Final = 10
_LABEL: Final = 15
_OTHERS: Final = {
    "container": "snapshots of containers, of this image or of others with common layers",
    "lease": "leases",
    "snapshot-child": "other snapshots",
    "other-namespace": "another namespace of containerd",
    "ingest": "pulls in progress",
    "unlisted-image": "images that CRI does not list",
}


def show(config: Path | None, overrides: Mapping[str, str | int], name: str, form: str) -> None:
    """Print the verdict of an image, container or pod with its details, then its past removals."""
    if not name.strip():
        fail("the name is empty: give a name, digest or id of an image, a container or a pod", ExitCode.USAGE)
    settings = load_settings(config, overrides)

    async def observe() -> Preview:
        async with open_for_command(settings, record=False) as agent:
            return await agent.collector.preview(Scope.ALL)

    preview = run_async(observe())
    explanations = explain(preview.snapshot, settings.policy, plans_by_loop(preview.snapshot, settings.policy), name)
    try:
        past = History(settings.state_directory, is_running=is_running).read(image=name, limit=_PAST)
    except StoreError as error:
        warn(f"nodeagent: {error}")
        past = ()
    if not explanations and not past:
        near = [each for image in preview.snapshot.images for each in image.repo_tags if each.endswith(f"/{name}")]
        hint = f"; did you mean {' or '.join(near[:_MAX_NEAR])}?" if near else ""
        fail(f"{name}: no such image, container or pod on this node or in the history{hint}", ExitCode.FAILED)
    if form != "table":
        document = ExplanationDocument(
            asked=name,
            observed_at=preview.snapshot.observed_at,
            explanations=tuple(map(Explained.of_explanation, explanations)),
            past=tuple(PastRemoval.of(each, action) for each in past for action in each.actions),
        )
        sys.stdout.write(encode(document, form))
        return
    from nodeagent.cli.render import make_console  # noqa: PLC0415 - not for documents

    console = make_console()
    for each in explanations:
        console.print(_title(each), style="bold", markup=False, soft_wrap=True)
        for label, text in _lines(each, preview.snapshot.observed_at):
            console.print(f"  {label:<{_LABEL}}{text}", markup=False, soft_wrap=True)
        console.print()
    for one in past:
        for action in one.actions:
            when = format_time(one.started_at)
            text = f"{when}: {action.name}: {action.outcome}, {action.sentence}"
            text = f"{text}; {action.detail}" if action.detail else text
            console.print(text, markup=False, soft_wrap=True)


def _title(value: Explanation) -> str:
    decision = value.decision
    if value.attempt is None:
        return f"{decision.kind.value} {decision.name}"
    return f"{decision.kind.value} {decision.name} attempt {value.attempt} {decision.id[:12]}"


def _lines(value: Explanation, now: datetime) -> Iterator[tuple[str, str]]:
    """Yield the lines of an explanation, each with its label."""
    decision = value.decision
    yield "verdict", f"{decision.verdict.value}: {decision.reason.sentence}"
    for each in value.also:
        yield "also", each.sentence
    if value.when:
        yield "removal" if decision.verdict is Verdict.REMOVE else "removable", value.when
    if value.eligible_at is not None:
        yield "eligible from", format_time(value.eligible_at)
    if value.pod is not None:
        yield "pod", f"{'deleted' if value.pod.deleted else 'present'}: {value.pod.how}"
    for user in value.users:
        yield "referenced by", user
    if decision.kind is ItemKind.IMAGE:
        yield from _image_lines(value, now)


def _image_lines(value: Explanation, now: datetime) -> Iterator[tuple[str, str]]:
    from nodeagent.cli.values import ago, size  # noqa: PLC0415 - not for documents

    for name in value.names:
        yield "id" if name == value.decision.id else "name", name
    yield "detected", f"{ago(value.first_detected, now)}, last used {ago(value.last_used, now)}"
    yield "order", f"{value.position} of {value.positions}, least recently used first"
    yield "size", f"{size(value.size_bytes)} reported by the runtime"
    bound = value.sharing is None
    yield "frees alone", f"{size(value.frees_alone_bytes, upper_bound=bound)}, if only this image is removed"
    if value.removals_before:
        frees = size(value.decision.frees_bytes, upper_bound=bound)
        yield "frees in plan", f"{frees}, after the {value.removals_before} other removal(s) of the plan before it"
    sharing = value.sharing
    if sharing is None:
        return
    yield "layers", f"{size(sharing.unique_bytes)} of this image only, {size(sharing.shared_bytes)} shared"
    for name, shared in sharing.with_images[:_MAX_SHARING]:
        yield "shares layers", f"{size(shared)} with image {name}"
    if len(sharing.with_images) > _MAX_SHARING:
        yield "", f"and with {len(sharing.with_images) - _MAX_SHARING} more images"
    for kind, shared in sharing.with_others:
        yield "shares layers", f"{size(shared)} with {_OTHERS.get(kind, kind)}"
