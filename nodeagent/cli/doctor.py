"""``nodeagent doctor``: the checks of the node, each with a verdict, evidence and a fix."""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Final

from nodeagent.api.client import DaemonRefusedError, DaemonUnavailableError
from nodeagent.api.common import encode
from nodeagent.cli.control_client import connect
from nodeagent.cli.display import Line, standard_output, warn
from nodeagent.cli.exit_codes import ExitCode
from nodeagent.cli.reading import load_settings, run_async, run_with_agent
from nodeagent.cli.table import Heading, Table
from nodeagent.cluster.plan.client_certificate import renewal_at
from nodeagent.cluster.plan.rules import SETTINGS
from nodeagent.cluster.plan.workloads import IN_CLUSTER
from nodeagent.cluster.settings import CLIENT_CERTIFICATE_FILE
from nodeagent.config.files import UNTRUSTED
from nodeagent.daemon import control_documents as diagnostics
from nodeagent.daemon.documents import Status
from nodeagent.daemon.node_filesystems import NodeFilesystemReader, places, read_places
from nodeagent.doctor import host_facts
from nodeagent.doctor.plan import node
from nodeagent.doctor.plan.containerd import (
    check_containerd_config,
    find_disabled_cri,
    parse_release,
    patterns_in_directory,
)
from nodeagent.doctor.plan.kubelet import (
    check_kubelet,
    check_kubelet_config,
    check_pod_list,
    check_runtime_endpoint,
    value_text,
)
from nodeagent.doctor.plan.logind import check_logind_lines
from nodeagent.doctor.plan.triggers import AgentTasks, NodeSizes, TriggerRow, compare_triggers
from nodeagent.errors import ConfigError, InhibitorError, NodeAgentError
from nodeagent.eviction.kernel_signals import SignalPaths, read_signals
from nodeagent.eviction.signals import EvictionSignalReader, nodefs_path
from nodeagent.gc.hold_file import HoldFile
from nodeagent.gc.plan.policy import Scope
from nodeagent.host.commands import run
from nodeagent.host.containerd_config import find_containerd_files, read_containerd_config
from nodeagent.host.filesystems import filesystem_id
from nodeagent.host.kubelet_traces import read_kubelet_traces
from nodeagent.host.logind_config import own_drop_in, read_delay, read_unread_lines, write_drop_in
from nodeagent.host.node import node_name
from nodeagent.host.server_certificate import read_certificate, server_context
from nodeagent.host.sockets import group_number
from nodeagent.host.systemd import read_stop_timeout_us
from nodeagent.kube.certificate import expiry
from nodeagent.model.node import Certainty, ContainerdConfig, NodeSnapshot, Role
from nodeagent.model.outlook import Outlook
from nodeagent.model.pressure import MemorySource, Signal
from nodeagent.pods.role import read_role
from nodeagent.record import replace
from nodeagent.runtime.connection import CONTAINERD_SOCKET, K3S_SOCKET, KNOWN_SOCKETS, discover_endpoint
from nodeagent.settings.kubelet_config import ask_kubelet, read_kubelet_config
from nodeagent.shutdown.document_readings import delay_limit, lock_held, off_because, query_logind
from nodeagent.shutdown.plan.planner import STOP_HOOK_RESERVE_S, DelayLimit, required_delay_s, shutdown_budget
from nodeagent.store.history import History
from nodeagent.store.sqlite import fault_of
from nodeagent.text import display_width
from nodeagent.trend.shortage import NEAR_S, first_shortages
from nodeagent.trend.words import readings_words, short_name, shortage_words
from nodeagent.units import SystemClock, format_duration, localize_times

if TYPE_CHECKING:
    from nodeagent.api.outlook import OutlookDocument
    from nodeagent.gc.agent import Agent
    from nodeagent.host.dbus import LogindFacts
    from nodeagent.model.kubernetes import ApiAccess
    from nodeagent.model.node import RuntimeInfo
    from nodeagent.model.pressure import NodeFilesystem
    from nodeagent.model.runtime import Image
    from nodeagent.runtime.cri import ImageFsInfo, RuntimeStatus
    from nodeagent.settings.settings import Settings

    Fix = Callable[[Settings], None]


