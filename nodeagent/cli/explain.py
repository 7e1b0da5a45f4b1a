"""``nodeagent explain``: why something was, was not, or will be removed."""

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


def show(config: Path | None, overrides: Mapping[str, str | int], asked: str, form: str) -> None:
    """Print what is known of an image, a container or a pod; its past removals, too."""
    settings = load_settings(config, overrides)

    async def observe() -> Preview:
        async with open_for_command(settings, record=False) as agent:
            return await agent.collector.preview(Scope.ALL)

    preview = run_async(observe())
    found = explain(preview.snapshot, settings.policy, preview.plans, asked)
    try:
        past = History(settings.state_directory).read(image=asked, limit=_PAST)
    except StoreError as error:
        warn(f"nodeagent: {error}")
        past = ()
    if not found and not past:
        fail(f"{asked}: no image, container or pod of that name or id is here or was removed", ExitCode.FAILED)
    if form != "table":
        document = ExplanationDocument(
            asked=asked,
            observed_at=preview.snapshot.observed_at,
            explanations=tuple(map(Explained.of_explanation, found)),
            past=tuple(PastRemoval.of(each, action) for each in past for action in each.actions),
        )
        sys.stdout.write(encode(document, form))
        return
    from nodeagent.cli.render import make_console  # noqa: PLC0415 - text is only for people

    console = make_console()
    for each in found:
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
    from nodeagent.cli.render import ago, short_id, size  # noqa: PLC0415 - text is only for people

    decision = value.decision
    lines = [f"  verdict   {decision.verdict.value}: {decision.reason.sentence}"]
    lines += [f"  also      {each.sentence}" for each in value.also]
    if value.when:
        lines.append(f"  when      {value.when}")
    if value.eligible_at is not None:
        lines.append(f"  from      {format_time(value.eligible_at)}")
    if value.pod is not None:
        lines.append(f"  pod       {'gone' if value.pod.gone else 'kept'}: {value.pod.how}")
    lines += [f"  used by   {each}" for each in value.users]
    if decision.kind is not ItemKind.IMAGE:
        return lines
    lines += [f"  name      {name if name != decision.id else short_id(name)}" for name in value.names]
    lines.append(f"  seen      first {ago(value.first_detected, now)}, last used {ago(value.last_used, now)}")
    lines.append(f"  order     number {value.position} of {value.positions}, least recently used first")
    lines.append(
        f"  size      {size(value.size_bytes)} as the runtime tells; removal frees {size(decision.frees_bytes)}"
    )
    sharing = value.sharing
    if sharing is not None:
        lines.append(f"  layers    {size(sharing.unique_bytes)} its own, {size(sharing.shared_bytes)} shared")
        lines += [f"  shares    {size(shared)} with {name}" for name, shared in sharing.with_images[:10]]
        if len(sharing.with_images) > 10:
            lines.append(f"            and {len(sharing.with_images) - 10} more")
        if sharing.held_by:
            lines.append(f"  held by   {', '.join(sharing.held_by)}")
    return lines
