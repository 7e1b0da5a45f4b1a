"""``nodeagent doctor``: whether this node is fit, with evidence for each check and what to do."""

from __future__ import annotations

import ctypes
import os
import re
import stat
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from nodeagent.api import documents as document
from nodeagent.cli.exit_codes import ExitCode
from nodeagent.cli.output import warn
from nodeagent.cli.session import open_for_command, run_async
from nodeagent.errors import ConfigError, InhibitorError, NodeAgentError
from nodeagent.host.kubelet_files import KUBELET_ROOT
from nodeagent.host.processes import run
from nodeagent.observe.node_role import read_role
from nodeagent.plan.gc.scope import Scope
from nodeagent.plan.node_checks import (
    Finding,
    Verdict,
    check_agent,
    check_cgroups,
    check_clock,
    check_control_group,
    check_delay,
    check_image_use,
    check_kubelet,
    check_lock,
    check_refused,
    check_role,
    check_sandbox_image,
    check_snapshotter,
    check_split,
    check_stalls,
    check_state,
    check_stores,
)

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from nodeagent.act.agent import Agent
    from nodeagent.api.documents import Json
    from nodeagent.config.settings import Settings
    from nodeagent.model import NodeSnapshot
    from nodeagent.runtime.cri_messages import ImageFsInfo

_KUBELET_CONFIG = KUBELET_ROOT.relative_to("/") / "config.yaml"
_WANTED = ("imageGCHighThresholdPercent", "shutdownGracePeriod", "evictionHard")
_STYLES = {Verdict.OK: "green", Verdict.WARNING: "yellow", Verdict.PROBLEM: "bold red", Verdict.SKIPPED: "dim"}
_STA_UNSYNC = 0x0040  # Source: adjtimex(2)
_TIMEX_BYTES = 512
_STATUS_AT = 40  # of the status field on 64-bit Linux
_WITHIN_S = 20
_ROOT = Path("/")


def examine(
    config: Path | None, overrides: Mapping[str, str | int], form: str, *, strict: bool, fix_logind: bool
) -> None:
    """Print every finding; exit code 1 if there is a problem, with ``strict`` also for a warning.

    Raises:
        InhibitorError: the drop-in for logind could not be written.
    """
    from nodeagent.cli.session import load_settings  # noqa: PLC0415 - its fault is a finding here

    try:
        settings = load_settings(config, overrides)
    except ConfigError as error:
        findings = [
            Finding("configuration", Verdict.PROBLEM, each, "nodeagent config reference tells the allowed forms")
            for each in str(error).splitlines()
        ]
    else:
        if fix_logind:
            _fix_logind(settings)
        findings = [Finding("configuration", Verdict.OK, "it can be used"), *_all(settings, _ROOT)]
    if form != "table":
        shown: dict[str, Json] = {
            "schema": "nodeagent/doctor/v1",
            "findings": [
                {"check": each.check, "verdict": each.verdict.value, "evidence": each.evidence, "fix": each.fix}
                for each in findings
            ],
        }
        sys.stdout.write(document.dumps(shown, form))
    else:
        _print(findings)
    bad = {Verdict.PROBLEM, Verdict.WARNING} if strict else {Verdict.PROBLEM}
    sys.exit(ExitCode.FAILED if any(each.verdict in bad for each in findings) else ExitCode.DONE)


def _all(settings: Settings, root: Path) -> Iterator[Finding]:
    """Yield what every check finds; one that fails by itself is a finding, too, and the others go on."""
    checks: dict[str, Callable[[], Iterable[Finding]]] = {
        "runtime": lambda: _runtime(settings),
        "cgroups": lambda: [check_cgroups(_controllers(root))],
        "pressure-stalls": lambda: [check_stalls(_stalls(root))],
        "logind-delay": lambda: _shutdown(settings, root),
        "role": lambda: _role(settings, root),
        "kubelet-overlap": lambda: _kubelet(settings, root),
        "state-directory": lambda: [_state(settings)],
        "stores": lambda: [_stores(settings)],
        "holds": lambda: [_holds(settings)],
        "history": lambda: [_history(settings)],
        "journal": lambda: [_journal(root)],
        "unit": lambda: [_unit()],
        "agent": lambda: _agent(settings),
    }
    for name, check in checks.items():
        try:
            yield from check()
        except (NodeAgentError, OSError, ValueError) as error:
            yield Finding(name, Verdict.WARNING, f"this could not be checked: {error}", "see whether it lasts")


