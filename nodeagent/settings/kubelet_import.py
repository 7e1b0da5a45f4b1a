"""Conversion of a KubeletConfiguration to settings, and the report of unconverted fields with the reason for each."""

from __future__ import annotations

import difflib
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Final

from nodeagent.config.files import read_document
from nodeagent.config.validation import convert as validated, fields_of
from nodeagent.errors import ConfigError
from nodeagent.eviction.plan.thresholds import DEFAULT_HARD
from nodeagent.parsing import parse_yaml
from nodeagent.record import Record
from nodeagent.settings.loading import load
from nodeagent.settings.reference import sourced_toml
from nodeagent.settings.settings import Config
from nodeagent.text import escape, masked, shortened

_SIMILARITY: Final = 0.8
_NO_CGROUP_SETUP: Final = "the agent reads cgroups and does not configure them"
_NO_NODE_STATUS: Final = "intervals of the agent's own heartbeats are fixed, see kubernetes.register_node"
_NO_LOG_ROTATION: Final = "the agent removes logs of deleted pods; log rotation is a function of the kubelet"
_REASONS: Final[Mapping[str, str]] = {
    "kernelMemcgNotification": "replaced by PSI triggers: eviction.memory_stall",
    "enforceNodeAllocatable": _NO_CGROUP_SETUP,
    "systemReserved": _NO_CGROUP_SETUP,
    "kubeReserved": _NO_CGROUP_SETUP,
    "reservedMemory": _NO_CGROUP_SETUP,
    "runtimeRequestTimeout": "separate timeouts for reads and removals: runtime.timeout, runtime.removal_timeout",
    "imageServiceEndpoint": "one socket for both CRI services: runtime.endpoint",
    "port": "the kubelet API requires credentials of its own: kubelet.url, kubelet.token_file",
    "volumeStatsAggPeriod": "the agent measures in every pass",
    "nodeStatusUpdateFrequency": _NO_NODE_STATUS,
    "nodeStatusReportFrequency": _NO_NODE_STATUS,
    "containerLogMaxSize": _NO_LOG_ROTATION,
    "containerLogMaxFiles": _NO_LOG_ROTATION,
    "containerLogMaxWorkers": _NO_LOG_ROTATION,
    "containerLogMonitorInterval": _NO_LOG_ROTATION,
    "featureGates": "feature gates of the kubelet do not apply to the agent",
    "logging": "the log of the agent is configured in [log]",
    "staticPodURL": "static pods are read from files only: kubelet.manifests",
}
_KUBELET_ONLY: Final = frozenset(
    [
        "allowedUnsafeSysctls",
        "authentication",
        "authorization",
        "cgroupDriver",
        "cgroupRoot",
        "cgroupsPerQOS",
        "clusterDNS",
        "clusterDomain",
        "configMapAndSecretChangeDetectionStrategy",
        "contentType",
        "cpuCFSQuota",
        "cpuCFSQuotaPeriod",
        "cpuManagerPolicy",
        "cpuManagerPolicyOptions",
        "cpuManagerReconcilePeriod",
        "crashLoopBackOff",
        "enableContentionProfiling",
        "enableControllerAttachDetach",
        "enableDebugFlagsHandler",
        "enableDebuggingHandlers",
        "enableProfilingHandler",
        "enableServer",
        "enableSystemLogHandler",
        "enableSystemLogQuery",
        "eventBurst",
        "eventRecordQPS",
        "failCgroupV1",
        "failSwapOn",
        "fileCheckFrequency",
        "hairpinMode",
        "healthzBindAddress",
        "healthzPort",
        "httpCheckFrequency",
        "imagePullCredentialsVerificationPolicy",
        "iptablesDropBit",
        "iptablesMasqueradeBit",
        "kubeAPIBurst",
        "kubeAPIQPS",
        "kubeReservedCgroup",
        "kubeletCgroups",
        "makeIPTablesUtilChains",
        "maxOpenFiles",
        "maxParallelImagePulls",
        "maxPods",
        "memoryManagerPolicy",
        "memoryReservationPolicy",
        "memorySwap",
        "memoryThrottlingFactor",
        "nodeLeaseDurationSeconds",
        "nodeStatusMaxImages",
        "oomScoreAdj",
        "podCIDR",
        "podPidsLimit",
        "podsPerCore",
        "preloadedImagesVerificationAllowlist",
        "protectKernelDefaults",
        "providerID",
        "qosReserved",
        "registerNode",
        "registerWithTaints",
        "registryBurst",
        "registryPullQPS",
        "reservedSystemCPUs",
        "resolvConf",
        "rotateCertificates",
        "runOnce",
        "seccompDefault",
        "serializeImagePulls",
        "serverTLSBootstrap",
        "showHiddenMetricsForVersion",
        "singleProcessOOMKill",
        "staticPodURLHeader",
        "streamingConnectionIdleTimeout",
        "syncFrequency",
        "systemCgroups",
        "systemReservedCgroup",
        "tlsCertFile",
        "tlsCipherSuites",
        "tlsCurvePreferences",
        "tlsMinVersion",
        "tlsPrivateKeyFile",
        "topologyManagerPolicy",
        "topologyManagerPolicyOptions",
        "topologyManagerScope",
        "tracing",
        "userNamespaces",
        "volumePluginDir",
    ]
)
"""Fields of functions that only the kubelet has.

Source: Kubernetes ``KubeletConfiguration``, kubelet.config.k8s.io/v1beta1, up to version 1.36.
"""


