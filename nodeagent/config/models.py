"""Every setting with its form, default, unit and effect."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)

from nodeagent.config.metrics import DEFAULT_LISTEN, LISTEN_FORM, parse_listen
from nodeagent.errors import ConfigError
from nodeagent.model.kubelet_access import KubeletAccess
from nodeagent.plan.eviction.grammar import parse_thresholds
from nodeagent.plan.eviction.thresholds import DEFAULT_HARD, Threshold
from nodeagent.plan.gc.image_protection import RULE_FORM, parse_rule
from nodeagent.plan.shutdown.phases import Phase, Selector, by_priority, check_phases, two_bands
from nodeagent.units import DURATION_FORM, QUANTITY_FORM, parse_bytes, parse_duration_s

_LONGEST_TEXT = 64
_LONGEST_S = 100 * 365 * 86_400.0
_LARGEST_BYTES = 2**63 - 1
_DEFAULT_HARD: Final = ",".join(f"{signal}<{amount}" for signal, amount in DEFAULT_HARD.items())
THRESHOLDS_FORM: Final = 'list of SIGNAL<AMOUNT, such as "memory.available<100Mi,nodefs.available<10%"'


def _duration(value: object) -> object:
    if value == 0 and not isinstance(value, bool):
        return "0s"
    if not isinstance(value, str):
        raise ValueError(f"a duration needs its unit: write {DURATION_FORM}")  # noqa: TRY004 - pydantic's contract
    if len(value) > _LONGEST_TEXT or parse_duration_s(value) > _LONGEST_S:
        raise ValueError("longer than 100 years")
    return value.strip()


def _period(value: object) -> object:
    text = _duration(value)
    if parse_duration_s(str(text)) < 1:
        raise ValueError("must be at least 1s")
    return text


def _size(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(f"not a size: write {QUANTITY_FORM}")  # noqa: TRY004 - pydantic's contract
    text = str(value)
    if len(text) > _LONGEST_TEXT or parse_bytes(text) > _LARGEST_BYTES:
        raise ValueError("larger than 8Ei")
    return text.strip()


def _rule(value: str) -> str:
    parse_rule(value)
    return value


def _absolute(value: str) -> str:
    if not value.startswith("/") or "\0" in value:
        raise ValueError("must be an absolute path, such as /var/log/pods")
    return value


def _absolute_or_empty(value: str) -> str:
    return _absolute(value) if value else value


def _endpoint(value: str) -> str:
    if value and not value.removeprefix("unix://").startswith("/"):
        raise ValueError("must be a unix socket, such as unix:///run/containerd/containerd.sock, or empty to find one")
    return value


Duration = Annotated[str, BeforeValidator(_duration), Field(json_schema_extra={"form": "duration"})]
Period = Annotated[str, BeforeValidator(_period), Field(json_schema_extra={"form": "duration, at least 1s"})]
Size = Annotated[str, BeforeValidator(_size), Field(json_schema_extra={"form": "size"})]
Percent = Annotated[int, Field(ge=0, le=100, strict=True, json_schema_extra={"form": "percent, 0 to 100"})]
Count = Annotated[int, Field(ge=0, strict=True, json_schema_extra={"form": "count"})]
Limit = Annotated[int, Field(ge=-1, strict=True, json_schema_extra={"form": "count, -1 for no limit"})]
Seconds = Annotated[float, Field(ge=0, le=7 * 86_400, strict=True, allow_inf_nan=False)]
Switch = Annotated[bool, Field(strict=True, json_schema_extra={"form": "true or false"})]
Rule = Annotated[str, AfterValidator(_rule)]
OptionalPath = Annotated[
    str, AfterValidator(_absolute_or_empty), Field(json_schema_extra={"form": "absolute path, or empty"})
]
Directory = Annotated[str, AfterValidator(_absolute), Field(json_schema_extra={"form": "absolute path"})]


def _socket_path(value: str) -> str:
    if len(value.encode()) > 107:
        raise ValueError("is longer than a socket path may be, 107 bytes")
    return value


class Section(BaseModel):
    """A table of the file: closed, frozen, defaults checked too."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