def cluster_findings(settings: Settings) -> Iterator[node.Finding]:
    """Yield the findings on TLS trust, credentials, RBAC rules and watched pods; nothing without an API server."""
    access = settings.kubernetes.access
    if access is None:
        return
    from nodeagent.doctor.api_access import read_api_access, read_pod_access  # noqa: PLC0415 - imports OpenSSL

    name = node_name(settings.kubelet.node_name)
    used = [each for each in SETTINGS if getattr(settings.kubernetes, each)]
    if not used:
        yield node.Finding.skipped(node.API_CHECK, f"no setting uses the API server: {', '.join(SETTINGS)}")
        return
    if access.bootstrap_token_file is not None:
        finding = _certificate_finding(settings, access, name)
        yield finding
        if finding.verdict is node.Grade.PROBLEM:
            yield node.Finding.skipped(node.API_CHECK, "no usable client certificate")
            return
    facts = run_async(read_api_access(access, name, used))
    yield node.check_api_access(
        facts.error,
        facts.missing,
        None if access.bootstrap_token_file else facts.expires_at,
        foreign=facts.foreign,
        has_node=facts.has_node,
        now=SystemClock().now(),
        options=used,
        in_pod=str(access.token_file) == IN_CLUSTER["token_file"],
    )
    if settings.kubernetes.watch_pods and not facts.error:
        yield node.check_pod_access(*run_async(read_pod_access(access, name)))


def _certificate_finding(settings: Settings, access: ApiAccess, name: str) -> node.Finding:
    """Return the finding on the client certificate that the daemon requests and renews."""
    from nodeagent.cluster.client_certificate import ClientFiles, jitter_of, read_usable  # noqa: PLC0415 - as above

    files = ClientFiles(access.certificate_file or Path(CLIENT_CERTIFICATE_FILE))
    try:
        pem, request = files.read_pem(), files.read_request()
    except OSError as error:
        return node.Finding.skipped(node.CERTIFICATE_CHECK, f"{error.filename}: {error.strerror}; run as root")
    found, problem = read_usable(pem, name, SystemClock())
    return node.check_client_certificate(
        found,
        problem,
        request,
        node=name,
        renewal_at=None if pem is None or found is None else renewal_at(found, jitter_of(pem)),
        dry_run=settings.dry_run,
    )


UNIT: Final = "nodeagent.service"


def memory_finding(settings: Settings, root: Path) -> node.Finding:
    """Return the finding on whether the memory thresholds match the memory of the node."""
    eviction = settings.eviction
    observations, unread = read_signals(
        SignalPaths(None), SystemClock(), source=eviction.memory_source, kernel_estimate=True, root=root
    )
    reading = next((each for each in observations if each.signal is Signal.MEMORY_AVAILABLE), None)
    if reading is None:
        return node.Finding.skipped(node.MEMORY_CHECK, "; ".join(unread))
    estimate = eviction.kernel_estimate or eviction.memory_source is MemorySource.MEM_AVAILABLE
    return node.check_memory_thresholds(eviction.thresholds, reading, kernel_estimate=estimate)


def cache_finding(settings: Settings) -> node.Finding:
    """Return the finding on whether page cache can be reclaimed before a pod is evicted for memory."""
    eviction = settings.eviction
    off = eviction.off_because(Role.STANDALONE) or ("" if eviction.reclaim_cache else "eviction.reclaim = false")
    return node.check_cache_reclaim(off, writable=None if off else host_facts.read_writable_cgroups(UNIT))


def metrics_finding(settings: Settings) -> node.Finding:
    """Return the finding on the listen address of the metrics and on the TLS certificate files."""
    listen, files = settings.metrics.endpoint
    listener = node.check_listener(
        "" if listen is None else listen.text,
        is_remote=listen is not None and listen.is_remote,
        has_tls=files is not None,
        has_client_ca=files is not None and bool(files.client_ca),
    )
    if listen is None or files is None:
        return listener
    try:
        server_context(files)
        expires_at = expiry(read_certificate(files))
    except ConfigError as error:
        return node.check_certificate(listener, str(error), None, SystemClock().now())
    return node.check_certificate(listener, "", expires_at, SystemClock().now())