class FieldGroup(StrEnum):
    """Groups of KubeletConfiguration fields that were not converted.

    Attributes:
        INVALID: fields with a counterpart and an invalid value.
        MISSPELT: unknown fields with a name similar to a known field.
        UNKNOWN: unknown fields, such as fields of a newer kubelet.
        EXPLAINED: fields without a counterpart, each reported with its reason.
        IRRELEVANT: fields without effect on the functions of the agent.
    """

    INVALID = "invalid"
    MISSPELT = "misspelt"
    UNKNOWN = "unknown"
    EXPLAINED = "explained"
    IRRELEVANT = "irrelevant"


def explain_field(name: str, value: object, converted: Iterable[str]) -> tuple[FieldGroup, str]:
    """Return the group of a field without a counterpart, and the reason.

    Args:
        name: name of the field.
        value: value of the field; a zero value is the default and needs no explanation.
        converted: names of the fields with a counterpart.
    """
    if name in _REASONS:
        return FieldGroup.IRRELEVANT if is_zero(value) else FieldGroup.EXPLAINED, _REASONS[name]
    if name in _KUBELET_ONLY:
        return FieldGroup.IRRELEVANT, "not a function of the agent"
    near = difflib.get_close_matches(name, sorted({*converted, *_REASONS, *_KUBELET_ONLY}), 1, _SIMILARITY)
    if near:
        return FieldGroup.MISSPELT, f"unknown field; did you mean {near[0]}?"
    return FieldGroup.UNKNOWN, "unknown field: misspelt, or of a newer kubelet"


def is_zero(value: object) -> bool:
    """Return whether a value is the zero of its type, which kubeadm writes for fields that are not set."""
    return value in (None, "", "0", "0s", 0, [], {})


KIND: Final = "KubeletConfiguration"
_GROUP: Final = "kubelet.config.k8s.io/"
_MAX_CHARACTERS: Final = 1 << 20
_SIGNAL: Final = re.compile(r"[A-Za-z][A-Za-z.]{0,60}")
_AMOUNT: Final = re.compile(r"[0-9A-Za-z.%+-]{1,40}")
_LOCAL: Final = ("", "0.0.0.0", "::", "127.0.0.1", "::1", "localhost")  # noqa: S104 - compared, not bound
_MAX_SHOWN_LENGTH: Final = 80
_ZERO: Final = re.compile(r"0+(\.0*)?|(0+(\.0*)?[a-zµ]+)+")
"""A duration of zero. Each number but a single one has a unit: otherwise the time of a match grows exponentially."""
_DRY_RUN: Final = "dry_run"


class UnconvertedField(Record):
    """A KubeletConfiguration field that was not converted."""

    field: str
    reason: str
    group: FieldGroup = FieldGroup.EXPLAINED

    @property
    def faulty(self) -> bool:
        """Whether the field is an error in the file: an invalid value, or a misspelt name."""
        return self.group in (FieldGroup.INVALID, FieldGroup.MISSPELT)


class ConvertedField(Record):
    """A setting with its value and the names of its source fields."""

    key: str
    value: object
    fields: str


