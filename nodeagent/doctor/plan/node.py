"""Checks of ``nodeagent doctor`` on the node and the API server; each converts a reading to a finding with a fix."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from nodeagent.cluster.plan.client_certificate import MAX_NODE_NAME, TOKEN_REJECTED, RequestState
from nodeagent.eviction.plan.memory_model import (
    describe_estimates,
    estimate_memory,
    explain_difference,
    lowest_estimate,
    memory_parts,
)
from nodeagent.gc.plan.image_protection import describe_gap
from nodeagent.model.clock import TRUSTED, ClockTrust
from nodeagent.model.node import Role, RoleBasis, RoleDecision
from nodeagent.model.pressure import NEARLY_FULL_PERCENT, MemoryCounters, NodeMemory, Signal, SignalReading
from nodeagent.model.runtime import ReferenceKind
from nodeagent.record import Record
from nodeagent.shutdown.plan.planner import STOP_HOOK_RESERVE_S
from nodeagent.text import escape
from nodeagent.units import format_bytes, format_duration, format_time

if TYPE_CHECKING:
    from nodeagent.cluster.plan.client_certificate import CertificateRequest
    from nodeagent.doctor.plan.triggers import TriggerRow
    from nodeagent.eviction.plan.thresholds import Threshold
    from nodeagent.model.kubernetes import Certificate
    from nodeagent.model.pressure import NodeFilesystem
    from nodeagent.model.runtime import HeldContent, ObservationGap
    from nodeagent.shutdown.plan.planner import ShutdownBudget

_LITTLE_STATE_BYTES: Final = 64 << 20
_OLD_LEASE: Final = timedelta(days=1)
_LAZY_SNAPSHOTTERS: Final = frozenset({"stargz", "nydus", "soci", "overlaybd"})


class Grade(StrEnum):
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
        triggers: comparison of the triggers of kubelet and agent, of one finding on overlapping tasks.
    """

    check: str
    verdict: Grade
    evidence: str
    fix: str = ""
    triggers: tuple[TriggerRow, ...] = ()

    @classmethod
    def ok(cls, check: str, evidence: str) -> Finding:
        """Return the finding of a passed check."""
        return cls(check, Grade.OK, evidence)

    @classmethod
    def warning(cls, check: str, evidence: str, fix: str = "") -> Finding:
        """Return a finding that limits the agent."""
        return cls(check, Grade.WARNING, evidence, fix)

    @classmethod
    def problem(cls, check: str, evidence: str, fix: str) -> Finding:
        """Return a finding that prevents a function of the agent."""
        return cls(check, Grade.PROBLEM, evidence, fix)

    @classmethod
    def skipped(cls, check: str, evidence: str, fix: str = "") -> Finding:
        """Return the finding of a check that is not applicable, or not possible."""
        return cls(check, Grade.SKIPPED, evidence, fix)


def check_stalls(known: Iterable[str]) -> Finding:
    """Return the finding on PSI; ``known`` are the resources with pressure stall information."""
    missing = sorted({"memory", "io"} - set(known))
    if not missing:
        return Finding.ok("pressure-stalls", "PSI available for memory and io")
    return Finding.warning(
        "pressure-stalls",
        f"PSI unavailable for {' and '.join(missing)}: thresholds are only polled",
        "add psi=1 to the kernel command line and reboot",
    )


def check_cgroups(controllers: Iterable[str] | None) -> Finding:
    """Return the finding on the cgroup v2 controllers; ``controllers`` is ``None`` with cgroup v1."""
    if controllers is None:
        return Finding.warning(
            "cgroups",
            "cgroup v1: memory and PIDs of pods are known from the runtime only",
            "add systemd.unified_cgroup_hierarchy=1 to the kernel command line and reboot",
        )
    missing = sorted({"memory", "pids"} - set(controllers))
    if missing:
        return Finding.problem(
            "cgroups", f"cgroup v2 without {', '.join(missing)}", "enable the controllers in the kernel"
        )
    return Finding.ok("cgroups", "cgroup v2 with memory and pids")