_STATUS_WITHIN_S: Final = 20
_EMBEDDING: Final = frozenset({"k3s", "k3s-server", "k3s-agent"})
_OF_STATE: Final = frozenset({"state-directory", "stores", "holds", "history"})
_DENIED: Final = "permission denied"
_MAXIMUM_EXPOSURE: Final = 3.0
"""Maximum of ``systemd-analyze security``: the shipped unit has 1.8; a drop-in that removes sandboxing exceeds it."""


def run_checks(settings: Settings, root: Path, *, is_root: bool) -> Iterator[node.Finding]:
    """Yield the findings of every check; a check that fails yields a warning with the cause.

    Without ``is_root``, a fact that the user has no permission to read is reported as a warning, not as a problem.
    """
    directory = settings.state_directory
    state_denied = "" if is_root else access_problem(directory)
    checks: dict[str, Callable[[], Iterable[node.Finding]]] = {
        "runtime": lambda: runtime_findings(settings, root),
        "cgroups": lambda: [node.check_cgroups(host_facts.read_cgroup_controllers(root))],
        "pressure-stalls": lambda: [node.check_stalls(host_facts.read_psi_resources(root))],
        "memory-thresholds": lambda: [memory_finding(settings, root)],
        "cache-reclaim": lambda: [cache_finding(settings)],
        "logind-delay": lambda: shutdown_findings(settings, root),
        "role": lambda: role_findings(settings, root),
        "kubelet-overlap": lambda: kubelet_findings(settings, root),
        "filesystems": lambda: [filesystems_finding(settings)],
        "state-directory": lambda: [state_finding(settings)],
        "stores": lambda: [store_finding(settings)],
        "holds": lambda: [hold_finding(settings)],
        "history": lambda: [_history_finding(settings)],
        "journal": lambda: [_journal_finding(root)],
        "unit": lambda: unit_findings(settings),
        "metrics": lambda: [metrics_finding(settings)],
        "kubernetes": lambda: cluster_findings(settings),
        "agent": lambda: agent_findings(settings),
    }
    for name, check in checks.items():
        if state_denied and name in _OF_STATE:
            yield node.denied(name, state_denied)
            continue
        try:
            for finding in check():
                is_denied = not is_root and finding.fix and _DENIED in finding.evidence.lower()
                yield node.denied(finding.check, finding.evidence) if is_denied else finding
        except (NodeAgentError, OSError, ValueError) as error:
            yield node.Finding.warning(name, f"check failed: {error}", "run the check again")


def access_problem(directory: Path) -> str:
    """Return the error if this user has no access to a directory; empty with access or without a directory."""
    try:
        directory.stat()
    except PermissionError:
        return f"{_DENIED}: {directory}"
    except OSError:
        return ""
    usable = os.access(directory, os.R_OK | os.W_OK | os.X_OK, effective_ids=True)
    return "" if usable else f"{_DENIED}: {directory}"


def agent_findings(settings: Settings) -> Iterator[node.Finding]:
    """Yield the readiness of the running agent, and whether the group of the control socket exists."""
    control = settings.control
    if control.socket is None:
        yield node.Finding.skipped("agent", 'control API disabled: control.socket = ""')
        return
    try:
        status = connect(control.socket).call("Status", Status, within_s=_STATUS_WITHIN_S)
    except DaemonRefusedError as error:
        yield node.denied("agent", str(error))
    except DaemonUnavailableError as error:
        yield node.check_agent(str(error), (), None)
    else:
        agent = status.agent
        yield node.check_agent("", agent.problems, agent.pid if isinstance(agent.pid, int) else None)
        for statement in status.unrelieved:
            yield node.Finding.problem(
                "shortage", statement, "free the resource manually; see nodeagent du --details and top"
            )
        yield from outlook_findings(status.outlook)
    yield node.check_control_group(control.group, group_number(control.group) is not None)


