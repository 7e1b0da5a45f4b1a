"""``nodeagent doctor``: a verdict, evidence and a fix for each check of the node."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from nodeagent.api.codec import encode
from nodeagent.cli.display import Line, standard_output
from nodeagent.cli.doctor_checks import run_checks
from nodeagent.cli.exit_codes import ExitCode
from nodeagent.cli.output import warn
from nodeagent.cli.session import load_settings, open_for_command, run_async
from nodeagent.config.files import UNTRUSTED
from nodeagent.daemon import control_documents as diagnostics
from nodeagent.doctor.plan.node import Finding, Verdict
from nodeagent.errors import ConfigError, InhibitorError, NodeAgentError
from nodeagent.host.logind_config import own_drop_in, read_delay, write_drop_in
from nodeagent.host.processes import run
from nodeagent.pods.role import read_role
from nodeagent.shutdown.plan.budget import required_delay_s
from nodeagent.text import display_width

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from nodeagent.gc.agent import Agent
    from nodeagent.model import Image
    from nodeagent.settings.settings import Settings

    Fix = Callable[[Settings], None]

_ROOT: Final = Path("/")
_RELOAD_WITHIN_S: Final = 20
_FORM_FIX: Final = "see the allowed forms: nodeagent config reference"
_TRUST_FIX: Final = "change the owner to root and remove the write access of others"
_STYLES: Final = {
    Verdict.OK: "green",
    Verdict.WARNING: "yellow",
    Verdict.PROBLEM: "bold red",
    Verdict.SKIPPED: "dim",
}


def examine(
    config: Path | None, overrides: Mapping[str, str | int], form: str, *, strict: bool, fixes: Sequence[Fix] = ()
) -> None:
    """Print every finding; exit with 1 if there is a problem, with ``strict`` also for a warning.

    ``fixes`` are applied before the checks.

    Raises:
        NodeAgentError: a fix failed.
    """
    try:
        settings = load_settings(config, overrides)
    except ConfigError as error:
        findings = [
            Finding("configuration", Verdict.PROBLEM, each, _TRUST_FIX if UNTRUSTED in each else _FORM_FIX)
            for each in str(error).splitlines()
        ]
    else:
        for fix in fixes:
            fix(settings)
        checked = run_checks(settings, _ROOT, is_root=os.geteuid() == 0)
        findings = [Finding("configuration", Verdict.OK, "valid"), *checked]
    if form != "table":
        document = diagnostics.Doctor(
            findings=tuple(
                diagnostics.Finding(check=each.check, verdict=each.verdict.value, evidence=each.evidence, fix=each.fix)
                for each in findings
            )
        )
        sys.stdout.write(encode(document, form))
    else:
        _print(findings)
    failing = {Verdict.PROBLEM, Verdict.WARNING} if strict else {Verdict.PROBLEM}
    sys.exit(ExitCode.FAILED if any(each.verdict in failing for each in findings) else ExitCode.DONE)


def _print(findings: Sequence[Finding]) -> None:
    width = max(display_width(each.check) for each in findings)
    words = max(len(each.verdict.value) for each in findings)
    lines = []
    for each in findings:
        label = f"{each.verdict.value:<{words}}  {each.check}{' ' * (width - display_width(each.check))}  "
        lines.append(Line(f"{label}{each.evidence}", _STYLES[each.verdict], hang=len(label)))
        if each.fix:
            lines.append(Line(f"  fix: {each.fix}", hang=len("  fix: ")))
    lines.append(Line(summary(findings)))
    standard_output().write(lines)


def summary(findings: Sequence[Finding]) -> str:
    """Return the numbers of checks, problems and warnings as a sentence."""
    problems = sum(each.verdict is Verdict.PROBLEM for each in findings)
    warnings = sum(each.verdict is Verdict.WARNING for each in findings)
    return f"{_counted(len(findings), 'check')}: {_counted(problems, 'problem')}, {_counted(warnings, 'warning')}"


def _counted(count: int, noun: str) -> str:
    return f"{count or 'no'} {noun}{'' if count == 1 else 's'}"


def fix_logind(settings: Settings, root: Path = _ROOT) -> None:
    """Write the drop-in that raises the delay limit, unless the limit is sufficient, and reload logind.

    Raises:
        InhibitorError: the drop-in cannot be written, or logind cannot be reloaded.
    """
    role = read_role(settings.role)
    off = settings.shutdown.off_because(role.role, role.reason)  # in a dry run and a pause the limit can be prepared
    if off:
        warn(f"nodeagent: logind configuration not changed: graceful shutdown disabled: {off}")
        return
    required_s = required_delay_s(settings.shutdown.phases)
    delay = read_delay(root)
    if delay.delay_us >= required_s * 1_000_000:
        warn(f"nodeagent: logind configuration not changed: {delay.set_by} allows at least {required_s}s")
    else:
        drop_in = own_drop_in(required_s, root)
        write_drop_in(drop_in)
        warn(f"nodeagent: wrote {drop_in.path}: logind delays a shutdown by at most {required_s}s")
    if root == _ROOT:  # even without a change: logind may not have been reloaded since the last change
        _reload_logind()


def _reload_logind() -> None:
    words = ("systemctl", "kill", "--signal=HUP", "systemd-logind.service")
    completed = run(*words, within_s=_RELOAD_WITHIN_S)
    if completed is None or completed.returncode:
        cause = completed.stderr.strip() if completed else "systemctl not found, or no answer"
        raise InhibitorError(f"cannot reload logind: {cause}; run {' '.join(words)}")


_UNCHANGED: Final = "nodeagent: sandbox image not changed"
_READINGS: Final = 10
_INTERVAL_S: Final = 0.2


def fix_pin(settings: Settings) -> None:
    """Set the pinned label on every name of the sandbox image, and report whether CRI lists the image as pinned.

    Raises:
        NodeAgentError: the runtime is unavailable, does not support image labels, or rejects the change.

    Source: containerd CRI plugin, ``labels.PinnedImageLabelKey``.
    """
    run_async(_fix(settings))


async def _fix(settings: Settings) -> None:
    async with open_for_command(settings, record=False) as agent:
        name = (await agent.cri.status()).sandbox_image
        image = None if name is None else await _find(agent, name)
        if name is None:
            warn(f"{_UNCHANGED}: not reported by the runtime")
        elif image is None:
            warn(f"{_UNCHANGED}: {name} not found on the node")
        elif image.pinned:
            warn(f"{_UNCHANGED}: {name} is pinned")
        else:
            await _pin(agent, name, image)


async def _pin(agent: Agent, name: str, image: Image) -> None:
    labelled = [each for each in (*image.references, image.id) if await agent.storage.pin_image(each)]
    if not labelled:
        raise NodeAgentError(f"cannot pin {name}: containerd has none of its names")
    for _ in range(_READINGS):  # the CRI plugin updates its image store after an event of containerd
        found = await _find(agent, name)
        if found is not None and found.pinned:
            warn(f"nodeagent: pinned {name}")
            return
        await asyncio.sleep(_INTERVAL_S)
    warn(
        f"nodeagent: {name} has the pinned label, but the runtime does not report it as pinned: restart containerd, "
        "or update it"
    )


async def _find(agent: Agent, name: str) -> Image | None:
    """Return the CRI record of an image, with the field ``pinned`` that the kubelet reads; ``None`` if absent."""
    return next((each for each in await agent.cri.list_images() if name in each.references), None)
