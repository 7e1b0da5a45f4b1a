"""Judging whether a node is fit for the agent: each reading becomes a finding with its evidence and a fix."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from nodeagent.model import Role, RoleBasis
from nodeagent.units import format_bytes, format_duration, format_time

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import datetime

    from nodeagent.model import RoleDecision
    from nodeagent.plan.shutdown.budget import ShutdownBudget

_LITTLE_STATE_BYTES: Final = 64 << 20
_MUCH_SKEW_S: Final = 5.0
_LAZY_SNAPSHOTTERS: Final = frozenset({"stargz", "nydus", "soci", "overlaybd"})


class Verdict(StrEnum):
    """What becomes of a check. The values are part of the JSON output."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Finding:
    """The outcome of one check.

    Attributes:
        check: its name, stable for scripts.
        evidence: what was seen.
        fix: what to do; empty where nothing is to be done.
    """

    check: str
    verdict: Verdict
    evidence: str
    fix: str = ""


def check_stalls(known: Iterable[str]) -> Finding:
    """Judge which resources the kernel tells stalls of."""
    missing = sorted({"memory", "io"} - set(known))
    if not missing:
        return Finding("pressure-stalls", Verdict.OK, "the kernel tells stalls of memory and io")
    return Finding(
        "pressure-stalls",
        Verdict.WARNING,
        f"the kernel tells no stalls of {' and '.join(missing)}: evictions poll only",
        "boot with psi=1 on the kernel's command line",
    )


def check_cgroups(controllers: Iterable[str] | None) -> Finding:
    """Judge the cgroup tree; ``None`` where it is not version 2."""
    if controllers is None:
        return Finding(
            "cgroups",
            Verdict.WARNING,
            "this is not cgroup v2: what pods use of memory and PIDs is known from the runtime only",
            "boot with systemd.unified_cgroup_hierarchy=1",
        )
    missing = sorted({"memory", "pids"} - set(controllers))
    if missing:
        return Finding(
            "cgroups",
            Verdict.PROBLEM,
            f"cgroup v2 without {', '.join(missing)}",
            "enable the controllers in the kernel",
        )
    return Finding("cgroups", Verdict.OK, "cgroup v2 with memory and pids")


def check_delay(budget: ShutdownBudget, *, off: str) -> Finding:
    """Compare logind's limit with the configured time of the shutdown phases."""
    if off:
        return Finding("logind-delay", Verdict.SKIPPED, f"pods are not stopped in order: {off}")
    limit = "no limit" if budget.limit_ms is None else format_duration(budget.limit_ms / 1000)
    told = (
        f"logind allows {limit} ({budget.limit.set_by}), the phases want {format_duration(budget.requested_ms / 1000)}"
    )
    if budget.granted_ms >= budget.requested_ms:
        return Finding("logind-delay", Verdict.OK, told)
    effect = (
        f"they are scaled to {format_duration(budget.granted_ms / 1000)}"
        if budget.suffices_at_signal
        else "too short: no pod is stopped at the signal, only by the unit's stop hook within TimeoutStopSec"
    )
    return Finding(
        "logind-delay",
        Verdict.WARNING,
        f"{told}: {effect}",
        "nodeagent doctor --fix-logind writes a drop-in that allows it, and reloads logind",
    )


def check_lock(held: bool, because: str, *, off: str) -> Finding:  # noqa: FBT001 - a reading
    """Judge whether logind would wait for the agent."""
    if off:
        return Finding("inhibitor", Verdict.SKIPPED, f"pods are not stopped in order: {off}")
    if held:
        return Finding("inhibitor", Verdict.OK, because)
    return Finding("inhibitor", Verdict.WARNING, because, "start the daemon: systemctl start nodeagent")


def check_sandbox_image(name: str | None, listed: bool, pinned: bool) -> Finding:  # noqa: FBT001 - readings
    """Judge whether the image that every pod needs is safe from other collectors."""
    if name is None:
        return Finding("sandbox-image", Verdict.SKIPPED, "the runtime does not tell it; images in use are kept anyway")
    if not listed:
        return Finding(
            "sandbox-image",
            Verdict.PROBLEM,
            f"{name} is not on the node: no pod can start",
            f"ctr -n k8s.io images pull {name}",
        )
    if pinned:
        return Finding("sandbox-image", Verdict.OK, f"{name} is pinned")
    return Finding(
        "sandbox-image",
        Verdict.OK,
        f"{name} is not pinned in the runtime; the agent keeps it all the same, other collectors may not",
    )