def outlook_findings(outlooks: Sequence[OutlookDocument]) -> Iterator[node.Finding]:
    """Yield a warning for each resource that is expected to be short within 4 h; without one, what is known."""
    check, shortages = "outlook", first_shortages(outlooks)
    near = [each for each in shortages if each.is_near]
    for each in near:
        fix = f"limit, move or delete what grows, or free space: nodeagent trend {shlex.quote(each.outlook.resource)}"
        yield node.Finding.warning(check, shortage_words(each), fix)
    if near:
        return
    within = f"within {format_duration(NEAR_S)}"
    unknown = [each for each in shortages if each.forecast.outlook is Outlook.UNKNOWN]
    names = ", ".join(short_name(each.outlook) for each in unknown)
    if unknown:
        evidence = f"unknown whether {names} will be short {within}: {readings_words(unknown[0].forecast)}"
        yield node.Finding.skipped(check, evidence)
    elif not shortages:
        yield node.Finding.skipped(check, f"unknown whether a resource will be short {within}: no record")
    else:
        yield node.Finding.ok(check, f"no shortage expected {within}")


# ---- runtime


def runtime_findings(settings: Settings, root: Path = Path("/")) -> Iterator[node.Finding]:
    """Yield the findings on the runtime, its images and its filesystems."""
    try:
        yield from run_with_agent(settings, lambda agent: _query_runtime(agent, root))
    except NodeAgentError as error:
        config = _configuration_of(_socket(_endpoint(settings, root)), root) or ContainerdConfig()
        yield node.unusable_runtime(str(error), find_disabled_cri(config), (*config.faults, *config.unknown))


def _configuration_of(socket: str, root: Path) -> ContainerdConfig | None:
    """Return the configuration of the containerd with a socket; ``None`` if unknown.

    The unit and the default file are not those of a stopped runtime of a distribution, such as k3s.
    """
    files = find_containerd_files(socket, root)
    foreign = {os.path.realpath(root / each) for each in KNOWN_SOCKETS if each != CONTAINERD_SOCKET}
    return None if socket in foreign and not files.is_running else read_containerd_config(files)


async def _query_runtime(agent: Agent, root: Path) -> list[node.Finding]:
    info = await agent.cri.version()
    status = await agent.cri.status()
    snapshot = await agent.observer.observe(Scope.ALL)
    findings = [
        node.Finding(
            "runtime",
            node.Grade.OK if status.ready else node.Grade.PROBLEM,
            "; ".join([f"{info.name} {info.version}, CRI {info.api_version}", *status.problems]),
            "" if status.ready else "runtime not ready: see its log, such as journalctl -u containerd",
        )
    ]
    names = {name: image for image in snapshot.images for name in image.references}
    image = names.get(status.sandbox_image or "")
    # The snapshot has the containerd label of an image. The kubelet reads the CRI field Image.pinned instead, which
    # some versions of containerd do not derive from the label.
    pinned = {each.id for each in await agent.cri.list_images() if each.pinned}
    findings.append(
        node.check_sandbox_image(
            status.sandbox_image,
            listed=image is not None,
            pinned=image is not None and image.id in pinned,
            beside_kubelet=snapshot.role is Role.BESIDE_KUBELET,
        )
    )
    findings.append(check_pod_list(agent.bound_pods.state, is_watched=agent.settings.kubernetes.watch_pods))
    findings.append(_accounting_finding(agent, snapshot))
    reads_records = snapshot.storage is not None and agent.storage.removals is not None
    transactional = reads_records and agent.settings.bulk_removal
    findings.append(node.check_image_removal(transactional=transactional, configured=reads_records))
    findings.append(node.check_snapshotter(status.snapshotter))
    if info.name == "containerd":
        findings += await asyncio.to_thread(_containerd_findings, agent.cri.socket, root, info, status)
    findings.append(_filesystem_finding(snapshot))
    findings.append(await _held_finding(agent, snapshot))
    findings += [*_unplaced_findings(snapshot), _split_finding(agent, snapshot, await agent.cri.image_fs_info())]
    maximum_s = agent.settings.policy.images.maximum_unused_age_s
    gaps = agent.store.gaps(agent.read_clocks())
    since, now = snapshot.image_use_observed_since, snapshot.observed_at
    findings.append(node.check_image_use(since, now, maximum_s, gaps))
    findings.append(node.check_clock(_skew_s(snapshot), host_facts.read_clock_synchronised(), snapshot.clock))
    return findings