def check_delay(budget: ShutdownBudget, *, off: str) -> Finding:
    """Return the finding on whether logind's delay limit permits the configured time of the shutdown phases."""
    if off:
        return Finding.skipped("logind-delay", f"pods are not stopped in order: {off}")
    limit = "no limit" if budget.limit_ms is None else format_duration(budget.limit_ms / 1000)
    requested = format_duration(budget.requested_ms / 1000)
    limits = f"logind allows {limit} ({budget.limit.set_by}), the phases request {requested}"
    if budget.granted_ms >= budget.requested_ms:
        return Finding.ok("logind-delay", limits)
    effect = (
        f"they are scaled to {budget.granted_ms / 1000:g}s"
        if budget.suffices_at_signal
        else "too short: no pod is stopped at the signal, only by the unit's stop hook within TimeoutStopSec"
    )
    return Finding.warning(
        "logind-delay",
        f"{limits}: {effect}",
        "nodeagent doctor --fix-logind writes a drop-in with a sufficient limit, and reloads logind",
    )


def check_stop_timeout(budget: ShutdownBudget, required_s: int) -> Iterator[Finding]:
    """Yield a warning if the unit's stop hook has less time than the shutdown phases; ``required_s`` is enough."""
    if budget.scaled and budget.limit_ms is not None:
        yield Finding.warning(
            "unit-stop-timeout",
            f"the unit's stop hook has {format_duration(budget.limit_ms / 1000)} (TimeoutStopSec minus "
            f"{STOP_HOOK_RESERVE_S:g}s), the phases request {format_duration(budget.requested_ms / 1000)}: a shutdown "
            "that logind does not announce scales them, and a stop of the unit in a shutdown ends them early",
            f"set TimeoutStopSec={required_s} in the section [Service]: systemctl edit nodeagent",
        )


def check_lock(held: bool, because: str, *, off: str) -> Finding:  # noqa: FBT001 - a reading
    """Return the finding on the inhibitor lock; ``because`` is the evidence."""
    if off:
        return Finding.skipped("inhibitor", f"graceful shutdown disabled: {off}")
    if held:
        return Finding.ok("inhibitor", because)
    return Finding.warning("inhibitor", because, "start the daemon: systemctl start nodeagent")


def unusable_runtime(error: str, cri_disabled_at: str, faults: Iterable[str] = ()) -> Finding:
    """Return the finding on a runtime without answer.

    Args:
        error: error of the call.
        cri_disabled_at: file and line that disables containerd's CRI plugin; empty if none is found.
        faults: faults in containerd's configuration.
    """
    if cri_disabled_at:
        return Finding.problem(
            "runtime",
            f"{error}; {cri_disabled_at}: disabled_plugins disables CRI, as in the containerd package of Docker",
            "remove the CRI plugin from disabled_plugins and restart containerd; or set runtime.endpoint",
        )
    evidence = "; ".join([error, *faults])
    return Finding.problem("runtime", evidence, "systemctl status containerd; or set runtime.endpoint")


