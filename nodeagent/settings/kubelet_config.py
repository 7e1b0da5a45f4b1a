"""Configuration of this node's kubelet: main file, drop-ins and flags, and the sources that could not be read.

A kubelet reads one file, merges the drop-ins of a directory into it in the order of their paths, and applies its flags
last. The command line of a running kubelet names the file and the directory, and is complete. A kubelet inside another
process (k3s, microk8s) and a stopped kubelet get their flags from files, which differ between distributions: the unit,
and the files in the table ``_DISTRIBUTIONS``. A source that exists but cannot be read or is not understood makes the
values unknown that it can set: no default is assumed for them.

The kubelet itself decides, by ``/configz`` of its API. This access is optional: before Kubernetes 1.33, it requires
``nodes/proxy``, which also permits ``exec``. Without it, a source that was changed after the start of the kubelet is
not detected.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psutil

from nodeagent.errors import ConfigError, ObservationError
from nodeagent.files import read_text
from nodeagent.host.sockets import port_owners
from nodeagent.host.unit_files import UnitCommand, has_unit, read_unit_command, split_words
from nodeagent.kube.kubelet_pods import KubeletPods
from nodeagent.model.node import KubeletConfig
from nodeagent.parsing import parse_yaml
from nodeagent.record import Record
from nodeagent.settings.kubelet_import import read_kubelet
from nodeagent.text import masked

if TYPE_CHECKING:
    from nodeagent.model.kubernetes import KubeletAccess

_MAX_FILES: Final = 200
_SIGN: Final = re.compile(r"\s*(<|=)\s*")
_VARIABLE: Final = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
_PROCESS_TYPE: Final = re.compile("-(?:server|agent)$")
_KUBELET: Final = re.compile(r"kubelet(?:[-._]v?[0-9].*)?")
_UNIT_OF_CGROUP: Final = re.compile(r"/([^/\n]+)\.service")
_FIELDS: Final[Mapping[str, str]] = {
    "image-gc-high-threshold": "imageGCHighThresholdPercent",
    "image-gc-low-threshold": "imageGCLowThresholdPercent",
    "minimum-image-ttl-duration": "imageMinimumGCAge",
    "eviction-pressure-transition-period": "evictionPressureTransitionPeriod",
    "eviction-max-pod-grace-period": "evictionMaxPodGracePeriod",
    "pod-manifest-path": "staticPodPath",
    "container-runtime-endpoint": "containerRuntimeEndpoint",
    "read-only-port": "readOnlyPort",
    "address": "address",
}
_THRESHOLDS: Final[Mapping[str, str]] = {
    "eviction-hard": "evictionHard",
    "eviction-soft": "evictionSoft",
    "eviction-soft-grace-period": "evictionSoftGracePeriod",
    "eviction-minimum-reclaim": "evictionMinimumReclaim",
}
_WHOLE: Final = frozenset(
    {"imageGCHighThresholdPercent", "imageGCLowThresholdPercent", "evictionMaxPodGracePeriod", "readOnlyPort"}
)

_MAIN: Final = (
    "var/lib/kubelet/config.yaml",  # kubeadm, kind, minikube
    "etc/kubernetes/kubelet/config.json",  # EKS, Amazon Linux 2023
    "etc/kubernetes/kubelet/kubelet-config.json",  # EKS, Amazon Linux 2
    "home/kubernetes/kubelet-config.yaml",  # GKE
    "etc/default/kubeletconfig.json",  # AKS
    "etc/kubernetes/kubelet/config",  # Bottlerocket
)
"""Files that the units of distributions name; a unit without such a name has lost a drop-in or a variable."""


class _Distribution(Record):
    """A Kubernetes distribution, and the sources of its kubelet's flags.

    Attributes:
        marks: paths that exist on its nodes; one is sufficient.
        program: program that runs the kubelet, or starts it with flags of its own.
        units: services that start the program; at most one exists on a node.
        data: default data directory of the program.
    """

    name: str
    marks: tuple[str, ...]
    program: str = "kubelet"
    units: tuple[str, ...] = ("kubelet",)
    data: str = ""


_DISTRIBUTIONS: Final = (
    _Distribution(
        "k3s", ("etc/rancher/k3s", "var/lib/rancher/k3s"), "k3s", ("k3s", "k3s-agent"), "/var/lib/rancher/k3s"
    ),
    _Distribution(
        "rke2",
        ("etc/rancher/rke2", "var/lib/rancher/rke2"),
        "rke2",
        ("rke2-server", "rke2-agent"),
        "/var/lib/rancher/rke2",
    ),
    _Distribution("k0s", ("etc/k0s", "var/lib/k0s", "run/k0s"), "k0s", ("k0scontroller", "k0sworker"), "/var/lib/k0s"),
    _Distribution("microk8s", ("var/snap/microk8s",), "kubelite", (), "/var/snap/microk8s/current"),
    _Distribution("k8s-snap", ("var/snap/k8s",), "k8s", (), "/var/snap/k8s/common"),
    _Distribution("EKS", ("etc/eks", "etc/kubernetes/kubelet/kubelet-config.json")),
    _Distribution("AKS", ("etc/kubernetes/azure.json", "opt/azure/containers")),
    _Distribution("GKE", ("home/kubernetes/kubelet-config.yaml", "home/kubernetes/bin/kubelet")),
    _Distribution("OpenShift", ("etc/machine-config-daemon", "etc/openshift/kubelet.conf.d")),
    _Distribution("Talos", ("system/state",), units=()),
    _Distribution("Bottlerocket", ("etc/kubernetes/kubelet/config",)),
    _Distribution("kind", ("kind/version",)),
    _Distribution("minikube", ("var/lib/minikube",)),
    _Distribution("kubeadm", ("var/lib/kubelet/config.yaml", "etc/kubernetes/kubelet.conf")),
    _Distribution("kubelet", tuple(f"{each}/systemd/system/kubelet.service" for each in ("etc", "usr/lib", "lib"))),
)
"""The distributions, in the order of recognition.

