"""``nodeagent doctor``: a verdict, evidence and a fix for each check of the node."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from nodeagent.api import diagnostics
from nodeagent.api.codec import encode
from nodeagent.cli.display import Line, standard_output
from nodeagent.cli.doctor_checks import run_checks
from nodeagent.cli.exit_codes import ExitCode
from nodeagent.cli.session import load_settings
from nodeagent.config.files import UNTRUSTED
from nodeagent.errors import ConfigError
from nodeagent.plan.node_checks import Finding, Verdict
from nodeagent.text import display_width

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from nodeagent.config.settings import Settings

    Fix = Callable[[Settings], None]

_ROOT: Final = Path("/")
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