def _containerd_findings(socket: str, root: Path, info: RuntimeInfo, status: RuntimeStatus) -> list[node.Finding]:
    in_directory = patterns_in_directory(parse_release(info.version))
    config = read_containerd_config(find_containerd_files(socket, root), patterns_in_directory=in_directory)
    reported = {"sandbox_image": status.sandbox_image, "snapshotter": status.snapshotter}
    return list(check_containerd_config(config, info.version, **reported))


async def _held_finding(agent: Agent, snapshot: NodeSnapshot) -> node.Finding:
    try:
        found = await agent.observer.images.find_unlisted(snapshot.images)
    except NodeAgentError as error:
        return node.Finding.skipped("held-content", str(error))
    return node.check_held_content(found.held, snapshot.observed_at)


def _accounting_finding(agent: Agent, snapshot: NodeSnapshot) -> node.Finding:
    if not agent.storage.enabled:
        return node.Finding.skipped("containerd-api", "runtime.containerd_api is off; sizes are upper bounds")
    if snapshot.storage is not None:
        return node.Finding.ok("containerd-api", "shared layers are counted once")
    return node.Finding.warning(
        "containerd-api",
        "layers not available from the containerd API; sizes are upper bounds",
        "set runtime.endpoint to the socket of containerd, not to a proxy of CRI alone",
    )


def _filesystem_finding(snapshot: NodeSnapshot) -> node.Finding:
    filesystem = snapshot.image_filesystem
    if filesystem is None:
        return node.check_image_filesystem(None)
    unit = UNIT if host_facts.hides(UNIT, PurePath(filesystem.path)) else ""
    return node.check_image_filesystem(str(filesystem.path), filesystem.used_percent, hidden_by=unit)


def _split_finding(agent: Agent, snapshot: NodeSnapshot, info: ImageFsInfo) -> node.Finding:
    filesystem, logs = snapshot.image_filesystem, agent.settings.pod_log_root
    devices = {
        "imagefs": filesystem.device_id if filesystem is not None else None,
        "containerfs": filesystem_id(next(iter(info.container_mountpoints), "")),
        "nodefs": filesystem_id(str(logs if logs.exists() else logs.parent)),
    }
    return node.check_split(devices, len(snapshot.image_filesystems))


def _unplaced_findings(snapshot: NodeSnapshot) -> Iterator[node.Finding]:
    """Yield a warning for snapshotters in use without a known directory, on a node with several image filesystems."""
    storage, several = snapshot.storage, snapshot.image_filesystems
    known = {store for each in several for store in each.stores}
    unknown = sorted(storage.stores - known - {""}) if storage is not None and several else []
    if unknown:
        yield node.Finding.warning(
            "snapshotters",
            f"directory of {', '.join(unknown)} unknown: its snapshots count as freed on no image filesystem",
            'set exports.root of the snapshotter in the configuration of containerd ("proxy_plugins")',
        )


def _skew_s(snapshot: NodeSnapshot) -> float | None:
    created = [each.created_at for each in snapshot.containers if each.created_at is not None]
    return (max(created) - snapshot.observed_at).total_seconds() if created else None


# ---- shutdown, role and kubelet


def _read_logind() -> tuple[LogindFacts | None, str]:
    return run_async(query_logind())


def shutdown_findings(
    settings: Settings, root: Path, query: Callable[[], tuple[LogindFacts | None, str]] = _read_logind
) -> Iterator[node.Finding]:
    """Yield the findings on logind's delay limit and files and on the lock; ``query`` reads the running logind."""
    role, off = read_role(settings.role), off_because(settings)
    configured_off = settings.shutdown.off_because(role.role, role.reason)
    delay = read_delay(root)
    facts, problem = (None, "") if configured_off else query()
    budget = shutdown_budget(settings.shutdown.phases, delay_limit(facts, delay))
    yield node.check_delay(budget, off=configured_off)
    yield node.check_lock(*lock_held(facts, problem), off=off)
    for warning in delay.warnings:
        yield node.Finding.warning("logind-delay", warning)
    if not configured_off:
        yield from check_logind_lines(delay.lines, read_unread_lines(root), too_short=budget.scaled)