class Imported(Record):
    """Result of an import; every field of the KubeletConfiguration is in ``taken`` or in ``left``.

    Attributes:
        taken: converted fields.
        left: fields that were not converted.
        notes: differences in behaviour caused by absent fields.
    """

    taken: tuple[ConvertedField, ...]
    left: tuple[UnconvertedField, ...]
    notes: tuple[str, ...] = ()

    def to_toml(self, *, dry_run: bool = True, because: str = "default of an imported configuration") -> str:
        """Return the settings as a configuration file, each with its source field, and always with ``dry_run``.

        Args:
            dry_run: value written in every case, since the default of a configuration file is ``false``.
            because: reason for the value of ``dry_run``, one printable line.
        """
        values = {_DRY_RUN: (dry_run, because)} | {each.key: (each.value, each.fields) for each in self.taken}
        return f"# Imported from a KubeletConfiguration by nodeagent config import.\n\n{sourced_toml(values)}"


def read_kubelet(text: str) -> Mapping[str, object]:
    """Return the fields of the KubeletConfiguration in a YAML or JSON text.

    Raises:
        ConfigError: the text is neither YAML nor JSON, is too long, or has not exactly one KubeletConfiguration.
    """
    if len(text) > _MAX_CHARACTERS:
        raise ConfigError(f"longer than {_MAX_CHARACTERS} characters")
    try:
        documents = [each for each in parse_yaml(text) if each is not None]
    except ValueError as error:
        raise ConfigError(f"neither YAML nor JSON: {error}") from error
    found = [each for each in documents if isinstance(each, dict) and each.get("kind") == KIND]
    if len(found) != 1:
        kinds = sorted({_shown(each.get("kind") if isinstance(each, dict) else each) for each in documents})
        present = f"found kinds: {', '.join(kinds)}" if kinds else "empty file"
        raise ConfigError(f"{len(found)} documents of kind {KIND}, expected 1; {present}")
    version = found[0].get("apiVersion", "")
    if not str(version).startswith(_GROUP):
        raise ConfigError(f"apiVersion = {_shown(version)}: must start with {_GROUP}")
    return {str(key): value for key, value in found[0].items() if key not in ("kind", "apiVersion")}


def import_kubelet(fields: Mapping[str, object]) -> Imported:
    """Return the settings for the fields of a KubeletConfiguration.

    Dependent fields (a soft threshold and its grace period) are converted together or not at all.
    """
    left = {}
    for name, value in fields.items():
        if name not in _CONVERTED:
            group, reason = explain_field(name, value, _CONVERTED)
            left[name] = UnconvertedField(name, reason, group)
    taken: list[ConvertedField] = []
    for names, convert in _GROUPS:
        given = {name: fields[name] for name in names if fields.get(name) not in (None, [])}
        left |= {
            name: UnconvertedField(name, "no value", FieldGroup.IRRELEVANT)
            for name in names
            if name in fields and name not in given
        }
        if not given:
            continue
        try:
            converted = [each for each in convert(given) if each.key not in {other.key for other in taken}]
            _check([*taken, *converted])
        except ValueError as error:
            left |= {
                name: UnconvertedField(name, f"{_shown(value)}: {error}", FieldGroup.INVALID)
                for name, value in given.items()
            }
            continue
        except _NotConvertedError as reason:
            group = FieldGroup.IRRELEVANT if reason.is_default else FieldGroup.EXPLAINED
            left |= {name: UnconvertedField(name, str(reason), group) for name in given}
            continue
        taken += converted
    order = {name: position for position, name in enumerate(each.name for each in fields_of(Config))}
    taken.sort(key=lambda each: order[each.key.partition(".")[0]])
    return Imported(tuple(taken), tuple(left[name] for name in fields if name in left), tuple(_notes(fields)))


class _NotConvertedError(Exception):
    """A valid field cannot be converted; the message is the reason.

    Attributes:
        is_default: whether the field has the default value of the kubelet, which needs no explanation.
    """

    def __init__(self, reason: str, *, is_default: bool = False) -> None:
        super().__init__(reason)
        self.is_default = is_default


def _check(taken: Iterable[ConvertedField]) -> None:
    """Validate the settings as one configuration.

    Raises:
        ValueError: the settings are invalid.
    """
    document: dict[str, dict[str, object]] = {}
    for each in taken:
        section, _, name = each.key.partition(".")
        document.setdefault(section, {})[name] = each.value
    try:
        validated(Config, document)
    except ConfigError as error:
        raise ValueError(str(error)) from error


