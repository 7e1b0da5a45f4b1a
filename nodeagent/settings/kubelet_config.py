"""Effective configuration of this node's kubelet: main file, drop-ins and flags.

A kubelet reads one file, merges the drop-ins of a directory into it in the order of their paths, and applies its
command line last. The command line of a running kubelet names the file and the directory. A kubelet inside another
process (k3s, microk8s) gets its flags from that process's own files. Without a running kubelet, the default files of
common distributions are read.

Rejected: ``/configz`` of the kubelet API, which requires access to ``nodes/proxy``; that access also permits ``exec``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Final

import psutil

from nodeagent.errors import ConfigError
from nodeagent.parsing import parse_yaml
from nodeagent.record import Record, field
from nodeagent.settings.kubelet_import import read_kubelet

_MAX_BYTES: Final = 1 << 20
_MAX_FILES: Final = 200
_SIGN: Final = re.compile(r"\s*(<|=)\s*")
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
    "var/lib/kubelet/config.yaml",  # kubeadm
    "etc/kubernetes/kubelet/config.json",  # EKS, Amazon Linux 2023
    "etc/kubernetes/kubelet/kubelet-config.json",  # EKS, Amazon Linux 2
    "home/kubernetes/kubelet-config.yaml",  # GKE
    "etc/default/kubeletconfig.json",  # AKS
    "var/lib/k0s/kubelet-config.yaml",
    "run/k0s/kubelet-config.yaml",
)
_DROP_INS: Final = (
    "etc/kubernetes/kubelet/config.json.d",  # EKS
    "var/lib/rancher/k3s/agent/etc/kubelet.conf.d",
    "var/lib/rancher/rke2/agent/etc/kubelet.conf.d",
)
_RANCHER: Final = ("etc/rancher/k3s/config.yaml", "etc/rancher/rke2/config.yaml")
_MICROK8S: Final = "var/snap/microk8s/current/args/kubelet"
_SNAP_DATA: Final = "/var/snap/microk8s/current"


class KubeletConfig(Record):
    """Effective configuration of a kubelet.

    Attributes:
        fields: KubeletConfiguration fields set by files and flags, without defaults.
        flags: values of the flags without a KubeletConfiguration field, by name, such as ``root-dir``.
        sources: paths of the files, and ``command line``, lowest precedence first; empty without a configuration.
        problems: errors of the files that cannot be read or parsed, each with the path.
    """

    fields: Mapping[str, object] = field(default_factory=dict)
    flags: Mapping[str, str] = field(default_factory=dict)
    sources: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


def read_kubelet_config(root: Path, pids: Iterable[int] = ()) -> KubeletConfig:
    """Return the configuration of the kubelet of this node. Blocks.

    Args:
        root: directory that the absolute paths of files are below, normally ``/``.
        pids: PIDs of kubelet processes; the first process with a readable command line is used.

    Source: kubelet ``NewKubeletCommand``: ``loadConfigFile``, ``mergeKubeletConfigurations`` (RFC 7386), then flags.
    """
    return _Reader(root).read(pids)


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
    """Return the flag values of a command line by name; ``true`` without a value; the last value of a repeated flag."""
    flags: dict[str, str] = {}
    pending = ""
    for word in words:
        if word.startswith("-"):
            name, equals, value = word.lstrip("-").partition("=")
            flags[name] = value if equals else "true"
            pending = "" if equals else name
        elif pending:
            flags[pending], pending = word, ""
    return flags


class _Reader:
    def __init__(self, root: Path) -> None:
        self._root = root
        self._sources: list[str] = []
        self._problems: list[str] = []

    def read(self, pids: Iterable[int]) -> KubeletConfig:
        flags, from_command = self._flags(pids)
        fields: dict[str, object] = {}
        main = flags.get("config", "") or next((f"/{each}" for each in _MAIN if (self._root / each).is_file()), "")
        if main:
            fields = self._document(main)
        directories = [flags["config-dir"]] if flags.get("config-dir") else []
        if not directories and not from_command:
            directories = [f"/{each}" for each in _DROP_INS]
        for directory in directories:
            for path in self._drop_ins(directory):
                fields = merge_patch(fields, self._document(path))
        by_flags = dict(_fields_of(flags))
        if by_flags:
            self._sources.append("command line")
            fields |= by_flags
        others = {name: value for name, value in flags.items() if name not in _FIELDS and name not in _THRESHOLDS}
        return KubeletConfig(fields, others, tuple(self._sources), tuple(self._problems))

    def _flags(self, pids: Iterable[int]) -> tuple[dict[str, str], bool]:
        """Return the kubelet's flags, and whether they are the command line of a separate kubelet process."""
        words: list[str] = []
        for pid in pids:
            with suppress(psutil.Error, OSError):
                words = psutil.Process(pid).cmdline()
            if words:
                break
        name = os.path.basename(words[0]) if words else ""  # noqa: PTH119 - a string, not a Path
        if "kubelet" in name or "kubelet" in words[1:2]:
            return parse_flags(words[1:]), True
        arguments = [each for path in _RANCHER for each in self._rancher_arguments(path)]
        arguments += [word.partition("=")[2] for word in words if word.startswith("--kubelet-arg=")]
        arguments += [after for word, after in pairwise(words) if word == "--kubelet-arg" and after]
        flags = parse_flags([f"--{each.lstrip('-')}" for each in arguments])
        if not flags and (self._root / _MICROK8S).is_file():
            lines = self._text(f"/{_MICROK8S}").replace("${SNAP_DATA}", _SNAP_DATA).split()
            flags = parse_flags(lines)
        return flags, False

    def _rancher_arguments(self, path: str) -> Iterator[str]:
        """Yield the ``kubelet-arg`` entries of a k3s or rke2 configuration file and of its drop-ins."""
        directory = self._root / f"{path}.d"
        names = [path, *(f"{path}.d/{each.name}" for each in sorted(directory.glob("*.yaml")))]
        for name in names:
            if not (self._root / name).is_file():
                continue
            try:
                document = next(parse_yaml(self._text(f"/{name}")), None)
            except ValueError as error:
                self._problems.append(f"/{name}: {' '.join(str(error).split())[:200]}")
                continue
            given = document.get("kubelet-arg", ()) if isinstance(document, dict) else ()
            given = [given] if isinstance(given, str) else given
            if isinstance(given, list | tuple):
                yield from (str(each) for each in given)

    def _drop_ins(self, directory: str) -> list[str]:
        """Return the paths of the ``.conf`` files below a directory, sorted, at most 200."""
        found: list[str] = []
        start = self._root / directory.lstrip("/")
        for parent, directories, names in os.walk(start):
            directories.sort()
            below = Path(directory) / Path(parent).relative_to(start)
            found += (str(below / name) for name in names if name.endswith(".conf"))
        return sorted(found)[:_MAX_FILES]

    def _document(self, path: str) -> dict[str, object]:
        problems = len(self._problems)
        text = self._text(path)
        if len(self._problems) > problems:
            return {}
        try:
            fields = dict(read_kubelet(text))
        except ConfigError as error:
            self._problems.append(f"{path}: {error}")
            return {}
        self._sources.append(path)
        return fields

    def _text(self, path: str) -> str:
        """Return the text of a file; empty after a read error, which is recorded."""
        try:
            with (self._root / path.lstrip("/")).open("rb") as file:
                return file.read(_MAX_BYTES + 1).decode(errors="replace")
        except OSError as error:
            self._problems.append(f"cannot read {path}: {error.strerror or error}")
            return ""


def _fields_of(flags: Mapping[str, str]) -> Iterator[tuple[str, object]]:
    """Yield the name and value of each KubeletConfiguration field that a flag overrides."""
    for flag, name in _FIELDS.items():
        if flag in flags:
            value = flags[flag]
            yield name, int(value) if name in _WHOLE and value.isdecimal() else value
    for flag, name in _THRESHOLDS.items():
        if flag in flags:
            pairs = (_SIGN.split(each, maxsplit=1) for each in flags[flag].split(",") if each.strip())
            yield name, {pair[0].strip(): pair[2].strip() for pair in pairs if len(pair) == 3}