def check_snapshotter(name: str | None) -> Finding:
    """Judge where images are unpacked; ``None`` where the runtime does not tell."""
    if name is None:
        return Finding(
            "snapshotter", Verdict.SKIPPED, "the runtime does not tell it; what images say of theirs is used"
        )
    if name in _LAZY_SNAPSHOTTERS:
        return Finding(
            "snapshotter",
            Verdict.WARNING,
            f"{name} fetches layers when they are read: what an image occupies can grow after it was counted",
            "set image_gc.high_threshold_percent lower than elsewhere",
        )
    return Finding("snapshotter", Verdict.OK, name)


def check_split(places: Mapping[str, int | None], image_filesystems: int) -> Finding:
    """Judge which of the node's filesystems are the same.

    Args:
        places: device of ``imagefs``, ``containerfs`` and ``nodefs``, in this order; ``None`` where it cannot be read.
        image_filesystems: how many the runtime names for images.
    """
    unread = [name for name, device in places.items() if device is None]
    if unread:
        return Finding(
            "split-filesystems",
            Verdict.WARNING,
            f"the filesystem of {' and '.join(unread)} cannot be read",
            "let the agent see the paths that the runtime names, or set runtime.imagefs_path",
        )
    groups: dict[int | None, list[str]] = {}
    for name, device in places.items():
        groups.setdefault(device, []).append(name)
    told = "; ".join(" and ".join(names) for names in groups.values())
    told = f"apart: {told}" if len(groups) > 1 else "imagefs, containerfs and nodefs are one"
    if image_filesystems > 1:
        return Finding(
            "split-filesystems",
            Verdict.WARNING,
            f"{told}; the runtime names {image_filesystems} filesystems of images: images are collected by the "
            "fullest, evictions look at the first",
            "set runtime.imagefs_path to the one that counts",
        )
    return Finding("split-filesystems", Verdict.OK, told)


def check_stores(broken: Mapping[str, str], sound: Iterable[str]) -> Finding:
    """Judge the agent's databases: the file and fault of each that is broken, and the names of those that are sound."""
    if broken:
        return Finding(
            "stores",
            Verdict.WARNING,
            "; ".join(f"{path}: {fault}" for path, fault in broken.items()),
            "it is set aside and begun anew with the next pass; look at the disk below it",
        )
    names = ", ".join(sound)
    return Finding("stores", Verdict.OK, f"{names}: sound" if names else "there are none yet")


def check_state(directory: str, problem: str, available_bytes: int | None, mode: int = 0o750) -> Finding:
    """Judge the state directory and its mode; ``problem`` tells why it cannot be used, empty if it can."""
    if problem:
        return Finding(
            "state-directory",
            Verdict.PROBLEM,
            f"{directory}: {problem}; what is learnt is lost at a restart",
            "make it writable for root, or set state.directory",
        )
    if available_bytes is not None and available_bytes < _LITTLE_STATE_BYTES:
        return Finding(
            "state-directory", Verdict.WARNING, f"{directory}: only {format_bytes(available_bytes)} left on its disk"
        )
    if mode & 0o022:
        return Finding(
            "state-directory",
            Verdict.WARNING,
            f"{directory} has mode {mode:04o}: others than root can change what the agent remembers",
            f"chmod 0750 {directory}",
        )
    return Finding("state-directory", Verdict.OK, f"{directory} can be written")


def check_clock(skew_s: float | None, synchronised: bool | None) -> Finding:  # noqa: FBT001 - readings
    """Judge the wall clock, that ages of images and containers come from.

    Args:
        skew_s: how far the newest thing the runtime made lies in the future; ``None`` if nothing does.
        synchronised: whether the kernel counts the clock as synchronised; ``None`` where not known.
    """
    if skew_s is not None and skew_s > _MUCH_SKEW_S:
        return Finding(
            "clock",
            Verdict.WARNING,
            f"something on the node was made {format_duration(skew_s)} in the future: the clock was set back",
            "check the time service; ages count from what was seen, so nothing goes too early",
        )
    if synchronised is False:
        return Finding(
            "clock", Verdict.WARNING, "the kernel says the clock is not synchronised", "start a time service"
        )
    return Finding("clock", Verdict.OK, "synchronised" if synchronised else "nothing lies in the future")


def check_image_use(observed_since: datetime | None, now: datetime, maximum_s: float) -> Finding:
    """Judge whether image use has been observed for long enough to remove images by age.

    Args:
        observed_since: since when, without a gap; ``None`` with an unavailable state database.
        now: the time of that observation.
        maximum_s: the maximum unused age; 0 if it is disabled.
    """
    if not maximum_s:
        return Finding("image-use", Verdict.SKIPPED, "image_gc.maximum_unused_age = 0: no image is removed by age")
    if observed_since is None:
        return Finding(
            "image-use",
            Verdict.WARNING,
            "not observed, as the state database is unavailable: no image is removed by age",
            "see state-directory and stores",
        )
    observed_s = (now - observed_since).total_seconds()
    told = f"observed since {format_time(observed_since)} ({format_duration(observed_s)})"
    if observed_s > maximum_s:
        return Finding("image-use", Verdict.OK, told)
    maximum = format_duration(maximum_s)
    return Finding("image-use", Verdict.OK, f"{told}: no image is removed by age before {maximum}")