class RuntimeSection(Section):
    """Where the container runtime is."""

    endpoint: Annotated[str, AfterValidator(_endpoint), Field(json_schema_extra={"form": "unix:///PATH"})] = Field(
        "", description="Socket of the runtime. Empty: the first of containerd's, k3s' and CRI-O's that exists."
    )
    containerd_api: Literal["auto", "off"] = Field(
        "auto",
        description="Ask containerd's own services what images really occupy, so that shared layers are counted once. "
        "Off, or with another runtime: sizes are upper bounds.",
    )
    timeout: Period = Field("10s", description="How long a reading call to the runtime may take.")
    removal_timeout: Period = Field(
        "2m", description="How long a call that stops or removes something may take; it then counts as failed."
    )
    imagefs_path: Annotated[
        str, AfterValidator(_absolute_or_empty), Field(json_schema_extra={"form": "absolute path"})
    ] = Field("", description="Path on the image filesystem. Empty: the mount point that the runtime names.")

    @property
    def timeout_s(self) -> float:
        """The deadline of reading calls, in seconds."""
        return parse_duration_s(self.timeout)

    @property
    def removal_timeout_s(self) -> float:
        """The deadline of removing calls, in seconds."""
        return parse_duration_s(self.removal_timeout)


class ImageGCSection(Section):
    """When unused images are removed."""

    enabled: Switch = Field(True, description="Whether the daemon collects images.")
    interval: Period = Field("5m", description="Time between two passes of the daemon, jittered by a tenth.")
    high_threshold_percent: Percent = Field(
        85, description="Removal starts when the image filesystem is at least this full. 100 turns it off."
    )
    low_threshold_percent: Percent = Field(
        80, description="Removal stops when the image filesystem is down to this. Must be below the high threshold."
    )
    minimum_age: Duration = Field("2m", description="An image first seen (or pulled) more recently than this is kept.")
    maximum_unused_age: Duration = Field(
        "0s",
        description="An image unused for longer than this is removed whatever the usage, once the agent has observed "
        "image use without a gap for longer than this. 0 disables it.",
    )
    minimum_gain: Size = Field("0", description="An image that would free less than this is passed over. 0: none is.")
    removal: Literal["auto", "cri"] = Field(
        "auto",
        description="How images are removed. auto: where containerd's own services answer, by deleting their names "
        "and collecting once at the end, which is many times faster; cri: one RemoveImage call for each.",
    )
    max_images_per_pass: Count = Field(0, description="At most so many images are removed in one pass. 0: no limit.")
    max_bytes_per_pass: Size = Field("0", description="At most about so much is freed in one pass. 0: no limit.")

    @property
    def interval_s(self) -> float:
        """Time between two passes, in seconds."""
        return parse_duration_s(self.interval)

    @field_validator("low_threshold_percent")
    @classmethod
    def _below_high(cls, low: int, info: ValidationInfo) -> int:
        high = info.data.get("high_threshold_percent")
        if high is not None and low >= high:
            raise ValueError(f"must be below high_threshold_percent = {high}")
        return low

    @field_validator("maximum_unused_age")
    @classmethod
    def _beyond_minimum(cls, unused: str, info: ValidationInfo) -> str:
        minimum = info.data.get("minimum_age")
        if minimum is not None and 0 < parse_duration_s(unused) <= parse_duration_s(minimum):
            raise ValueError(f"must be longer than minimum_age = {minimum}, or 0")
        return unused