def _agent(settings: Settings) -> Iterator[Finding]:
    """Yield what the running agent says of itself, and who may ask it."""
    from nodeagent.cli.control_client import DaemonRefusedError, DaemonUnavailableError, line  # noqa: PLC0415 - not for every command
    from nodeagent.host.peer import group_number  # noqa: PLC0415

    control = settings.control
    if control.socket is None:
        yield Finding("agent", Verdict.SKIPPED, 'by its configuration it cannot be asked: control.socket = ""')
        return
    try:
        with line(control.socket) as asked:
            about = asked.ask("Status", within_s=_WITHIN_S)["agent"]
    except (DaemonUnavailableError, DaemonRefusedError) as error:
        yield check_agent(str(error), (), None)
    else:
        yield check_agent("", about["not_ready_because"], about["pid"])
    yield check_control_group(control.group, group_number(control.group) is not None)


# ---- the runtime


def _runtime(settings: Settings) -> Iterator[Finding]:
    try:
        yield from run_async(_ask_runtime(settings))
    except NodeAgentError as error:
        yield Finding("runtime", Verdict.PROBLEM, str(error), "systemctl status containerd; or set runtime.endpoint")


async def _ask_runtime(settings: Settings) -> list[Finding]:
    async with open_for_command(settings, record=False) as agent:
        told = await agent.cri.version()
        status = await agent.cri.status()
        snapshot = await agent.observer.observe(Scope.ALL)
        findings = [
            Finding(
                "runtime",
                Verdict.OK if status.ready else Verdict.PROBLEM,
                "; ".join([f"{told.name} {told.version}, CRI {told.api_version}", *status.problems]),
                "" if status.ready else "the runtime says of itself that it is not ready",
            )
        ]
        names = {name: image for image in snapshot.images for name in image.references}
        image = names.get(status.sandbox_image or "")
        findings.append(check_sandbox_image(status.sandbox_image, image is not None, bool(image and image.pinned)))
        findings.append(_accounting(agent, snapshot))
        findings.append(check_snapshotter(status.snapshotter))
        findings.append(_filesystems(snapshot))
        findings.append(_split(agent, snapshot, await agent.cri.image_fs_info()))
        maximum_s = agent.settings.policy.images.maximum_unused_age_s
        findings.append(check_image_use(snapshot.image_use_observed_since, snapshot.observed_at, maximum_s))
        findings.append(check_clock(_skew_s(snapshot), _synchronised()))
        return findings


def _accounting(agent: Agent, snapshot: NodeSnapshot) -> Finding:
    if agent.containerd is None:
        return Finding("containerd-api", Verdict.SKIPPED, "runtime.containerd_api is off; sizes are upper bounds")
    if snapshot.storage is not None:
        return Finding("containerd-api", Verdict.OK, "shared layers are counted once")
    return Finding(
        "containerd-api",
        Verdict.WARNING,
        "containerd's own services do not tell layers; sizes are upper bounds",
        "let the agent reach containerd's socket, not a proxy of CRI alone",
    )


def _filesystems(snapshot: NodeSnapshot) -> Finding:
    seen = snapshot.image_filesystem
    if seen is None:
        return Finding(
            "imagefs",
            Verdict.PROBLEM,
            "the image filesystem cannot be read; no image is removed by threshold",
            "set runtime.imagefs_path to a path on it",
        )
    return Finding("imagefs", Verdict.OK, f"{seen.path} is {seen.used_percent}% full")


def _split(agent: Agent, snapshot: NodeSnapshot, told: ImageFsInfo) -> Finding:
    seen, logs = snapshot.image_filesystem, agent.settings.pod_log_root
    places = {
        "imagefs": seen.device_id if seen is not None else None,
        "containerfs": _device(next(iter(told.container_mountpoints), "")),
        "nodefs": _device(str(logs if logs.exists() else logs.parent)),
    }
    return check_split(places, len(told.image_mountpoints))


def _device(path: str) -> int | None:
    try:
        return os.stat(path).st_dev  # noqa: PTH116 - one call, no object
    except OSError:
        return None