def _notes(fields: Mapping[str, object]) -> Iterable[str]:
    periods = ("shutdownGracePeriod", "shutdownGracePeriodByPodPriority")
    if all(is_zero(fields.get(name)) for name in periods):
        yield (
            "no shutdownGracePeriod: the kubelet has no graceful shutdown; the agent has one on a node without "
            'a kubelet, unless [shutdown] has enabled = "off"'
        )
    if fields.get("evictionMaxPodGracePeriod") == 0:
        yield (
            "evictionMaxPodGracePeriod is 0: a pod evicted by a soft threshold has its own termination grace period, "
            "as in the kubelet"
        )


class KeptDryRun(Record):
    """A value of ``dry_run`` and its reason, one printable line."""

    value: bool
    reason: str


def dry_run_to_keep(paths: Iterable[Path], environment: Mapping[str, str] = os.environ) -> KeptDryRun:
    """Return the ``dry_run`` of the existing configuration files among ``paths``; ``True`` in doubt.

    ``False`` requires that every one of these files sets ``dry_run = false`` itself, is valid, and has no drop-in or
    variable that overrides it. A default does not count: a shell truncates the target of
    ``nodeagent config import FILE > TARGET`` before this process starts, and an empty file means ``false``.
    """
    reason, missing = "", ""
    for path in dict.fromkeys(paths):
        try:
            path.lstat()
        except FileNotFoundError:
            missing = missing or f"no configuration file at {path}"
            continue
        except OSError:
            pass  # reported by load()
        kept = _of_file(path, environment)
        if kept.value:
            return kept
        reason = reason or kept.reason
    return KeptDryRun(value=False, reason=reason) if reason else KeptDryRun(value=True, reason=_one_line(missing))


def _of_file(path: Path, environment: Mapping[str, str]) -> KeptDryRun:
    try:
        own = read_document(path).get(_DRY_RUN)
        loaded = load(path, environment=environment)
    except ConfigError as error:
        return KeptDryRun(value=True, reason=_one_line(f"existing configuration is invalid: {error}"))
    if own is None:
        return KeptDryRun(value=True, reason=_one_line(f"{path} does not set dry_run"))
    if own is True:
        return KeptDryRun(value=True, reason=_one_line(f"{path} sets dry_run = true"))
    if loaded.config.dry_run:
        return KeptDryRun(value=True, reason=_one_line(f"{loaded.origins[_DRY_RUN]} sets dry_run = true"))
    return KeptDryRun(value=False, reason=_one_line(f"{path} sets dry_run = false"))


def _one_line(text: str) -> str:
    """Return the first line of a text with unprintable characters replaced, for use in a TOML comment."""
    return masked(text.partition("\n")[0])


Given = Mapping[str, object]


def _plain(key: str) -> Callable[[Given], Iterable[ConvertedField]]:
    def convert(given: Given) -> Iterable[ConvertedField]:
        ((name, value),) = given.items()
        yield ConvertedField(key, value, name)

    return convert


def _period(key: str, *, for_zero: str) -> Callable[[Given], Iterable[ConvertedField]]:
    """Return a converter of a duration; a zero duration is converted to ``for_zero``, the kubelet's default."""

    def convert(given: Given) -> Iterable[ConvertedField]:
        ((name, value),) = given.items()
        yield ConvertedField(key, for_zero if _ZERO.fullmatch(str(value)) else value, name)

    return convert


def _image_thresholds(given: Given) -> Iterable[ConvertedField]:
    keys = {
        "imageGCHighThresholdPercent": "image_gc.high_threshold_percent",
        "imageGCLowThresholdPercent": "image_gc.low_threshold_percent",
    }
    percents = {"imageGCHighThresholdPercent": 85, "imageGCLowThresholdPercent": 80} | dict(given)
    high, low = percents["imageGCHighThresholdPercent"], percents["imageGCLowThresholdPercent"]
    if isinstance(high, int) and isinstance(low, int) and low >= high:
        raise ValueError(
            f"imageGCLowThresholdPercent ({_of_default(low, 'imageGCLowThresholdPercent', given)}) must be below "
            f"imageGCHighThresholdPercent ({_of_default(high, 'imageGCHighThresholdPercent', given)})"
        )
    for name, value in given.items():
        yield ConvertedField(keys[name], value, name)