def role_findings(settings: Settings, root: Path) -> Iterator[node.Finding]:
    """Yield the role of this node, and every section set to "on" that is refused beside a kubelet."""
    role = read_role(settings.role, root)
    yield node.check_role(role)
    refused = {
        "eviction": (settings.eviction.refused(role.role), settings.eviction.off_because(role.role, role.reason)),
        "shutdown": (settings.shutdown.refused(role.role), settings.shutdown.off_because(role.role, role.reason)),
    }
    yield from (
        node.check_refused(section, because) for section, (is_refused, because) in refused.items() if is_refused
    )


def kubelet_findings(settings: Settings, root: Path) -> list[node.Finding]:
    """Return the findings on the kubelet's configuration, and on tasks also performed by a kubelet of this node."""
    role = read_role(settings.role, root).role
    has_kubelet = role is Role.BESIDE_KUBELET
    processes = read_kubelet_traces(SystemClock(), root).processes
    pids = [each.pid for each in processes]
    config = ask_kubelet(read_kubelet_config(root, pids), settings.kubelet.access)
    own = f"unix://{root}/{K3S_SOCKET}" if any(each.name in _EMBEDDING for each in processes) else ""
    known = config.certainty("containerRuntimeEndpoint") is Certainty.IN_FORCE
    endpoint = (config.fields.get("containerRuntimeEndpoint") if known else "") or own
    found = config if pids or config.distribution or config.sources else None
    rows: tuple[TriggerRow, ...] = ()
    if found is not None:
        rows = compare_triggers(found, agent_tasks(settings, role), _node_sizes(settings, found.flags.get("root-dir")))
    return [
        check_runtime_endpoint(_socket(str(endpoint)), _socket(_endpoint(settings, root))),
        check_kubelet_config(found, has_kubelet=has_kubelet),
        *check_kubelet(found, rows, has_kubelet=has_kubelet),
    ]


def agent_tasks(settings: Settings, role: Role) -> AgentTasks:
    """Return the tasks that the agent performs in this role, which a kubelet can perform too."""
    policy, alone = settings.policy, role is Role.STANDALONE
    collects, watches = settings.container_interval_s is not None, settings.kubernetes.watch_pods
    grace_s = policy.containers.deleted_pod_grace_s if alone else 0.0
    return AgentTasks(
        images=None if settings.image_interval_s is None else policy.images,
        containers=policy.containers if collects else None,
        deleted_after_s=grace_s if collects and (alone or watches) else None,
        logs_after_s=policy.logs.minimum_age_s if collects and (alone or watches) else None,
        thresholds=() if settings.eviction.off_because(role) else settings.eviction.thresholds,
        stops=not settings.shutdown.off_because(role),
    )


def _node_sizes(settings: Settings, kubelet_root: str | None) -> NodeSizes:
    """Return layout and sizes of this node, incomplete without a runtime or while a filesystem hangs."""
    reader = EvictionSignalReader(settings.eviction, SystemClock(), pod_log_root=settings.pod_log_root)

    async def read(agent: Agent | None = None) -> NodeSizes:
        found = await reader.nodefs_layout()
        if agent is not None:
            found, _ = await reader.read_layout_or_nodefs(agent.cri, settings.imagefs_path)
        if kubelet_root:
            found = reader.resolve_layout(replace(found.paths, nodefs=kubelet_root))
        readings = await reader.read(found)
        totals = {each.signal: each.capacity for each in readings.observations}
        known = Signal.IMAGEFS_AVAILABLE in totals and Signal.NODEFS_AVAILABLE in totals
        return NodeSizes(found.layout if known else None, totals)

    try:
        return run_with_agent(settings, read)
    except NodeAgentError:  # no runtime
        return run_async(read())