def check_image_removal(*, transactional: bool, configured: bool) -> Finding:
    """Return the finding on whether an image removal keeps images of container creations in progress."""
    if transactional:
        return Finding.ok("image-removal", "in transactions: images of container creations in progress are kept")
    return Finding.warning(
        "image-removal",
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
        return Finding.skipped("sandbox-image", "not reported by the runtime; images in use are kept anyway")
    if not listed:
        return Finding.warning(
            "sandbox-image",
            f"{name} not found on the node: no pod can start before a pull of it",
            f"ctr -n k8s.io images pull {name}",
        )
    if pinned:
        return Finding.ok("sandbox-image", f"{name} is pinned")
    if not beside_kubelet:
        return Finding.ok("sandbox-image", f"{name} is not pinned in the runtime; the agent keeps it")
    return Finding.warning(
        "sandbox-image",
        f"{name} is not pinned: the kubelet's image GC may remove it, and then no new pod starts; the agent keeps it",
        "nodeagent doctor --fix-pin sets the label io.cri-containerd.pinned; if it is still not pinned, restart or "
        "update containerd, or keep a container of this image on the node, such as one of a DaemonSet",
    )


def check_snapshotter(name: str | None) -> Finding:
    """Return the finding on the snapshotter; ``name`` is ``None`` if the runtime does not report it."""
    if name is None:
        return Finding.skipped("snapshotter", "not reported by the runtime; labels of the images are used")
    if name in _LAZY_SNAPSHOTTERS:
        return Finding.warning(
            "snapshotter",
            f"{name} fetches layers when they are read: image sizes can grow after they were measured",
            "set a lower image_gc.high_threshold_percent",
        )
    return Finding.ok("snapshotter", name)


def check_held_content(held: Iterable[HeldContent], now: datetime) -> Finding:
    """Return the finding on stored content that no pass and no expiry frees.

    Leases count from a day after their creation, since a pull has a lease too. Source: containerd
    ``docs/garbage-collection.md``.
    """
    stuck = [
        each
        for each in held
        if each.is_stuck
        and (
            each.kind is not ReferenceKind.LEASE or (each.created_at is not None and now - each.created_at > _OLD_LEASE)
        )
    ]
    if not stuck:
        return Finding.ok("held-content", "no image with missing blobs, and no old lease without expiry")
    largest = max(stuck, key=lambda each: each.size_bytes)
    is_lease = largest.kind is ReferenceKind.LEASE
    kind, option = ("lease", f" --include {largest.name}") if is_lease else ("image", "")
    more = f" and {len(stuck) - 1} more" if len(stuck) > 1 else ""
    size = format_bytes(sum(each.size_bytes for each in stuck))
    return Finding.warning(
        "held-content",
        f"{size} that no pass frees: {kind} {largest.name} ({largest.detail}){more}",
        f"nodeagent gc leaks lists all; nodeagent gc leaks{option} --yes deletes it"
        + (", unless its client still needs it" if is_lease else ""),
    )


def check_filesystems(filesystems: Sequence[NodeFilesystem]) -> Finding:
    """Return the finding on the filesystems that the runtime, the pods and the agent need."""
    faults = [
        each.nearly_full or f"{each.path} ({', '.join(each.roles)}): {each.problem}"
        for each in filesystems
        if each.nearly_full or each.problem
    ]
    if faults:
        fix = "free space there; nodeagent du lists the content of imagefs, df and df -i show the others"
        return Finding.warning("filesystems", "; ".join(faults), fix)
    paths = ", ".join(f"{each.path} ({', '.join(each.roles)})" for each in filesystems)
    return Finding.ok("filesystems", f"at least {NEARLY_FULL_PERCENT}% of bytes and inodes available: {paths}")


def check_image_filesystem(path: str | None, used_percent: int = 0, *, hidden_by: str = "") -> Finding:
    """Return the finding on the image filesystem.

    ``path`` is ``None`` if the filesystem cannot be read; ``hidden_by`` is the systemd unit that hides it from the
    agent.
    """
    if path is None:
        return Finding.problem(
            "imagefs",
            "cannot read the image filesystem; no image is removed by threshold",
            "set runtime.imagefs_path to a path on the image filesystem",
        )
    usage = f"{path} is {used_percent}% full"
    if hidden_by:
        return Finding.problem(
            "imagefs",
            f"{usage}; {hidden_by} hides home directories from the daemon",
            f"systemctl edit {hidden_by}: BindReadOnlyPaths={path} in section [Service]",
        )
    return Finding.ok("imagefs", usage)


def check_split(places: Mapping[str, int | None], image_filesystems: int) -> Finding:
    """Return the finding on which of imagefs, containerfs and nodefs share a filesystem.

    Args:
        places: device id of ``imagefs``, ``containerfs`` and ``nodefs``, in this order; ``None`` if it cannot be read.
        image_filesystems: number of image filesystems.
    """
    unread = [name for name, device in places.items() if device is None]
    if unread:
        return Finding.warning(
            "split-filesystems",
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
        return Finding.ok("split-filesystems", f"{layout}; {several}")
    return Finding.ok("split-filesystems", layout)


def check_stores(broken: Mapping[str, str], sound: Iterable[str]) -> Finding:
    """Return the finding on the agent's databases: ``broken`` maps path to fault, ``sound`` has names."""
    if broken:
        return Finding.warning(
            "stores",
            "; ".join(f"{path}: {fault}" for path, fault in broken.items()),
            "none needed: the next pass quarantines and replaces the file; check the disk",
        )
    names = ", ".join(sound)
    return Finding.ok("stores", f"{names}: sound" if names else "no databases yet")


def check_state(directory: str, problem: str, available_bytes: int | None, mode: int = 0o750) -> Finding:
    """Return the finding on the state directory; ``problem`` is the cause of a failed write, empty otherwise."""
    if problem:
        return Finding.problem(
            "state-directory",
            f"cannot write {directory}: {problem}; observed image use is lost at a restart",
            "make the directory writable for root, or set state.directory",
        )
    if available_bytes is not None and available_bytes < _LITTLE_STATE_BYTES:
        return Finding.warning(
            "state-directory", f"{directory}: only {format_bytes(available_bytes)} available on its filesystem"
        )
    if mode & 0o022:
        return Finding.warning(
            "state-directory",
            f"{directory} has mode {mode:04o}: users other than root can change the state of the agent",
            f"chmod 0750 {directory}",
        )
    return Finding.ok("state-directory", f"{directory} is writable")


def check_agent(unavailable: str, not_ready: Iterable[str], pid: int | None) -> Finding:
    """Return the finding on the readiness of the running agent.

    Args:
        unavailable: reason why the control API did not respond; empty if it responded.
        not_ready: reasons why the agent is not ready; empty if ready.
        pid: process id of the agent.
    """
    if unavailable:
        return Finding.warning("agent", unavailable, "systemctl start nodeagent")
    reasons = "; ".join(not_ready)
    if reasons:
        return Finding.problem("agent", f"not ready: {reasons}", "journalctl -u nodeagent -p warning -b")
    return Finding.ok("agent", f"running (pid {pid})")


def denied(check: str, evidence: str) -> Finding:
    """Return the finding of a check for which ``doctor`` lacks permission; a warning, not a problem of the node."""
    return Finding.warning(check, evidence, "run as root: sudo nodeagent doctor")


def check_control_group(name: str, known: bool) -> Finding:  # noqa: FBT001 - a reading
    """Return the finding on the control group, which permits its members to use the control API."""
    if known:
        return Finding.ok("control-group", f"members of group {name} may use the control API")
    return Finding.warning(
        "control-group",
        f"group {name} not found: only root may use the control API",
        "run systemd-sysusers after the installation, or set control.group",
    )


def check_role(role: RoleDecision) -> Finding:
    """Return the finding on the role; a warning if the role contradicts configuration or traces, or is unknown."""
    evidence = f"{role.role}: {role.warning or role.reason}"
    if role.warning:
        return Finding.warning("role", evidence, 'stop and remove the kubelet, or set role = "auto"')
    if role.basis is RoleBasis.UNREADABLE:
        return Finding.warning("role", evidence, "make kubelet traces readable for the agent, or configure role")
    if role.basis is RoleBasis.CONFIGURED and role.role is Role.STANDALONE and role.trace:
        return Finding.warning("role", evidence, 'remove the files of the kubelet, or set role = "auto"')
    return Finding.ok("role", evidence)


def check_refused(section: str, because: str) -> Finding:
    """Return the warning for a configuration section that is set to "on" but refused beside a kubelet."""
    fix = {
        "eviction": 'set eviction.enabled = "auto", and the thresholds in the kubelet\'s evictionHard and evictionSoft',
        "shutdown": 'set shutdown.enabled = "auto", and the kubelet\'s shutdownGracePeriod',
    }[section]
    return Finding.warning(f"{section}-refused", because, fix)


_MUCH_SKEW_S: Final = 5.0
_MANY_GAPS: Final = 3
_DAY_S: Final = 86_400.0

_REMEDY: Final = "check the time service; nothing is removed too early, since ages count from the first observation"


def check_clock(
    skew_s: float | None,
    synchronised: bool | None,  # noqa: FBT001 - a reading, not a mode switch
    clock: ClockTrust = TRUSTED,
) -> Finding:
    """Return the ``doctor`` finding on the wall clock, on which ages across boots depend.

    Args:
        skew_s: creation time of the newest container relative to now, in seconds; ``None`` without containers.
        synchronised: whether the kernel reports the clock as synchronised (adjtimex); ``None`` if unknown.
        clock: trust status of the wall clock, with its last jump.
    """
    if clock.problem:
        return Finding.warning("clock", clock.problem, _REMEDY)
    if clock.untrusted_until is not None:
        until = format_time(clock.untrusted_until)
        detail = f"{clock.jump_text}: nothing is removed by age before {until}"
        return Finding.warning("clock", detail, "check the time service if this occurs again")
    if skew_s is not None and skew_s > _MUCH_SKEW_S:
        ahead = format_duration(skew_s)
        return Finding.warning(
            "clock", f"a container was created {ahead} in the future: the clock was set back", _REMEDY
        )
    if synchronised is False:
        return Finding.warning("clock", "clock not synchronised (adjtimex)", "start a time service")
    state = "synchronised" if synchronised else "no creation time in the future"
    if clock.jumped_at is not None:
        state += f"; {clock.jump_text} at {format_time(clock.jumped_at)}"
    return Finding.ok("clock", state)


def check_image_use(
    observed_since: datetime | None, now: datetime, maximum_s: float, gaps: Sequence[ObservationGap] = ()
) -> Finding:
    """Return the ``doctor`` finding on image use: whether it was observed for long enough to remove images by age.

    Args:
        observed_since: start of the uninterrupted observation; ``None`` if the state database is unavailable.
        now: the time of the check.
        maximum_s: maximum unused age of images in seconds; 0 disables removal by age.
        gaps: the latest gaps in the observation, oldest first.
    """
    if observed_since is None:
        if not maximum_s:
            return Finding.skipped("image-use", "image_gc.maximum_unused_age = 0: no image is removed by age")
        return Finding.warning(
            "image-use",
            "not observed: state database is unavailable; no image is removed by age",
            "see state-directory and stores",
        )
    observed_s = (now - observed_since).total_seconds()
    observed = f"observed since {format_time(observed_since)} ({format_duration(observed_s)})"
    if maximum_s and observed_s <= maximum_s:
        observed += f": no image is removed by age until use is observed for {format_duration(maximum_s)}"
    if gaps:
        last = gaps[-1]
        observed += f"; {describe_gap(last.started_at, last.ended_at, last.cause.value)}"
    if not maximum_s:
        observed = f"image_gc.maximum_unused_age = 0: no image is removed by age; {observed}"
    elif observed_s <= maximum_s and (longest_s := _longest_of_many(gaps, now)) is not None and longest_s < maximum_s:
        causes = ", ".join(sorted({each.cause.value for each in gaps}))
        longest = format_duration(longest_s)
        lasted = f"the last {len(gaps) - 1} observations lasted {longest} at most ({causes})"
        return Finding.warning(
            "image-use",
            f"{lasted}: no image is removed by age; {observed}",
            f"set image_gc.maximum_unused_age below {longest}; for reboots see image-gc.md, section Reboots",
        )
    return Finding("image-use", Grade.OK if maximum_s else Grade.SKIPPED, observed)


def _longest_of_many(gaps: Sequence[ObservationGap], now: datetime) -> float | None:
    """Return the seconds of the longest observation between recorded gaps; ``None`` if these are few or of one day."""
    if len(gaps) < _MANY_GAPS or (now - gaps[0].ended_at).total_seconds() < _DAY_S:
        return None
    starts = [each.started_at or each.ended_at for each in gaps[1:]]
    return max((end - gap.ended_at).total_seconds() for gap, end in zip(gaps, starts, strict=False))


MEMORY_CHECK: Final = "memory-thresholds"
CACHE_CHECK: Final = "cache-reclaim"
_LISTED_SHARE: Final = 0.01


def check_memory_thresholds(
    thresholds: Iterable[Threshold], reading: SignalReading, *, kernel_estimate: bool
) -> Finding:
    """Return the finding on whether the ``memory.available`` thresholds match the memory of the node.

    With the kernel's estimate, a threshold is a warning if one of the two estimates meets it, but no evidence confirms
    this estimate. Without it, the kubelet's formula decides alone, which ignores kernel memory and the watermarks: a
    threshold must exceed the difference between the formula and ``MemAvailable``, otherwise it is met only after
    ``MemAvailable`` has reached 0.

    Args:
        thresholds: the configured eviction thresholds.
        reading: reading of ``memory.available``, with the kernel's estimate.
        kernel_estimate: whether thresholds also use the kernel's estimate.

    Source: kernel ``si_mem_available``.
    """
    memory = reading.memory
    if memory is None or memory.kernel_available is None:
        return Finding.skipped(MEMORY_CHECK, "the kernel reports no MemAvailable")
    limits = {each.text: each.limit(reading.capacity) for each in thresholds if each.signal is Signal.MEMORY_AVAILABLE}
    evidence = _evidence(reading, memory)
    if not kernel_estimate:
        distance = (memory.formula or 0.0) - memory.kernel_available
        late = [text for text, limit in limits.items() if limit <= distance]
        if not late:
            return Finding.ok(MEMORY_CHECK, evidence)
        return Finding.warning(
            MEMORY_CHECK,
            f"{evidence}: {', '.join(late)} is not met before MemAvailable is exhausted",
            f"raise the threshold above {format_bytes(int(distance))}, or set eviction.kernel_memory_estimate = true",
        )
    disputed = [text for text, limit in limits.items() if lowest_estimate(reading) < limit <= reading.available]
    if not disputed:
        return Finding.ok(MEMORY_CHECK, evidence)
    return Finding.warning(
        MEMORY_CHECK,
        f"{evidence}: one estimate meets {', '.join(disputed)}, but no evidence confirms it "
        f"({explain_difference(memory) or 'difference unknown'}); no pod is evicted",
        "nodeagent pressure -o wide lists all parts of the memory",
    )


def _evidence(reading: SignalReading, memory: NodeMemory) -> str:
    found = f"memory.available {format_bytes(int(estimate_memory(memory).available))}"
    if reading.limited_by and not memory.limited_by:  # the machine decides on the available memory
        found += f", capacity limited by {reading.limited_by}"
    parts = "" if memory.counters is None else f"; {_large_parts(memory.counters, limited=bool(memory.limited_by))}"
    return f"{found}, {describe_estimates(memory)}{parts}"


def _large_parts(counters: MemoryCounters, *, limited: bool) -> str:
    """Return the parts of at least 1% of the memory, and the free memory that the kernel reserves of the machine."""
    shown = [
        f"{name} {format_bytes(size)}"
        for name, size in memory_parts(counters)
        if size >= counters.total * _LISTED_SHARE
    ]
    reserve = None if limited else counters.reserve_free
    return ", ".join((*shown, *([] if reserve is None else [f"reserved by the kernel {format_bytes(reserve)}"])))


def check_cache_reclaim(off: str, *, writable: bool | None) -> Finding:
    """Return the finding on whether the agent can reclaim page cache of pods before an eviction for memory.

    Args:
        off: reason why cache reclaim is disabled; empty if it is enabled.
        writable: whether the agent's systemd unit permits writes to the cgroups of pods; ``None`` if unknown.
    """
    if off:
        return Finding.skipped(CACHE_CHECK, off)
    if writable is None:
        return Finding.skipped(CACHE_CHECK, "unit not installed, or systemd not running")
    if not writable:
        evidence = "not permitted: a pod may be evicted while its page cache could be reclaimed"
        return Finding.skipped(CACHE_CHECK, evidence, "install the drop-in page-cache.conf of the unit")
    return Finding.ok(CACHE_CHECK, "cgroups of pods are writable for the unit")


METRICS_CHECK: Final = "metrics"
OPEN_LISTENER: Final = "serves other machines without encryption and authentication"
OPEN_FIX: Final = "set metrics.certificate_file, key_file and client_ca_file, or listen on loopback"
_SOON_S: Final = 7 * 86_400.0
_RENEW: Final = "renew the certificate; the agent reads the new files without a restart"


def check_listener(listen: str, *, is_remote: bool, has_tls: bool, has_client_ca: bool) -> Finding:
    """Return the finding on the metrics listen address; ``listen`` is empty if the listener is disabled."""
    if not listen:
        return Finding.skipped(METRICS_CHECK, 'metrics.listen = "off"')
    if is_remote and not has_tls:
        return Finding.warning(METRICS_CHECK, f"{listen} {OPEN_LISTENER}", OPEN_FIX)
    if is_remote and not has_client_ca:
        evidence = f"{listen} serves every client with TLS, without authentication"
        return Finding.warning(METRICS_CHECK, evidence, "set metrics.client_ca_file")
    protection = ("; TLS with client certificates" if has_client_ca else "; TLS") if has_tls else ""
    return Finding.ok(METRICS_CHECK, f"{listen}{protection}")


def check_certificate(listener: Finding, problem: str, expires_at: datetime | None, now: datetime) -> Finding:
    """Return the finding on the certificate files of a metrics listener with TLS.

    Args:
        listener: the finding of :func:`check_listener`, returned if the files are valid.
        problem: cause why the certificate files cannot be used; empty if they are valid.
        expires_at: end of validity of the server certificate; ``None`` if unknown.
        now: time of the check, aware UTC.
    """
    if problem:
        return Finding.problem(METRICS_CHECK, problem, "correct the file; the agent reads it again")
    if expires_at is None:
        return listener
    left_s, until = (expires_at - now).total_seconds(), format_time(expires_at)
    if left_s <= 0:
        return Finding.problem(METRICS_CHECK, f"the server certificate expired at {until}", _RENEW)
    if left_s < _SOON_S:
        return Finding.warning(METRICS_CHECK, f"the server certificate expires at {until}", _RENEW)
    return listener


API_CHECK: Final = "kubernetes"
TAINT_RULE: Final = "patch nodes with taints (not permitted to node certificates; configure a service account)"
PODS_CHECK: Final = "kubernetes-pods"
_RENEW_CLIENT: Final = "renew the certificate; the agent reads the new file without a restart"
_FIXES: Final = (
    (
        "server certificate not trusted",
        "set kubernetes.ca_file, or certificate-authority of the kubeconfig, to the CA of the API server",
    ),
    ("HTTP 401", "renew the token or certificate of the agent"),
    ("HTTP 403", "grant the missing rule, see nodeagent manifest rbac --help"),
    (
        "of this machine is unknown",
        "make /etc/machine-id of the node readable for the agent; in a container mount it read-only",
    ),
    ("has no ids", "wait until the kubelet has reported the node status"),
    (
        "no Node object",
        "set kubelet.node_name to the name of this node's object; if it was deleted, restart the kubelet or the agent",
    ),
    ("Node object", "set kubelet.node_name to the name of this node's object"),
)
"""Fix by words of an error; the first match counts."""


def check_api_access(  # noqa: PLR0913 - one argument for each fact of a reading
    error: str,
    missing: Sequence[str],
    expires_at: datetime | None,
    *,
    foreign: str,
    has_node: bool,
    now: datetime,
    options: Sequence[str] = (),
    in_pod: bool = False,
) -> Finding:
    """Return the finding on the agent's access to the API server: certificate, requests and RBAC rules.

    Args:
        error: cause of a failed request; empty if all requests succeeded.
        missing: RBAC rules that the agent's identity lacks.
        expires_at: end of validity of the client certificate; ``None`` without a client certificate.
        foreign: reason that the Node object is not proven to be of this machine; empty with proof.
        has_node: whether the Node object exists; a daemon that registers the node creates it.
        now: time of the check, aware UTC.
        options: enabled settings of ``[kubernetes]`` that require RBAC rules.
        in_pod: whether the identity is the service account of the agent's pod.
    """
    left_s = None if expires_at is None else (expires_at - now).total_seconds()
    until = "" if expires_at is None else format_time(expires_at)
    if left_s is not None and left_s <= 0:
        return Finding.problem(API_CHECK, f"the client certificate expired at {until}", _RENEW_CLIENT)
    if error:
        return Finding.problem(API_CHECK, error, _fix(error))
    if missing:
        lacking = f"the identity of the agent lacks: {', '.join(missing)}"
        flags = "".join(f" --{each.replace('_', '-')}" for each in options)
        fix = f"nodeagent manifest rbac{flags} | kubectl apply -f -"
        if in_pod:
            fix = "print nodeagent manifest daemonset with the options of these settings, such as --api, and apply it"
        return Finding.problem(API_CHECK, lacking, fix)
    if left_s is not None and left_s < _SOON_S:
        return Finding.warning(API_CHECK, f"the client certificate expires at {until}", _RENEW_CLIENT)
    state = f"the API server answers and grants every rule; {foreign or 'the Node object is of this machine'}"
    if has_node and foreign:
        return Finding.problem(API_CHECK, state, _fix(foreign))
    return Finding.ok(API_CHECK, state)


CERTIFICATE_CHECK: Final = "kubernetes-certificate"
_STATES: Final = {
    RequestState.UNSENT: "not sent",
    RequestState.PENDING: "pending",
    RequestState.DENIED: "denied",
    RequestState.FAILED: "failed",
    RequestState.REFUSED: "certificate refused by the agent",
    RequestState.UNPROVEN: "certificate issued, no request with it has succeeded",
}


def check_client_certificate(  # noqa: PLR0913 - one argument for each fact of a reading
    found: Certificate | None,
    problem: str,
    request: CertificateRequest | None,
    *,
    node: str,
    renewal_at: datetime | None,
    dry_run: bool,
) -> Finding:
    """Return the finding on the client certificate that the agent requests and renews.

    Args:
        found: the certificate in use; ``None`` without one.
        problem: reason why the certificate is not usable; empty if it is, or without one.
        request: the request in progress; ``None`` without one.
        node: name of the Node object.
        renewal_at: time from which the certificate is renewed; ``None`` without one.
        dry_run: whether no request is sent.
    """
    progress, fix = _progress(request, node, dry_run=dry_run)
    if found is None or problem:
        return Finding.problem(CERTIFICATE_CHECK, f"{problem or 'no client certificate'}; {progress}", fix)
    until = f"valid until {format_time(found.not_after)}"
    if request is None:
        start = "" if renewal_at is None else f", renewed from {format_time(renewal_at)}"
        return Finding.ok(CERTIFICATE_CHECK, f"{until}{start}")
    return Finding.warning(CERTIFICATE_CHECK, f"{until}; renewal: {progress}", fix)


def _progress(request: CertificateRequest | None, node: str, *, dry_run: bool) -> tuple[str, str]:
    """Return the state of a request and its fix, for display."""
    if request is None:
        if dry_run:
            return "none is requested: dry_run = true", "set dry_run = false, or configure other credentials"
        if len(node) > MAX_NODE_NAME:
            return f"none is requested: node name longer than {MAX_NODE_NAME} characters", "set kubelet.node_name"
        return "none is requested", "systemctl start nodeagent; journalctl -u nodeagent"
    detail = f": {escape(request.detail)}" if request.detail else ""
    text = f"request {request.name} of {format_time(request.requested_at)} {_STATES[request.state]}{detail}"
    fix = _fix(request.detail)
    if TOKEN_REJECTED in request.detail:
        fix = "write a valid token to kubernetes.bootstrap_token_file: kubeadm token create"
    elif "HTTP 403" in request.detail:
        fix = "bind the ClusterRole system:node-bootstrapper to the group of the token"
    elif request.state is RequestState.PENDING and not request.detail:
        fix = f"kubectl describe csr {request.name}; kubectl certificate approve {request.name}"
    elif request.state in (RequestState.DENIED, RequestState.FAILED, RequestState.REFUSED):
        fix = f"correct the approver or signer; for a new request: kubectl delete csr {request.name}"
    return text, fix


def check_pod_access(pods: int, problem: str) -> Finding:
    """Return the finding on the initial list of the pod watch.

    Args:
        pods: number of listed pods.
        problem: cause of a failure, or reason why the list cannot prove pod deletions; empty without a problem.
    """
    if problem:
        return Finding.problem(PODS_CHECK, f"{problem}: no deletion of a pod is proven", _fix(problem))
    return Finding.ok(PODS_CHECK, f"the API server lists {pods} pods of this node, whose ids match")


def _fix(error: str) -> str:
    for words, fix in _FIXES:
        if words in error:
            return fix
    return "check kubernetes.server or kubeconfig, and IPAddressAllow= of the unit (drop-in api-server.conf)"