def _of_default(value: int, name: str, given: Given) -> str:
    return str(value) if name in given else f"{value} by default"


def _ages(given: Given) -> Iterable[ConvertedField]:
    if "imageMinimumGCAge" in given:
        age = {"imageMinimumGCAge": given["imageMinimumGCAge"]}
        yield from _period("image_gc.minimum_age", for_zero="2m")(age)
    if "imageMaximumGCAge" in given:
        yield ConvertedField("image_gc.maximum_unused_age", given["imageMaximumGCAge"], "imageMaximumGCAge")


def _hard(given: Given) -> Iterable[ConvertedField]:
    """Convert the hard eviction thresholds. Source: kubelet ``mergeDefaultEvictionSettings``, ``SetDefaults``."""
    named = _amounts(given.get("evictionHard", {}))
    merge = given.get("mergeDefaultEvictionSettings", False)
    if not isinstance(merge, bool):
        raise ValueError("mergeDefaultEvictionSettings must be true or false")  # noqa: TRY004 - the caller catches ValueError
    if not named:
        if "evictionHard" not in given:
            raise _NotConvertedError("evictionHard is not set; the defaults apply, as in the kubelet", is_default=True)
        raise _NotConvertedError("no signal; the defaults apply, as in the kubelet", is_default=True)
    defaults = {str(signal): amount for signal, amount in DEFAULT_HARD.items()} if merge else {}
    yield ConvertedField("eviction.hard", _joined({**defaults, **named}, "<"), " and ".join(given))


def _amount_lists(given: Given) -> Iterable[ConvertedField]:
    keys = {
        "evictionSoft": ("eviction.soft", "<"),
        "evictionSoftGracePeriod": ("eviction.soft_grace_period", "="),
        "evictionMinimumReclaim": ("eviction.minimum_reclaim", "="),
    }
    for name, value in given.items():
        key, sign = keys[name]
        yield ConvertedField(key, _joined(_amounts(value), sign), name)


def _pod_grace(given: Given) -> Iterable[ConvertedField]:
    ((name, value),) = given.items()
    yield ConvertedField("eviction.max_pod_grace_period", f"{_whole(value)}s", name)


def _shutdown(given: Given) -> Iterable[ConvertedField]:
    """Convert the shutdown grace periods, sorted by priority. Source: kubelet ``nodeshutdown`` ``migrateConfig``."""
    bands = given.get("shutdownGracePeriodByPodPriority")
    if bands is not None:
        if any(str(given.get(name, "0s")) not in ("0", "0s") for name in _PERIODS):
            raise ValueError(f"cannot be combined with {' and '.join(_PERIODS)}")
        if not isinstance(bands, list):
            raise ValueError("must be a list of {priority, shutdownGracePeriodSeconds}")
        yield ConvertedField(
            "shutdown.by_priority", tuple(sorted(map(_band, bands), key=_priority)), " and ".join(given)
        )
        return
    total = given.get("shutdownGracePeriod", "0s")
    critical = given.get("shutdownGracePeriodCriticalPods", "0s")
    yield ConvertedField("shutdown.grace_period", total, "shutdownGracePeriod")
    yield ConvertedField("shutdown.grace_period_critical", critical, "shutdownGracePeriodCriticalPods")


def _band(band: object) -> dict[str, object]:
    if not isinstance(band, dict) or set(band) - {"priority", "shutdownGracePeriodSeconds"}:
        raise ValueError("must be a list of {priority, shutdownGracePeriodSeconds}")
    seconds = _whole(band.get("shutdownGracePeriodSeconds", 0))
    return {"min_priority": _whole(band.get("priority", 0), negative=True), "seconds": float(seconds)}


def _priority(band: Mapping[str, object]) -> int:
    priority = band["min_priority"]
    return priority if isinstance(priority, int) else 0


def _pods_url(given: Given) -> Iterable[ConvertedField]:
    port, address = given.get("readOnlyPort"), str(given.get("address", ""))
    if port is None or port == 0:
        raise _NotConvertedError(
            "no read-only port; the kubelet API requires credentials of its own: kubelet.url", is_default=True
        )
    if address not in _LOCAL:
        raise _NotConvertedError(
            "the unit allows connections to local addresses only: set kubelet.url, and IPAddressAllow in a drop-in"
        )
    host = "[::1]" if address == "::1" else "127.0.0.1"
    yield ConvertedField("kubelet.url", f"http://{host}:{_whole(port)}", " and ".join(given))


