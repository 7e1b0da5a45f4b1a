"""Checks of ``nodeagent doctor`` on the node; each converts a reading to a finding with verdict, evidence and fix."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final

from nodeagent.model import Role, RoleBasis
from nodeagent.record import Record
from nodeagent.units import format_bytes, format_duration

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from nodeagent.model import RoleDecision
    from nodeagent.shutdown.plan.budget import ShutdownBudget

_LITTLE_STATE_BYTES: Final = 64 << 20
_LAZY_SNAPSHOTTERS: Final = frozenset({"stargz", "nydus", "soci", "overlaybd"})


class Verdict(StrEnum):
    """Verdict of a check. The values are part of the JSON output."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"
    SKIPPED = "skipped"


class Finding(Record):
    """Result of one ``doctor`` check.

    Attributes:
        check: name of the check; stable, since scripts use it.
        evidence: the reading on which the verdict is based, as text.
        fix: recommended action for the operator; empty if no action is required.
    """

    check: str
    verdict: Verdict
    evidence: str
    fix: str = ""


def check_stalls(known: Iterable[str]) -> Finding:
    """Return the finding on PSI; ``known`` are the resources with pressure stall information."""
    missing = sorted({"memory", "io"} - set(known))
    if not missing:
        return Finding("pressure-stalls", Verdict.OK, "PSI available for memory and io")
    return Finding(
        "pressure-stalls",
        Verdict.WARNING,
        f"PSI unavailable for {' and '.join(missing)}: thresholds are only polled",
        "add psi=1 to the kernel command line and reboot",
    )