class ContainerGCSection(Section):
    """When dead containers, empty sandboxes and old logs are removed."""

    enabled: Switch = Field(True, description="Whether the daemon collects containers, sandboxes and logs.")
    interval: Period = Field("1m", description="Time between two passes of the daemon, jittered by a tenth.")
    minimum_age: Duration = Field("0s", description="A container created more recently than this is kept.")
    max_per_pod_container: Limit = Field(1, description="Dead instances kept of each container of a pod, newest first.")
    max_containers: Limit = Field(
        -1,
        description="Dead containers kept on the node in all: shared out evenly, at least one each, newest first.",
    )
    deleted_pod_grace: Duration = Field(
        "5m",
        description="How long nothing of a pod may have stirred before it counts as gone. The boot counts, too, so "
        "that a reboot makes no pod look gone.",
    )
    include_unlabelled: Switch = Field(
        False, description="Also collect containers and sandboxes without kubelet labels, such as those made by hand."
    )
    sandbox_minimum_age: Duration = Field("1m", description="A sandbox created more recently than this is kept.")
    log_minimum_age: Duration = Field("5m", description="Logs changed more recently than this are kept.")
    pod_log_root: Directory = Field("/var/log/pods", description="Where pod log directories are.")
    container_log_root: Directory = Field("/var/log/containers", description="Where the links to container logs are.")

    @property
    def interval_s(self) -> float:
        """Time between two passes, in seconds."""
        return parse_duration_s(self.interval)

    @property
    def deleted_pod_grace_s(self) -> float:
        """The grace before a pod counts as gone, in seconds."""
        return parse_duration_s(self.deleted_pod_grace)


class EvictionSection(Section):
    """When pods are evicted, and which."""

    enabled: Literal["auto", "on", "off"] = Field(
        "auto",
        description="Whether the daemon evicts pods. auto: on a node without a kubelet. Beside a kubelet it is "
        "disabled even if on, since the kubelet evicts pods itself and restarts those evicted by others.",
    )
    hard: str = Field(
        _DEFAULT_HARD,
        json_schema_extra={"form": THRESHOLDS_FORM},
        description="Thresholds that are acted on at once. Besides the kubelet's signals there are memory.psi.some, "
        "memory.psi.full, io.psi.some, io.psi.full (percent of time stalled) and swap.free.",
    )
    soft: str = Field(
        "",
        json_schema_extra={"form": THRESHOLDS_FORM},
        description="Thresholds that are acted on once they have been met for their grace period.",
    )
    soft_grace_period: str = Field(
        "",
        json_schema_extra={"form": 'list of SIGNAL=DURATION, such as "memory.available=1m30s"'},
        description="For how long each soft threshold has to be met.",
    )
    minimum_reclaim: str = Field(
        "",
        json_schema_extra={"form": 'list of SIGNAL=AMOUNT, such as "imagefs.available=2Gi"'},
        description="How far past its threshold a signal has to come back once it was acted on.",
    )
    pressure_transition_period: Duration = Field(
        "5m", description="How long a node condition such as MemoryPressure lingers after it was last observed."
    )
    max_pod_grace_period: Duration = Field(
        "0s", description="The most that a pod's own termination grace counts at a soft eviction. 0: no limit."
    )
    hard_grace_period: Duration = Field(
        "0s", description="What a victim is given at a hard threshold. 0: it is killed at once, as by the kubelet."
    )
    protected_namespaces: tuple[str, ...] = Field(
        ("kube-system",),
        json_schema_extra={"form": "list of namespaces"},
        description="No pod in these is ever evicted.",
    )
    local_storage_isolation: Switch = Field(
        True,
        description="Whether pods above their own storage limits are evicted without any pressure on the node. The "
        "limits are known from the kubelet or from manifests only.",
    )
    evict_unmeasured: Switch = Field(
        False, description="Whether a pod whose usage cannot be read may be evicted. The kubelet evicts it first."
    )
    max_evictions_per_window: Count = Field(
        10, description="After so many evictions within the window no further pod is evicted. 0: no limit."
    )
    eviction_window: Period = Field("10m", description="What that limit counts over.")
    interval: Period = Field(
        "10s",
        description="Time between two looks at a node at ease. The nearer a threshold, the more often it looks, down "
        "to five times a second.",
    )
    memory_signal_source: Literal["working-set", "mem-available"] = Field(
        "working-set",
        description="What memory.available stands for. working-set: the kubelet's formula, which counts active page "
        "cache as used; mem-available: the kernel's own estimate.",
    )
    memory_stall: Duration = Field(
        "100ms", description="The loop is woken when tasks stall for memory this long within a window. 0: it is not."
    )
    io_stall: Duration = Field("0s", description="Likewise for I/O.")
    stall_window: Duration = Field("1s", description="That window, from 500ms to 10s.")
    verify_timeout: Period = Field(
        "10s", description="How long a victim's processes may take to be gone once the runtime says that it stopped."
    )

    @field_validator("stall_window")
    @classmethod
    def _window(cls, text: str) -> str:
        if not 0.5 <= parse_duration_s(text) <= 10:
            raise ValueError("must be from 500ms to 10s, as the kernel has it")
        return text

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        eviction_thresholds(self)
        for key in ("memory_stall", "io_stall"):
            if parse_duration_s(getattr(self, key)) > parse_duration_s(self.stall_window):
                raise ValueError(f"{key} = {getattr(self, key)!r}: must not be longer than stall_window")
        return self