def _endpoint(given: Given) -> Iterable[ConvertedField]:
    ((name, value),) = given.items()
    if value == "":
        raise _NotConvertedError("empty; the agent detects the socket", is_default=True)
    yield ConvertedField("runtime.endpoint", value, name)


def _amounts(value: object) -> dict[str, str]:
    """Return the amounts by eviction signal.

    Raises:
        ValueError: the value is not a mapping, or a signal or amount is not valid in a list of thresholds.
    """
    if not isinstance(value, dict):
        raise ValueError('must be a mapping such as {"memory.available": "100Mi"}')  # noqa: TRY004 - the caller catches ValueError
    amounts = {str(signal): str(amount).strip() for signal, amount in value.items()}
    for signal, amount in amounts.items():
        if not _SIGNAL.fullmatch(signal) or not _AMOUNT.fullmatch(amount):
            raise ValueError(f"{_shown(signal)}: {_shown(amount)} is not a signal with an amount")
    return amounts


def _joined(amounts: Mapping[str, str], sign: str) -> str:
    return ",".join(f"{signal}{sign}{amount}" for signal, amount in amounts.items())


def _whole(value: object, *, negative: bool = False) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or (value < 0 and not negative):
        raise ValueError(f"{_shown(value)} is not a whole number{'' if negative else ' of at least 0'}")
    return value


def _shown(value: object) -> str:
    """Return a value as printable text of limited length, on one line."""
    if isinstance(value, str):
        text = value
    elif isinstance(value, Mapping):
        text = ", ".join(
            f"{key}: {each}" for key, each in list(value.items())[:8] if isinstance(each, str | int | float)
        )
    elif isinstance(value, list):
        text = f"a list of {len(value)}"
    else:
        text = str(value)
    return shortened(masked(text), _MAX_SHOWN_LENGTH)


_PERIODS: Final = ("shutdownGracePeriod", "shutdownGracePeriodCriticalPods")
_GROUPS: Final[tuple[tuple[tuple[str, ...], Callable[[Given], Iterable[ConvertedField]]], ...]] = (
    (("containerRuntimeEndpoint",), _endpoint),
    (("imageGCHighThresholdPercent", "imageGCLowThresholdPercent"), _image_thresholds),
    (("imageMinimumGCAge", "imageMaximumGCAge"), _ages),
    (("podLogsDir",), _plain("container_gc.pod_log_root")),
    (("evictionHard", "mergeDefaultEvictionSettings"), _hard),
    (("evictionSoft", "evictionSoftGracePeriod"), _amount_lists),
    (("evictionMinimumReclaim",), _amount_lists),
    (("evictionPressureTransitionPeriod",), _period("eviction.pressure_transition_period", for_zero="5m")),
    (("evictionMaxPodGracePeriod",), _pod_grace),
    (("localStorageCapacityIsolation",), _plain("eviction.local_storage_isolation")),
    (("readOnlyPort", "address"), _pods_url),
    (("staticPodPath",), _plain("kubelet.manifests")),
    ((*_PERIODS, "shutdownGracePeriodByPodPriority"), _shutdown),
)
_CONVERTED: Final = frozenset(name for names, _ in _GROUPS for name in names)


_ONE_BY_ONE: Final = (FieldGroup.INVALID, FieldGroup.MISSPELT, FieldGroup.UNKNOWN, FieldGroup.EXPLAINED)


def import_report(imported: Imported) -> Iterator[str]:
    """Yield the lines of the report: number of converted fields, unconverted fields with faults first, notes."""
    fields = {name for each in imported.taken for name in each.fields.split(" and ")}
    yield f"{len(fields)} fields imported as {len(imported.taken)} settings"
    for group in _ONE_BY_ONE:
        names: defaultdict[str, list[str]] = defaultdict(list)
        for each in imported.left:
            if each.group is group:
                names[each.reason].append(escape(each.field))
        for reason, fields_of_reason in names.items():
            yield f"not imported: {', '.join(fields_of_reason)}: {reason}"
    irrelevant = [escape(each.field) for each in imported.left if each.group is FieldGroup.IRRELEVANT]
    if irrelevant:
        yield f"{len(irrelevant)} fields without effect on the agent: {', '.join(irrelevant)}"
    yield from imported.notes