def _endpoint(settings: Settings, root: Path) -> str:
    """Return the configured or detected runtime endpoint of the agent; empty if no runtime is found."""
    try:
        return discover_endpoint(settings.endpoint or None, root)
    except NodeAgentError:
        return ""


def _socket(endpoint: str) -> str:
    """Return the resolved path of a runtime endpoint; empty if the endpoint is not a Unix socket."""
    path = endpoint.removeprefix("unix://").removeprefix("unix:")
    return os.path.realpath(path) if path.startswith("/") else ""


# ---- state, journal and unit


def filesystems_finding(settings: Settings) -> node.Finding:
    """Return the finding on the filesystems that the runtime, the pods and the agent need."""
    reader = EvictionSignalReader(settings.eviction, SystemClock(), pod_log_root=settings.pod_log_root)

    async def read(agent: Agent) -> tuple[NodeFilesystem, ...]:
        find = agent.observer.images.find_filesystems
        layout, _ = await reader.read_layout_or_nodefs(agent.cri, settings.imagefs_path, find)
        return await NodeFilesystemReader(agent).read(layout.paths)

    try:
        found = run_with_agent(settings, read)
    except NodeAgentError:  # no runtime
        paths = SignalPaths(nodefs_path(settings.pod_log_root))
        found = read_places(places(settings, paths), SystemClock())
    return node.check_filesystems(found)


def state_finding(settings: Settings) -> node.Finding:
    """Return the finding on the state directory."""
    probe = host_facts.probe_directory(settings.state_directory)
    return node.check_state(str(settings.state_directory), probe.problem, probe.available_bytes, probe.mode)


def store_finding(settings: Settings) -> node.Finding:
    """Return the finding on the databases in the state directory; the check does not write to the databases."""
    files = sorted(settings.state_directory.glob("*.db")) if settings.state_directory.is_dir() else []
    faults = {path: fault_of(path) for path in files}
    broken = {str(path): fault for path, fault in faults.items() if fault}
    return node.check_stores(broken, [path.name for path in files if not faults[path]])


def hold_finding(settings: Settings) -> node.Finding:
    """Return the finding on the file with the image holds."""
    try:
        count = len(HoldFile(settings.state_directory).read())
    except NodeAgentError as error:
        return node.Finding.problem(
            "holds", f"{error}; no image is removed meanwhile", "repair or remove the hold file"
        )
    return node.Finding.ok("holds", f"{count} hold(s)")


def _history_finding(settings: Settings) -> node.Finding:
    try:
        History(settings.state_directory).check()
    except NodeAgentError as error:
        return node.Finding.warning("history", str(error), "none needed: the next pass replaces the file")
    return node.Finding.ok("history", "readable")


def _journal_finding(root: Path) -> node.Finding:
    if host_facts.has_journald(root):
        return node.Finding.ok("journal", "journald is listening")
    return node.Finding.skipped("journal", "journald not found: the log is written to standard error")


def unit_findings(settings: Settings) -> Iterator[node.Finding]:
    """Yield the finding on the sandboxing of the unit, and a warning of a stop timeout below the shutdown phases."""
    exposure = host_facts.read_unit_exposure(UNIT)
    if exposure is None:
        yield node.Finding.skipped("unit", f"{UNIT} not installed, or systemd not running")
        return
    hardened = exposure <= _MAXIMUM_EXPOSURE
    yield node.Finding(
        "unit",
        node.Grade.OK if hardened else node.Grade.WARNING,
        f"exposure {exposure:g} of 10",
        "" if hardened else "use the unit as installed; a drop-in removes its sandboxing",
    )
    role, phases = read_role(settings.role), settings.shutdown.phases
    if not settings.shutdown.off_because(role.role, role.reason):
        budget = shutdown_budget(phases, DelayLimit.of_unit_stop(read_stop_timeout_us(UNIT)))
        yield from node.check_stop_timeout(budget, round(required_delay_s(phases) + STOP_HOOK_RESERVE_S))