def check_cgroups(controllers: Iterable[str] | None) -> Finding:
    """Return the finding on the cgroup v2 controllers; ``controllers`` is ``None`` with cgroup v1."""
    if controllers is None:
        return Finding(
            "cgroups",
            Verdict.WARNING,
            "cgroup v1: memory and PIDs of pods are known from the runtime only",
            "add systemd.unified_cgroup_hierarchy=1 to the kernel command line and reboot",
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
    """Return the finding on whether logind's delay limit permits the configured time of the shutdown phases."""
    if off:
        return Finding("logind-delay", Verdict.SKIPPED, f"pods are not stopped in order: {off}")
    limit = "no limit" if budget.limit_ms is None else format_duration(budget.limit_ms / 1000)
    requested = format_duration(budget.requested_ms / 1000)
    limits = f"logind allows {limit} ({budget.limit.set_by}), the phases request {requested}"
    if budget.granted_ms >= budget.requested_ms:
        return Finding("logind-delay", Verdict.OK, limits)
    effect = (
        f"they are scaled to {budget.granted_ms / 1000:g}s"
        if budget.suffices_at_signal
        else "too short: no pod is stopped at the signal, only by the unit's stop hook within TimeoutStopSec"
    )
    return Finding(
        "logind-delay",
        Verdict.WARNING,
        f"{limits}: {effect}",
        "nodeagent doctor --fix-logind writes a drop-in with a sufficient limit, and reloads logind",
    )


def check_lock(held: bool, because: str, *, off: str) -> Finding:  # noqa: FBT001 - a reading
    """Return the finding on the inhibitor lock; ``because`` is the evidence."""
    if off:
        return Finding("inhibitor", Verdict.SKIPPED, f"graceful shutdown disabled: {off}")
    if held:
        return Finding("inhibitor", Verdict.OK, because)
    return Finding("inhibitor", Verdict.WARNING, because, "start the daemon: systemctl start nodeagent")


def check_image_removal(*, transactional: bool, configured: bool) -> Finding:
    """Return the finding on whether an image removal keeps images of container creations in progress."""
    if transactional:
        return Finding(
            "image-removal", Verdict.OK, "in transactions: images of container creations in progress are kept"
        )
    return Finding(
        "image-removal",
        Verdict.WARNING,
        "through CRI: a container creation within the RemoveImage call can lose its image record; a restart of the "
        "container then requires a pull",
        'set image_gc.removal = "auto"' if configured else "requires containerd and its API (runtime.containerd_api)",
    )


def check_sandbox_image(name: str | None, *, listed: bool, pinned: bool, beside_kubelet: bool) -> Finding:
    """Return the finding on the sandbox image: whether it is present, and pinned against the kubelet's image GC.

    Every pod needs the sandbox image. If the image is missing, the runtime pulls it for the first pod, which fails
    without access to a registry. The kubelet removes an unpinned sandbox image as unused once no container references
    it, and every new pod then requires a pull.

    Args:
        name: name of the sandbox image reported by the runtime; ``None`` if not reported.
        listed: whether the image is on the node.
        pinned: whether the runtime reports the image as pinned.
        beside_kubelet: whether a kubelet manages this node.

    Source: kubelet ``imagesInEvictionOrder``, which excludes only pinned images and images of listed containers.
    """
    if name is None:
        return Finding("sandbox-image", Verdict.SKIPPED, "not reported by the runtime; images in use are kept anyway")
    if not listed:
        return Finding(
            "sandbox-image",
            Verdict.WARNING,
            f"{name} not found on the node: no pod can start before a pull of it",
            f"ctr -n k8s.io images pull {name}",
        )
    if pinned:
        return Finding("sandbox-image", Verdict.OK, f"{name} is pinned")
    if not beside_kubelet:
        return Finding("sandbox-image", Verdict.OK, f"{name} is not pinned in the runtime; the agent keeps it")
    return Finding(
        "sandbox-image",
        Verdict.WARNING,
        f"{name} is not pinned: the kubelet's image GC may remove it, and then no new pod starts; the agent keeps it",
        "nodeagent doctor --fix-pin sets the label io.cri-containerd.pinned; if it is still not pinned, restart or "
        "update containerd, or keep a container of this image on the node, such as one of a DaemonSet",
    )


def check_snapshotter(name: str | None) -> Finding:
    """Return the finding on the snapshotter; ``name`` is ``None`` if the runtime does not report it."""
    if name is None:
        return Finding("snapshotter", Verdict.SKIPPED, "not reported by the runtime; labels of the images are used")
    if name in _LAZY_SNAPSHOTTERS:
        return Finding(
            "snapshotter",
            Verdict.WARNING,
            f"{name} fetches layers when they are read: image sizes can grow after they were measured",
            "set a lower image_gc.high_threshold_percent",
        )
    return Finding("snapshotter", Verdict.OK, name)


def check_image_filesystem(path: str | None, used_percent: int = 0, *, hidden_by: str = "") -> Finding:
    """Return the finding on the image filesystem.

    ``path`` is ``None`` if the filesystem cannot be read; ``hidden_by`` is the systemd unit that hides it from the
    agent.
    """
    if path is None:
        return Finding(
            "imagefs",
            Verdict.PROBLEM,
            "cannot read the image filesystem; no image is removed by threshold",
            "set runtime.imagefs_path to a path on the image filesystem",
        )
    usage = f"{path} is {used_percent}% full"
    if hidden_by:
        return Finding(
            "imagefs",
            Verdict.PROBLEM,
            f"{usage}; {hidden_by} hides home directories from the daemon",
            f"systemctl edit {hidden_by}: BindReadOnlyPaths={path} in section [Service]",
        )
    return Finding("imagefs", Verdict.OK, usage)


def check_split(places: Mapping[str, int | None], image_filesystems: int) -> Finding:
    """Return the finding on which of imagefs, containerfs and nodefs share a filesystem.

    Args:
        places: device id of ``imagefs``, ``containerfs`` and ``nodefs``, in this order; ``None`` if it cannot be read.
        image_filesystems: number of image filesystems.
    """
    unread = [name for name, device in places.items() if device is None]
    if unread:
        return Finding(
            "split-filesystems",
            Verdict.WARNING,
            f"cannot read the filesystem of {' and '.join(unread)}",
            "make the paths of the runtime readable for the agent, or set runtime.imagefs_path",
        )
    groups: dict[int | None, list[str]] = {}
    for name, device in places.items():
        groups.setdefault(device, []).append(name)
    separate = "; ".join(" and ".join(names) for names in groups.values())
    layout = f"separate: {separate}" if len(groups) > 1 else "imagefs, containerfs and nodefs share one filesystem"
    if image_filesystems > 1:
        several = f"{image_filesystems} image filesystems: image GC collects each, eviction watches the first"
        return Finding("split-filesystems", Verdict.OK, f"{layout}; {several}")
    return Finding("split-filesystems", Verdict.OK, layout)


def check_stores(broken: Mapping[str, str], sound: Iterable[str]) -> Finding:
    """Return the finding on the agent's databases: ``broken`` maps path to fault, ``sound`` has names."""
    if broken:
        return Finding(
            "stores",
            Verdict.WARNING,
            "; ".join(f"{path}: {fault}" for path, fault in broken.items()),
            "none needed: the next pass quarantines and replaces the file; check the disk",
        )
    names = ", ".join(sound)
    return Finding("stores", Verdict.OK, f"{names}: sound" if names else "no databases yet")


def check_state(directory: str, problem: str, available_bytes: int | None, mode: int = 0o750) -> Finding:
    """Return the finding on the state directory; ``problem`` is the cause of a failed write, empty otherwise."""
    if problem:
        return Finding(
            "state-directory",
            Verdict.PROBLEM,
            f"cannot write {directory}: {problem}; observed image use is lost at a restart",
            "make the directory writable for root, or set state.directory",
        )
    if available_bytes is not None and available_bytes < _LITTLE_STATE_BYTES:
        return Finding(
            "state-directory",
            Verdict.WARNING,
            f"{directory}: only {format_bytes(available_bytes)} available on its filesystem",
        )
    if mode & 0o022:
        return Finding(
            "state-directory",
            Verdict.WARNING,
            f"{directory} has mode {mode:04o}: users other than root can change the state of the agent",
            f"chmod 0750 {directory}",
        )
    return Finding("state-directory", Verdict.OK, f"{directory} is writable")


def check_agent(unavailable: str, not_ready: Iterable[str], pid: int | None) -> Finding:
    """Return the finding on the readiness of the running agent.

    Args:
        unavailable: reason why the control API did not respond; empty if it responded.
        not_ready: reasons why the agent is not ready; empty if ready.
        pid: process id of the agent.
    """
    if unavailable:
        return Finding("agent", Verdict.WARNING, unavailable, "systemctl start nodeagent")
    reasons = "; ".join(not_ready)
    if reasons:
        return Finding("agent", Verdict.PROBLEM, f"not ready: {reasons}", "journalctl -u nodeagent -p warning -b")
    return Finding("agent", Verdict.OK, f"running (pid {pid})")


def denied(check: str, evidence: str) -> Finding:
    """Return the finding of a check for which ``doctor`` lacks permission; a warning, not a problem of the node."""
    return Finding(check, Verdict.WARNING, evidence, "run as root: sudo nodeagent doctor")


def check_control_group(name: str, known: bool) -> Finding:  # noqa: FBT001 - a reading
    """Return the finding on the control group, which permits its members to use the control API."""
    if known:
        return Finding("control-group", Verdict.OK, f"members of group {name} may use the control API")
    return Finding(
        "control-group",
        Verdict.WARNING,
        f"group {name} not found: only root may use the control API",
        "run systemd-sysusers after the installation, or set control.group",
    )


def check_role(role: RoleDecision) -> Finding:
    """Return the finding on the role; a warning if the role contradicts configuration or traces, or is unknown."""
    evidence = f"{role.role}: {role.warning or role.reason}"
    if role.warning:
        return Finding("role", Verdict.WARNING, evidence, 'stop and remove the kubelet, or set role = "auto"')
    if role.basis is RoleBasis.UNREADABLE:
        return Finding(
            "role", Verdict.WARNING, evidence, "make kubelet traces readable for the agent, or configure role"
        )
    if role.basis is RoleBasis.CONFIGURED and role.role is Role.STANDALONE and role.trace:
        return Finding("role", Verdict.WARNING, evidence, 'remove the files of the kubelet, or set role = "auto"')
    return Finding("role", Verdict.OK, evidence)


def check_refused(section: str, because: str) -> Finding:
    """Return the warning for a configuration section that is set to "on" but refused beside a kubelet."""
    fix = {
        "eviction": 'set eviction.enabled = "auto", and the thresholds in the kubelet\'s evictionHard and evictionSoft',
        "shutdown": 'set shutdown.enabled = "auto", and the kubelet\'s shutdownGracePeriod',
    }[section]
    return Finding(f"{section}-refused", Verdict.WARNING, because, fix)