def eviction_thresholds(section: EvictionSection) -> tuple[Threshold, ...]:
    """Return the thresholds that a section stands for.

    Raises:
        ValueError: they make no sense; the text quotes what is wrong and tells what is allowed.
    """
    return parse_thresholds(
        hard=section.hard,
        soft=section.soft,
        soft_grace_period=section.soft_grace_period,
        minimum_reclaim=section.minimum_reclaim,
    )


class KubeletSection(Section):
    """Where more is known of pods than the runtime tells: their priorities, requests, limits and grace periods."""

    url: str = Field(
        "",
        json_schema_extra={"form": "https://HOST:10250 or http://HOST:10255"},
        description="Address of the kubelet's own interface, whose /pods is read. Empty: it is not asked.",
    )
    token_file: OptionalPath = Field("", description="File with a bearer token for it.")
    certificate_file: OptionalPath = Field("", description="Client certificate for it, PEM, maybe with its key.")
    key_file: OptionalPath = Field("", description="That certificate's key, where it is in a file of its own.")
    ca_file: OptionalPath = Field(
        "", description="Who signed the kubelet's certificate. Empty: the system's authorities."
    )
    server_name: str = Field(
        "",
        json_schema_extra={"form": "host name"},
        description="Name in the kubelet's certificate, where it is not the host of the URL.",
    )
    insecure: Switch = Field(False, description="Take any certificate of the kubelet.")
    manifests: OptionalPath = Field(
        "/etc/kubernetes/manifests", description="Directory of static pods' manifests. Empty: none is read."
    )
    node_name: str = Field(
        "",
        json_schema_extra={"form": "name"},
        description="Name of the node, which static pods' names end with. Empty: the host's name.",
    )

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        try:
            kubelet_access(self)
        except ConfigError as error:
            raise ValueError(str(error)) from error
        return self


def kubelet_access(section: KubeletSection) -> KubeletAccess | None:
    """Return how the kubelet is asked; ``None`` for not at all.

    Raises:
        ConfigError: it cannot be asked that way.
    """
    if not section.url:
        return None

    files = (section.token_file, section.certificate_file, section.key_file, section.ca_file)
    token, certificate, key, authority = (Path(each) if each else None for each in files)
    return KubeletAccess(
        section.url, token, certificate, key, authority, server_name=section.server_name, insecure=section.insecure
    )


class PriorityBand(Section):
    """Pods from a priority up to the next band's, and their time."""

    min_priority: Annotated[int, Field(strict=True)]
    seconds: Seconds


class PodSelector(Section):
    """Pods of any of the namespaces that carry all of the labels."""

    namespaces: tuple[str, ...] = ()
    labels: dict[str, str] = Field(default_factory=dict)


class ShutdownPhase(Section):
    """One step of a shutdown."""

    name: str
    seconds: Seconds
    min_priority: Annotated[int, Field(strict=True)] | None = None
    select: tuple[PodSelector, ...] = ()