def _skew_s(snapshot: NodeSnapshot) -> float | None:
    made = [each.created_at for each in snapshot.containers if each.created_at is not None]
    return (max(made) - snapshot.observed_at).total_seconds() if made else None


def _synchronised() -> bool | None:
    """Return whether the kernel counts the clock as synchronised. Source: adjtimex(2), ``STA_UNSYNC``."""
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "adjtimex") or ctypes.sizeof(ctypes.c_long) != 8:
        return None
    buffer = ctypes.create_string_buffer(_TIMEX_BYTES)
    if libc.adjtimex(buffer) < 0:
        return None
    return not int.from_bytes(buffer.raw[_STATUS_AT : _STATUS_AT + 4], sys.byteorder) & _STA_UNSYNC


# ---- the node


def _controllers(root: Path) -> list[str] | None:
    try:
        return (root / "sys/fs/cgroup/cgroup.controllers").read_text().split()
    except OSError:
        return None


def _stalls(root: Path) -> list[str]:
    return [name for name in ("memory", "io") if (root / "proc/pressure" / name).exists()]


def _shutdown(settings: Settings, root: Path) -> Iterator[Finding]:
    from nodeagent.cli.shutdown import delay_limit, lock_held, off_because, query_logind  # noqa: PLC0415 - D-Bus
    from nodeagent.host.logind_config import read_delay  # noqa: PLC0415 - not for every command
    from nodeagent.plan.shutdown.budget import shutdown_budget  # noqa: PLC0415

    off = off_because(settings)
    delay = read_delay(root)
    facts, problem = (None, "") if off else query_logind()
    budget = shutdown_budget(settings.shutdown.phases, delay_limit(facts, delay))
    yield check_delay(budget, off=off)
    yield check_lock(*lock_held(facts, problem), off=off)
    for warning in delay.warnings:
        yield Finding("logind-delay", Verdict.WARNING, warning)


def _fix_logind(settings: Settings, root: Path = _ROOT) -> None:
    """Write the drop-in that gives the phases their time, unless they have it, and have logind read it."""
    from nodeagent.cli.shutdown import off_because  # noqa: PLC0415 - not for every command
    from nodeagent.host.logind_config import own_drop_in, read_delay, write_drop_in  # noqa: PLC0415
    from nodeagent.plan.shutdown.budget import required_delay_s  # noqa: PLC0415

    off = off_because(settings)
    if off:
        warn(f"nodeagent: logind is left as it is: pods are not stopped in order: {off}")
        return
    delay_s = required_delay_s(settings.shutdown.phases)
    delay = read_delay(root)
    if delay.delay_us >= delay_s * 1_000_000:
        warn(f"nodeagent: {delay.set_by} allows {delay_s} s and more already; logind reads it again")
    else:
        drop_in = own_drop_in(delay_s, root)
        write_drop_in(drop_in)
        warn(f"nodeagent: wrote {drop_in.path}: logind waits {delay_s} s at most")
    if root == _ROOT:
        _reload_logind()


def _reload_logind() -> None:
    done = _run("systemctl", "kill", "--signal=HUP", "systemd-logind.service")
    if done is None or done.returncode:
        raise InhibitorError(
            f"logind did not take it in: {done.stderr.strip() if done else 'no systemctl'}; "
            "systemctl kill --signal=HUP systemd-logind does it"
        )


def _kubelet(settings: Settings, root: Path) -> list[Finding]:
    role = read_role(settings.role, root).role
    return check_kubelet(
        _kubelet_settings(root / _KUBELET_CONFIG),
        evicts=not settings.eviction.off_because(role),
        stops=not settings.shutdown.off_because(role),
        collects_from=_collects_from(settings),
    )


def _role(settings: Settings, root: Path) -> Iterator[Finding]:
    """Yield the role on this node, and what is configured "on" but refused beside a kubelet."""
    role = read_role(settings.role, root)
    yield check_role(role)
    refused = {
        "eviction": (settings.eviction.refused(role.role), settings.eviction.off_because(role.role, role.reason)),
        "shutdown": (settings.shutdown.refused(role.role), settings.shutdown.off_because(role.role, role.reason)),
    }
    yield from (check_refused(section, because) for section, (is_refused, because) in refused.items() if is_refused)