Source: k3s and rke2 ``configfilearg``, ``GetArgs`` and ``extractConfigArgs``; k0s ``worker.Kubelet``; microk8s
``kubelite`` ``ReadArgsFromFile``; Canonical Kubernetes ``k8s::common::execute``; the units of the others.
"""
_EMBEDDING: Final = frozenset(each.program for each in _DISTRIBUTIONS) - {"kubelet"}


def read_kubelet_config(root: Path, pids: Iterable[int] = ()) -> KubeletConfig:
    """Return the configuration of the kubelet of this node. Blocks.

    Args:
        root: directory that the absolute paths of files are below, normally ``/``.
        pids: PIDs of the processes that run or start a kubelet.

    Source: kubelet ``NewKubeletCommand``: ``loadConfigFile``, ``mergeKubeletConfigurations`` (RFC 7386), then flags.
    """
    return _Reader(root).read(pids)


def ask_kubelet(found: KubeletConfig, access: KubeletAccess | None) -> KubeletConfig:
    """Return the configuration that a kubelet with this API reports; ``found`` without an answer. Blocks.

    Args:
        found: configuration read from files, used also for the flags without a KubeletConfiguration field.
        access: access to the kubelet API; ``None`` without.
    """
    if access is None:
        return found
    try:
        fields = asyncio.run(KubeletPods(access, port_owners).read_config())
    except ObservationError:  # reported by the check of the pod list, unless only this path is refused
        return found
    in_force = {"evictionHard": {}, **fields}  # the kubelet's defaults are included, and an empty map is omitted
    return KubeletConfig(in_force, found.flags, found.distribution, (f"{access.url.rstrip('/')}/configz",))


def merge_patch(base: Mapping[str, object], patch: Mapping[str, object]) -> dict[str, object]:
    """Return ``base`` with a JSON merge patch applied: maps are merged, ``None`` removes, other values replace.

    Source: RFC 7386.
    """
    merged = dict(base)
    for key, value in patch.items():
        before = merged.get(key)
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, dict):
            merged[key] = merge_patch(before if isinstance(before, dict) else {}, value)
        else:
            merged[key] = value
    return merged


def parse_flags(words: Sequence[str]) -> dict[str, str]:
    """Return the flag values of a command line by name, with dashes for underscores; ``true`` without a value.

    Of a repeated flag, the last value is returned; the values of a repeated map are joined, as the kubelet does.

    Source: component-base ``WordSepNormalizeFunc``, ``LangleSeparatedMapStringString.Set``.
    """
    flags: dict[str, str] = {}
    maps: dict[str, list[str]] = {}
    pending = ""
    for word in words:
        if word.startswith("-"):
            name, equals, value = word.lstrip("-").partition("=")
            name = name.replace("_", "-")
            maps.setdefault(name, []).append(value)
            flags[name] = value if equals else "true"
            pending = "" if equals else name
        elif pending:
            maps[pending][-1] = flags[pending] = word
            pending = ""
    return flags | {name: ",".join(maps[name]) for name in _THRESHOLDS if name in flags}


class _Reader:
    def __init__(self, root: Path) -> None:
        self._root = root
        self._sources: list[str] = []
        self._of_flags: list[str] = []
        self._unread: list[str] = []
        self._unknown: list[str] = []
        self._fields: dict[str, object] = {}
        self._certain: set[str] = set()
        self._partial: set[str] = set()
        self._gap = False

    def read(self, pids: Iterable[int]) -> KubeletConfig:
        commands = {pid: words for pid in pids if (words := _command(pid))}
        kubelets = [pid for pid, words in commands.items() if _after_kubelet(words) is not None]
        pid = next(iter(kubelets or commands), None)
        command = [] if pid is None else commands[pid]
        program = _PROCESS_TYPE.sub("", command[0].rpartition("/")[2]) if command else ""
        distribution = next((each for each in _DISTRIBUTIONS if self._is_of(each, program)), None)
        after = _after_kubelet(command)
        flags: dict[str, str] = {}
        if after is not None:
            self._of_flags.append("command line")
            flags = parse_flags(after)
        elif command and program not in _EMBEDDING:
            self._unknown.append(f"configuration of the kubelet in {masked(program)[:32]}, process {pid}")
        elif distribution is None:
            self._unread.append("no process, unit or file of a known distribution found")
        else:
            flags = self._flags_of(distribution, command, pid)
        self._merge_all(flags)
        others = {name: value for name, value in flags.items() if name not in _FIELDS and name not in _THRESHOLDS}
        return KubeletConfig(
            self._fields,
            others,
            "" if distribution is None else distribution.name,
            tuple(dict.fromkeys([*self._sources, *self._of_flags])),
            tuple(self._unread),
            tuple(self._unknown),
            frozenset(self._certain),
            frozenset(self._partial),
        )

    def _is_of(self, distribution: _Distribution, program: str) -> bool:
        """Return whether the program, or without a program of a distribution the files, are of a distribution."""
        if program in _EMBEDDING:
            return program == distribution.program
        return any(os.path.lexists(self._root / each) for each in distribution.marks)

    def _merge_all(self, flags: Mapping[str, str]) -> None:
        """Merge the main file, the drop-ins and the flags, lowest precedence first."""
        incomplete_flags = bool(self._unread or self._unknown)
        if main := flags.get("config", ""):
            self._merge(self._document(main))
        if directory := flags.get("config-dir", ""):
            known = len(self._unread)
            paths = self._drop_ins(directory)
            incomplete = len(self._unread) > known
            for path in paths:
                self._merge(self._document(path))
            if incomplete:
                self._merge(None)
        by_flags = dict(_fields_of(flags))
        self._fields |= by_flags
        self._certain |= set(by_flags)
        if incomplete_flags:
            self._merge(None)

    def _merge(self, patch: Mapping[str, object] | None) -> None:
        """Merge a document into the fields; ``None`` for a document that cannot be read."""
        if patch is None:
            self._gap = True
            self._certain.clear()
            self._partial.clear()
            return
        self._fields = merge_patch(self._fields, patch)
        maps = {name for name, value in patch.items() if isinstance(value, dict) and self._gap} - self._certain
        self._partial |= maps
        self._certain |= set(patch) - maps

    # ---- flags

    def _flags_of(self, distribution: _Distribution, command: Sequence[str], pid: int | None) -> dict[str, str]:
        """Return the flags that a distribution gives to its kubelet, which is stopped or inside another process."""
        if distribution.program in ("kubelite", "k8s"):
            return self._of_snap(distribution, command)
        environment: Mapping[str, str] = {}
        hidden = distribution.program in ("k3s", "rke2") and not any(each.startswith("-") for each in command)
        if command and not hidden:
            self._of_flags.append("command line")
        else:  # stopped, or hidden: k3s and rke2 replace their command line by their name and "server" or "agent"
            unit = self._unit(distribution, pid)
            if unit is None:
                return {}
            command, environment = unit.words, unit.environment
            self._of_flags += unit.sources
            self._unread += unit.unread
        words = _after_kubelet(command)
        if words is None and distribution.program not in [each.rpartition("/")[2] for each in command[:2]]:
            started = masked(command[0])[:80] if command else "no program"
            self._unknown.append(f"kubelet arguments of {started}")
            return {}
        if distribution.program in ("k3s", "rke2"):
            return self._of_rancher(distribution, command, environment)
        if distribution.program == "k0s":
            return self._of_k0s(distribution, command)
        flags = parse_flags(words or ())
        if "config" not in flags:
            unused = (each for each in _MAIN if os.path.lexists(self._root / each))
            self._unknown += (f"/{each} exists, but the unit does not name it" for each in unused)
        return flags

    def _unit(self, distribution: _Distribution, pid: int | None) -> UnitCommand | None:
        """Return the command line of the process's unit, or of the only unit of the distribution on this node."""
        own: list[str] = []
        if pid is not None:
            with suppress(OSError):
                own = _UNIT_OF_CGROUP.findall((self._root / f"proc/{pid}/cgroup").read_text(errors="replace"))[-1:]
        names = [each for each in own or distribution.units if has_unit(self._root, each)]
        if len(names) == 1:
            return read_unit_command(self._root, names[0])
        searched = ", ".join(f"{each}.service" for each in own or distribution.units)
        if names:
            self._unknown.append(f"several units: {searched}")
        else:
            self._unread.append(f"unit of {distribution.name} not found{f': {searched}' if searched else ''}")
        return None

    def _of_rancher(
        self, distribution: _Distribution, command: Sequence[str], environment: Mapping[str, str]
    ) -> dict[str, str]:
        """Return the flags of the kubelet of k3s or rke2.

        The values of the configuration files are inserted before the command line. A file for the flag ``config`` or
        ``config-dir`` is copied to the managed directory, which also has the defaults of the distribution.
        """
        prefix = distribution.program.upper()
        path = environment.get(f"{prefix}_CONFIG_FILE", "") or _last(command, "config", "c")
        values = self._rancher_values(path or f"/etc/rancher/{distribution.program}/config.yaml", required=bool(path))
        data = _last(command, "data-dir", "d") or next(reversed(_texts(values.get("data-dir"))), "")
        data = data or environment.get(f"{prefix}_DATA_DIR", "") or distribution.data
        ordered: list[str] = []
        for each in (*_texts(values.get("kubelet-arg")), *_option(command, "kubelet-arg")):
            name, equals, value = each.removeprefix("--").partition("=")
            cleaned = f"--{name.rstrip('-+')}{equals}{value}"
            ordered.insert(0 if name.endswith("-") else len(ordered), cleaned)
        flags = parse_flags(sorted(ordered, key=lambda each: each.partition("=")[0]))
        flags.pop("config", None)
        return flags | {"config-dir": f"{data}/agent/etc/kubelet.conf.d"}

    def _rancher_values(self, path: str, *, required: bool) -> dict[str, object]:
        """Return the values of a configuration file of k3s or rke2 merged with its drop-ins.

        A later file replaces a value; the value of a key with a plus is appended.
        """
        values: dict[str, object] = {}
        if "://" in path:
            self._unknown.append(f"configuration at {path}")
            return values
        paths = [f"{path}.d/{name}" for name in self._names(f"{path}.d") if name.lower().endswith((".yaml", ".yml"))]
        if required or os.path.lexists(self._root / path.lstrip("/")):
            paths.insert(0, path)
        for each in paths:
            text = self._text(each)
            if text is None:
                continue
            try:
                document = next(parse_yaml(text), None)
            except ValueError as error:
                self._unread.append(f"{each}: {' '.join(str(error).split())[:200]}")
                continue
            if not isinstance(document, dict | None):
                self._unread.append(f"{each}: not a mapping")
                continue
            self._of_flags.append(each)
            for key, value in (document or {}).items():
                name = str(key).removesuffix("+")
                appended = name != str(key) and name in values
                values[name] = _texts(values[name]) + _texts(value) if appended else value
        return values

    def _of_k0s(self, distribution: _Distribution, command: Sequence[str]) -> dict[str, str]:
        """Return the flags of k0s's kubelet; k0s writes the configuration of the worker profile to a file."""
        data = _last(command, "data-dir") or distribution.data
        candidates = (f"{data}/kubelet-config.yaml", "/run/k0s/kubelet-config.yaml")
        config = next((each for each in candidates if os.path.lexists(self._root / each.lstrip("/"))), candidates[0])
        extra = split_words(_last(command, "kubelet-extra-args"), "kubelet-extra-args", self._unread)
        return {"config": config} | parse_flags(extra)

    def _of_snap(self, distribution: _Distribution, command: Sequence[str]) -> dict[str, str]:
        """Return the flags in the arguments file of a snap.

        kubelite removes all quotes, splits at spaces and omits lines that start with a number sign; the kubelet of
        Canonical Kubernetes is started by a shell.
        """
        path = _last(command, "kubelet-args-file") or f"{distribution.data}/args/kubelet"
        text = self._text(path)
        if text is None:
            return {}
        self._of_flags.append(path)
        lines = [line for each in text.splitlines() if (line := each.strip()) and not line.startswith("#")]
        if distribution.program == "kubelite":
            words = [word for line in lines for word in re.sub("[\"']", "", line).split(" ")]
        else:
            words = split_words("\n".join(lines), path, self._unread)
        base = distribution.data.rsplit("/", 1)[0]
        known = {"SNAP_DATA": f"{base}/current", "SNAP_COMMON": f"{base}/common", "SNAP": base.removeprefix("/var")}

        def value_of(match: re.Match[str]) -> str:
            name = match[1] or match[2]
            if name not in known:
                self._unknown.append(f"{path}: variable {name}")
            return known.get(name, "")

        return parse_flags([_VARIABLE.sub(value_of, word) for word in words])

    # ---- files

    def _drop_ins(self, directory: str) -> list[str]:
        """Return the paths of the ``.conf`` files below a directory, sorted, at most 200."""
        found: list[str] = []
        start = self._root / directory.lstrip("/")
        errors: list[OSError] = []
        for parent, directories, names in os.walk(start, onerror=errors.append):
            directories.sort()
            below = Path(directory) / Path(parent).relative_to(start)
            found += (str(below / name) for name in names if name.endswith(".conf"))
        self._unread += (f"cannot read {directory}: {each.strerror or each}" for each in errors)
        if len(found) > _MAX_FILES:
            self._unread.append(f"{directory}: more than {_MAX_FILES} files")
        managed = directory.endswith("/agent/etc/kubelet.conf.d") and not errors  # of k3s and rke2 from 1.32 on
        if managed and not any(each.endswith("-defaults.conf") for each in found):
            self._unread.append(f"{directory} has no defaults of the distribution")
        return sorted(found)[:_MAX_FILES]

    def _names(self, directory: str) -> list[str]:
        """Return the names of the entries of a directory, sorted; nothing if it does not exist."""
        try:
            return sorted(os.listdir(self._root / directory.lstrip("/")))  # noqa: PTH208 - only names are needed
        except FileNotFoundError:
            return []
        except OSError as error:
            self._unread.append(f"cannot read {directory}: {error.strerror or error}")
            return []

    def _document(self, path: str) -> dict[str, object] | None:
        """Return the fields of a file with a KubeletConfiguration; ``None`` after an error, which is recorded."""
        text = self._text(path)
        if text is None:
            return None
        try:
            fields = dict(read_kubelet(text))
        except ConfigError as error:
            self._unread.append(f"{path}: {error}")
            return None
        self._sources.append(path)
        return fields

    def _text(self, path: str) -> str | None:
        """Return the text of a file; ``None`` after an error, which is recorded."""
        if not path.startswith("/"):
            self._unread.append(f"cannot read {path}: not an absolute path")
            return None
        try:
            return read_text(self._root / path.lstrip("/"))
        except OSError as error:
            self._unread.append(f"cannot read {path}: {error.strerror or error}")
            return None