class ShutdownSection(Section):
    """How pods are stopped when the node goes down."""

    enabled: Literal["auto", "on", "off"] = Field(
        "auto",
        description="Whether the daemon delays a shutdown and stops pods in order. auto: on a node without a kubelet. "
        "Beside a kubelet it is disabled even if on, since the kubelet restarts stopped containers; use its "
        "shutdownGracePeriod.",
    )
    grace_period: Duration = Field(
        "30s",
        description="Time for all pods. logind waits 5s unless told otherwise; then the phases are scaled. 0: off.",
    )
    grace_period_critical: Duration = Field(
        "10s",
        description="The part of it that is kept for critical pods (priority 2000000000 and more), which go last.",
    )
    by_priority: Annotated[
        tuple[PriorityBand, ...],
        Field(json_schema_extra={"form": "list of {min_priority = NUMBER, seconds = NUMBER}, ascending"}),
    ] = Field(
        (),
        description="Phases by priority instead of the two periods above: a pod belongs to the last one whose "
        "min_priority is not above its own, one below all of them to the first.",
    )
    phases: Annotated[
        tuple[ShutdownPhase, ...],
        Field(
            json_schema_extra={
                "form": "list of {name = TEXT, seconds = NUMBER, min_priority = NUMBER, "
                "select = [{namespaces = [TEXT], labels = {KEY = TEXT}}]}, in order"
            }
        ),
    ] = Field(
        (),
        description="Phases with names instead of all of the above. One with select also takes what it selects from "
        "phases before it (network and storage last); min_priority may be left out there.",
    )

    restart_logind: Switch = Field(
        True,
        description="Restart a logind that runs but has lost the system bus, as after a restart of dbus. Until "
        "somebody does, no shutdown is announced to anybody.",
    )

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        shutdown_phases(self)
        return self


def shutdown_phases(section: ShutdownSection) -> tuple[Phase, ...]:
    """Return the phases that a section stands for.

    Raises:
        ValueError: they make no sense; the text names the key and what is allowed.
    """
    if section.phases and section.by_priority:
        raise ValueError("by_priority and phases are both given: write one of them")
    key, form = "phases", "write names once each, min_priority ascending, seconds from 0 up"
    try:
        if section.phases:
            made = tuple(
                Phase(each.name, each.seconds, each.min_priority, tuple(map(_selector, each.select)))
                for each in section.phases
            )
            check_phases(made)
            return made
        if section.by_priority:
            key, form = "by_priority", "write {min_priority, seconds} with min_priority ascending, seconds from 0 up"
            return by_priority([(each.min_priority, each.seconds) for each in section.by_priority])
    except ValueError as error:
        raise ValueError(f"{key}: {error}; {form}") from error
    return two_bands(parse_duration_s(section.grace_period), parse_duration_s(section.grace_period_critical))


def _selector(selector: PodSelector) -> Selector:
    return Selector(selector.namespaces, dict(selector.labels))


class ProtectSection(Section):
    """What is never removed."""

    images: Annotated[tuple[Rule, ...], Field(json_schema_extra={"form": f"list; each {RULE_FORM}"})] = Field(
        (), description="Images that are never removed. The matching rule is shown in the reason."
    )
    keep_last_n_tags_per_repository: Count = Field(
        0, description="The newest so many images of each repository are kept. 0 turns it off."
    )


class StateSection(Section):
    """The agent's own state."""

    directory: Directory = Field(
        "/var/lib/nodeagent", description="Where the memory of image use is kept, and the lock of a running pass."
    )


class HistorySection(Section):
    """How long what was done is remembered."""

    maximum_age: Period = Field(
        "30d", description="Passes older than this are dropped; those that found nothing, after a day."
    )
    maximum_size: Size = Field(
        "16Mi", description="The oldest passes are dropped once the history is larger than this."
    )