def _collects_from(settings: Settings) -> int | None:
    high = settings.policy.images.high_threshold_percent
    return None if settings.image_interval_s is None or high == 100 else high


def _kubelet_settings(path: Path) -> dict[str, str]:
    """Return the settings of a kubelet's configuration that matter here; none where there is no such file.

    Raises:
        ConfigError: there is one and it cannot be understood.
    """
    from nodeagent.config.kubelet_import import read_kubelet  # noqa: PLC0415 - only where there may be a kubelet

    try:
        text = path.read_text(errors="replace")
    except FileNotFoundError:
        return {}
    fields = read_kubelet(text)
    return {"kind": "KubeletConfiguration"} | {key: str(fields[key]) for key in _WANTED if key in fields}


def _state(settings: Settings) -> Finding:
    directory, problem, left, mode = settings.state_directory, "", None, 0
    place = directory if directory.exists() else directory.parent
    try:
        with tempfile.TemporaryFile(dir=place):
            pass
        seen = os.statvfs(place)
        left = seen.f_bavail * seen.f_frsize
        mode = stat.S_IMODE(directory.stat().st_mode) if directory.exists() else 0
    except OSError as error:
        problem = error.strerror or str(error)
    return check_state(str(directory), problem, left, mode)


def _stores(settings: Settings) -> Finding:
    from nodeagent.store.sqlite import fault_of  # noqa: PLC0415 - not for every command

    files = sorted(settings.state_directory.glob("*.db")) if settings.state_directory.is_dir() else []
    faults = {path: fault_of(path) for path in files}
    broken = {str(path): fault for path, fault in faults.items() if fault}
    return check_stores(broken, [path.name for path in files if not faults[path]])


def _holds(settings: Settings) -> Finding:
    from nodeagent.store import HoldFile  # noqa: PLC0415 - not for every command

    try:
        count = len(HoldFile(settings.state_directory).read())
    except NodeAgentError as error:
        return Finding("holds", Verdict.PROBLEM, f"{error}: no image is removed until then", "mend or remove the file")
    return Finding("holds", Verdict.OK, f"{count} hold(s)")


def _history(settings: Settings) -> Finding:
    from nodeagent.store.history import History  # noqa: PLC0415 - likewise

    try:
        History(settings.state_directory).read(limit=1)
    except NodeAgentError as error:
        return Finding("history", Verdict.WARNING, str(error), "it is set aside and begun anew with the next pass")
    return Finding("history", Verdict.OK, "it can be read")


def _journal(root: Path) -> Finding:
    if (root / "run/systemd/journal/socket").exists():
        return Finding("journal", Verdict.OK, "journald takes entries")
    return Finding("journal", Verdict.SKIPPED, "no journald here: the log goes to standard error")


def _unit() -> Finding:
    done = _run("systemd-analyze", "security", "--no-pager", "nodeagent.service")
    if done is None or done.returncode:
        return Finding("unit", Verdict.SKIPPED, "the agent's unit is not installed, or systemd does not run")
    score = re.search(r"exposure level for nodeagent\.service: ([0-9.]+)", done.stdout)
    if score is None:
        return Finding("unit", Verdict.SKIPPED, "systemd tells nothing of the unit's exposure")
    good = float(score[1]) <= 3.0
    return Finding(
        "unit",
        Verdict.OK if good else Verdict.WARNING,
        f"exposure {score[1]} of 10",
        "" if good else "use the unit that comes with the agent; a drop-in weakens it",
    )


def _run(*words: str) -> subprocess.CompletedProcess[str] | None:
    return run(*words, within_s=_WITHIN_S)


def _print(findings: list[Finding]) -> None:
    from nodeagent.cli import render  # noqa: PLC0415 - tables are only for people

    console = render.make_console()
    table = render.table("check", "", "what was seen", "what to do", wrap=("what was seen", "what to do"))
    for each in findings:
        table.add_row(each.check, each.verdict.value, each.evidence, each.fix, style=_STYLES[each.verdict])
    console.print(table)
    bad = sum(each.verdict in (Verdict.WARNING, Verdict.PROBLEM) for each in findings)
    console.print(f"{bad} of {len(findings)} checks need a look" if bad else "all is well", markup=False)