def _command(pid: int) -> list[str]:
    """Return the command line of a process; empty if it has exited or cannot be read."""
    with suppress(psutil.Error, OSError):
        words = psutil.Process(pid).cmdline()
        return words if any(words) else []
    return []


def _after_kubelet(words: Sequence[str]) -> Sequence[str] | None:
    """Return the words of a command line after the kubelet; ``None`` if it starts no kubelet."""
    for position, word in enumerate(words):
        if word.startswith("-"):
            return None
        if _KUBELET.fullmatch(word.rpartition("/")[2]):
            return words[position + 1 :]
    return None


def _option(words: Sequence[str], *names: str) -> list[str]:
    """Return the values of an option with these names, in the form ``--name=value`` or ``--name value``."""
    found: list[str] = []
    pending = False
    for word in words:
        if pending:
            found.append(word)
            pending = False
        elif word.startswith("-"):
            name, equals, value = word.lstrip("-").partition("=")
            pending = name in names and not equals
            if name in names and equals:
                found.append(value)
    return found


def _last(words: Sequence[str], *names: str) -> str:
    return next(reversed(_option(words, *names)), "")


def _texts(value: object) -> list[str]:
    """Return a value of a YAML document as a list of texts."""
    items = value if isinstance(value, list | tuple) else [] if value is None else [value]
    return [str(each) for each in items]


def _fields_of(flags: Mapping[str, str]) -> Iterator[tuple[str, object]]:
    """Yield the name and value of each KubeletConfiguration field that a flag overrides."""
    for flag, name in _FIELDS.items():
        if flag in flags:
            value = flags[flag]
            yield name, int(value) if name in _WHOLE and value.isdecimal() and len(value) < 20 else value
    for flag, name in _THRESHOLDS.items():
        if flag in flags:
            pairs = (_SIGN.split(each, maxsplit=1) for each in flags[flag].split(",") if each.strip())
            yield name, {pair[0].strip(): pair[2].strip() for pair in pairs if len(pair) == 3}