class ControlSection(Section):
    """The socket on which the running agent is asked and told things."""

    socket: Annotated[OptionalPath, AfterValidator(_socket_path)] = Field(
        "/run/nodeagent/control.sock",
        description="Where it listens; its directory has to be there. Empty for not at all. At most 107 bytes long.",
    )
    group: str = Field(
        "nodeagent",
        description="Group whose members may ask: status, plans, history, events. Root may do all. The socket's "
        "directory has to belong to that group, with the set-group-ID bit.",
    )
    group_may_act: Switch = Field(
        False,
        description="Whether its members may also have the agent delete, within this configuration: apply, trigger; "
        "and hold, pause and reload. Only root removes the holds, ends the pauses of others or runs disabled "
        "collection.",
    )


class LogSection(Section):
    """The agent's own log, on standard error."""

    format: Literal["auto", "journal", "console", "json"] = Field(
        "auto",
        description="Form of the log. journal: entries with fields, see systemd.journal-fields; auto: console on a "
        "terminal, the journal where standard error goes there, JSON elsewhere.",
    )
    level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Least severe level that is logged. debug also tells every kept item."
    )


def _listen(value: str) -> str:
    parse_listen(value)
    return value


class MetricsSection(Section):
    """Where metrics and health are served."""

    listen: Annotated[str, AfterValidator(_listen), Field(json_schema_extra={"form": LISTEN_FORM})] = Field(
        DEFAULT_LISTEN.text,
        description="Where /metrics, /healthz and /readyz are served, without encryption and to whoever can connect: "
        "an address that other machines reach tells them, among others, the names of thresholds and namespaces, and "
        "the unit has to allow it (IPAddressAllow). A socket is for its owner and group, below "
        "/run/nodeagent the group nodeagent.",
    )


class Config(Section):
    """The whole configuration."""

    role: Literal["auto", "beside-kubelet", "standalone"] = Field(
        "auto",
        description="Whether a kubelet manages this node. beside-kubelet: pods count as deleted only by a pod list, "
        "and none is evicted or stopped at shutdown. standalone: the runtime is the only source; overrides files of a "
        "removed kubelet, but not a kubelet process or a listener on port 10248 or 10250. auto: by processes, these "
        "ports, state and configuration files, evaluated in every pass; beside-kubelet in doubt, standalone 5m after "
        "the last trace.",
    )
    dry_run: Switch = Field(False, description="Decide and log, but remove nothing.")
    reload_grace: Duration = Field(
        "60s",
        description="Time between a switch of dry_run from true to false, by a reload or a restart, and the first pass "
        "that removes or evicts; hard eviction thresholds wait, too. nodeagent pause stops it, and it starts again at "
        "the end of the pause. 0 disables.",
    )
    runtime: RuntimeSection = Field(default_factory=RuntimeSection, description="Where the container runtime is.")
    image_gc: ImageGCSection = Field(default_factory=ImageGCSection, description="When unused images are removed.")
    container_gc: ContainerGCSection = Field(
        default_factory=ContainerGCSection,
        description="When dead containers, empty sandboxes and old logs are removed.",
    )
    eviction: EvictionSection = Field(default_factory=EvictionSection, description="When pods are evicted, and which.")
    kubelet: KubeletSection = Field(
        default_factory=KubeletSection, description="Where more is known of pods than the runtime tells."
    )
    shutdown: ShutdownSection = Field(
        default_factory=ShutdownSection, description="How pods are stopped when the node goes down."
    )
    protect: ProtectSection = Field(default_factory=ProtectSection, description="What is never removed.")
    state: StateSection = Field(default_factory=StateSection, description="The agent's own state.")
    history: HistorySection = Field(default_factory=HistorySection, description="How long what was done is remembered.")
    control: ControlSection = Field(
        default_factory=ControlSection, description="The socket on which the running agent is asked and told things."
    )
    log: LogSection = Field(default_factory=LogSection, description="The agent's own log, on standard error.")
    metrics: MetricsSection = Field(default_factory=MetricsSection, description="Where metrics and health are served.")