def check_agent(away: str, not_ready: Iterable[str], pid: int | None) -> Finding:
    """Judge the running agent by what it says of itself.

    Args:
        away: why it could not be asked; empty if it was.
        not_ready: why it cannot do its work now.
        pid: of its process.
    """
    if away:
        return Finding("agent", Verdict.WARNING, away, "systemctl start nodeagent")
    reasons = "; ".join(not_ready)
    if reasons:
        return Finding("agent", Verdict.PROBLEM, f"it is not ready: {reasons}", "journalctl -u nodeagent -p warning -b")
    return Finding("agent", Verdict.OK, f"at work, process {pid}")


def check_control_group(name: str, known: bool) -> Finding:  # noqa: FBT001 - a reading
    """Judge whether others than root can ask the agent."""
    if known:
        return Finding("control-group", Verdict.OK, f"members of group {name} may ask the agent")
    return Finding(
        "control-group",
        Verdict.WARNING,
        f"there is no group {name}: only root may ask the agent",
        "systemd-sysusers makes it once the agent is installed; or set control.group",
    )


def check_role(role: RoleDecision) -> Finding:
    """Judge the role on this node: a warning where it contradicts the configured one or the traces, or is unknown."""
    evidence = f"{role.role}: {role.warning or role.reason}"
    if role.warning:
        return Finding("role", Verdict.WARNING, evidence, 'stop and remove the kubelet, or set role = "auto"')
    if role.basis is RoleBasis.UNREADABLE:
        return Finding("role", Verdict.WARNING, evidence, "make that path readable for the agent, or configure role")
    if role.basis is RoleBasis.CONFIGURED and role.role is Role.STANDALONE and role.trace:
        return Finding("role", Verdict.WARNING, evidence, 'remove the files of the kubelet, or set role = "auto"')
    return Finding("role", Verdict.OK, evidence)


def check_refused(section: str, because: str) -> Finding:
    """Judge a section that is configured "on" and refused beside a kubelet."""
    fix = {
        "eviction": 'set eviction.enabled = "auto", and the thresholds in the kubelet\'s evictionHard and evictionSoft',
        "shutdown": 'set shutdown.enabled = "auto", and the kubelet\'s shutdownGracePeriod',
    }[section]
    return Finding(f"{section}-refused", Verdict.WARNING, because, fix)


def check_kubelet(found: Mapping[str, str], *, evicts: bool, stops: bool, collects_from: int | None) -> list[Finding]:
    """Judge where a kubelet of this node does the same work.

    Args:
        found: the kubelet's settings that matter, by name; empty without a kubelet's configuration.
        evicts: whether the agent evicts here.
        stops: whether it stops pods when the node goes down.
        collects_from: usage in percent from which it collects images; ``None`` if it does not.
    """
    if not found:
        return [Finding("kubelet-overlap", Verdict.SKIPPED, "no configuration of a kubelet is on this node")]
    findings = []
    if collects_from is not None:
        findings += _judge_collecting(found.get("imageGCHighThresholdPercent", "85"), collects_from)
    if evicts:
        findings.append(
            Finding(
                "kubelet-overlap-eviction",
                Verdict.WARNING,
                "the kubelet evicts, too, and starts again what is stopped behind its back",
                'set eviction.enabled = "off", or "auto"',
            )
        )
    grace = found.get("shutdownGracePeriod", "0s")
    if stops and grace not in ("0", "0s", ""):
        findings.append(
            Finding(
                "kubelet-overlap-shutdown",
                Verdict.PROBLEM,
                f"the kubelet stops pods at shutdown, too (shutdownGracePeriod {grace})",
                'let one of the two do it: shutdown.enabled = "off" here, or no shutdownGracePeriod there',
            )
        )
    return findings or [Finding("kubelet-overlap", Verdict.OK, "the kubelet and the agent do not do the same work")]


def _judge_collecting(kubelet_from: str, collects_from: int) -> list[Finding]:
    """Judge who collects images first; the one that starts earlier leaves the other as its backstop."""
    if kubelet_from == "100" or (kubelet_from.isdecimal() and collects_from < int(kubelet_from)):
        return []
    return [
        Finding(
            "kubelet-overlap-images",
            Verdict.WARNING,
            f"the kubelet collects images from {kubelet_from}% on, before the agent does ({collects_from}%)",
            "set image_gc.high_threshold_percent below that, or imageGCHighThresholdPercent: 100 in the kubelet's",
        )
    ]
