"""``nodeagent explain``: the verdict of an image, container or pod, and its past removals."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from nodeagent.api.codec import encode
from nodeagent.api.explain import Explained, PastRemoval
from nodeagent.api.explain import Explanation as ExplanationDocument
from nodeagent.cli.exit_codes import ExitCode, fail
from nodeagent.cli.output import warn
from nodeagent.cli.session import load_settings, open_for_command, run_async
from nodeagent.errors import StoreError
from nodeagent.plan.decision import ItemKind
from nodeagent.plan.gc.explanation import explain
from nodeagent.plan.gc.scope import Scope
from nodeagent.store.history import History
from nodeagent.units import format_time

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime
    from pathlib import Path

    from nodeagent.act.gc.preview import Preview
    from nodeagent.plan.gc.explanation import Explanation

_PAST = 5


def show(config: Path | None, overrides: Mapping[str, str | int], name: str, form: str) -> None:
    """Print the verdict of an image, container or pod with its details, then its past removals."""
    if not name.strip():
        fail("the name is empty: give a name, digest or id of an image, a container or a pod", ExitCode.USAGE)
    settings = load_settings(config, overrides)

    async def observe() -> Preview:
        async with open_for_command(settings, record=False) as agent:
            return await agent.collector.preview(Scope.ALL)

    preview = run_async(observe())
    explanations = explain(preview.snapshot, settings.policy, preview.plans, name)
    try:
        past = History(settings.state_directory).read(image=name, limit=_PAST)
    except StoreError as error:
        warn(f"nodeagent: {error}")
        past = ()
    if not explanations and not past:
        fail(f"{name}: no such image, container or pod on this node or in the history", ExitCode.FAILED)
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
        console.print(f"{each.decision.kind.value} {each.decision.name}", style="bold", markup=False, soft_wrap=True)
        for line in _lines(each, preview.snapshot.observed_at):
            console.print(line, markup=False, soft_wrap=True)
        console.print()
    for one in past:
        for action in one.actions:
            when = format_time(one.started_at)
            text = f"{when}: {action.name}: {action.outcome}, {action.sentence}"
            console.print(text, markup=False, soft_wrap=True)


def _lines(value: Explanation, now: datetime) -> list[str]:
    from nodeagent.cli.values import ago, short_id, size  # noqa: PLC0415 - not for documents

    decision = value.decision
    lines = [f"  verdict   {decision.verdict.value}: {decision.reason.sentence}"]
    lines += [f"  also      {each.sentence}" for each in value.also]
    if value.when:
        lines.append(f"  when      {value.when}")
    if value.eligible_at is not None:
        lines.append(f"  from      {format_time(value.eligible_at)}")
    if value.pod is not None:
        lines.append(f"  pod       {'deleted' if value.pod.deleted else 'present'}: {value.pod.how}")
    lines += [f"  used by   {each}" for each in value.users]
    if decision.kind is not ItemKind.IMAGE:
        return lines
    lines += [f"  name      {name if name != decision.id else short_id(name)}" for name in value.names]
    lines.append(f"  detected  {ago(value.first_detected, now)}, last used {ago(value.last_used, now)}")
    lines.append(f"  order     {value.position} of {value.positions}, least recently used first")
    lines.append(
        f"  size      {size(value.size_bytes)} reported by the runtime; removal frees {size(decision.frees_bytes)}"
    )
    sharing = value.sharing
    if sharing is not None:
        lines.append(f"  layers    {size(sharing.unique_bytes)} unique, {size(sharing.shared_bytes)} shared")
        lines += [f"  shares    {size(shared)} with {name}" for name, shared in sharing.with_images[:10]]
        if len(sharing.with_images) > 10:
            lines.append(f"            and {len(sharing.with_images) - 10} more")
        if sharing.held_by:
            lines.append(f"  kept by   {', '.join(sharing.held_by)}")
    return lines