_ROOT: Final = Path("/")
_RELOAD_WITHIN_S: Final = 20
_FORM_FIX: Final = "see the allowed forms: nodeagent config reference"
_TRUST_FIX: Final = "change the owner to root and remove the write access of others"
_STYLES: Final = {
    node.Grade.OK: "green",
    node.Grade.WARNING: "yellow",
    node.Grade.PROBLEM: "bold red",
    node.Grade.SKIPPED: "dim",
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
            node.Finding.problem("configuration", each, _TRUST_FIX if UNTRUSTED in each else _FORM_FIX)
            for each in str(error).splitlines()
        ]
    else:
        for fix in fixes:
            fix(settings)
        checked = run_checks(settings, _ROOT, is_root=os.geteuid() == 0)
        findings = [node.Finding.ok("configuration", "valid"), *checked]
    triggers = [row for each in findings for row in each.triggers]
    if form in ("table", "wide"):
        _print(findings, triggers, wide=form == "wide")
    else:
        document = diagnostics.Doctor(
            findings=tuple(map(diagnostics.FindingDocument.from_value, findings)),
            triggers=tuple(map(diagnostics.TriggerDocument.from_value, triggers)),
        )
        sys.stdout.write(encode(document, form))
    failing = {node.Grade.PROBLEM, node.Grade.WARNING} if strict else {node.Grade.PROBLEM}
    sys.exit(ExitCode.FAILED if any(each.verdict in failing for each in findings) else ExitCode.DONE)


_ORDER: Final = (node.Grade.PROBLEM, node.Grade.WARNING, node.Grade.OK, node.Grade.SKIPPED)
_FOLDED: Final = frozenset({node.Grade.OK, node.Grade.SKIPPED})


def _print(findings: Sequence[node.Finding], triggers: Sequence[TriggerRow], *, wide: bool) -> None:
    """Print problems, warnings and the other findings, which a terminal shows by name only unless ``wide``."""
    display = standard_output()
    folded = frozenset[node.Grade]() if wide or display.columns is None else _FOLDED
    listed = [each for grade in _ORDER for each in findings if each.verdict is grade and grade not in folded]
    width = max((display_width(each.check) for each in listed), default=0)
    words = max(len(each.verdict.value) for each in findings)
    lines = []
    for each in listed:
        label = f"{each.verdict.value:<{words}}  {each.check}{' ' * (width - display_width(each.check))}  "
        lines.append(Line(f"{label}{localize_times(each.evidence)}", _STYLES[each.verdict], hang=len(label)))
        if each.fix:
            lines.append(Line(f"  fix: {localize_times(each.fix)}", hang=len("  fix: ")))
    for grade in _ORDER:
        checks = [each.check for each in findings if each.verdict is grade and grade in folded]
        if checks:
            label = f"{grade.value:<{words}}  "
            lines.append(Line(f"{label}{', '.join(dict.fromkeys(checks))}", _STYLES[grade], hang=len(label)))
    lines.append(Line(f"{summary(findings)}{'; -o wide lists all' if folded else ''}"))
    display.write([*lines, *(trigger_lines(triggers) if wide else ())])


def trigger_lines(triggers: Sequence[TriggerRow]) -> list[Line]:
    """Return the table of the triggers of kubelet and agent; nothing without triggers."""
    if not triggers:
        return []
    table = Table("TASK", "KUBELET", Heading("AT", right=True), "AGENT", Heading("AT", right=True), "FIRST")
    for each in triggers:
        sides = ((each.kubelet, each.kubelet_value), (each.agent, each.agent_value))
        cells = [cell for text, value in sides for cell in (text, value_text(each.measure, value) if text else "")]
        table.add(each.task, *cells, each.first)
    return [Line(), *table.lines(None)]


def summary(findings: Sequence[node.Finding]) -> str:
    """Return the numbers of checks, problems and warnings as a sentence."""
    problems = sum(each.verdict is node.Grade.PROBLEM for each in findings)
    warnings = sum(each.verdict is node.Grade.WARNING for each in findings)
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
    run_with_agent(settings, _pin_sandbox_image)


async def _pin_sandbox_image(agent: Agent) -> None:
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
