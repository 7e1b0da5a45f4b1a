"""``nodeagent manifest``: Kubernetes manifests of the agent, printed for ``kubectl apply``."""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from nodeagent import __version__
from nodeagent.cluster.plan import workloads
from nodeagent.cluster.plan.rules import NAME, SETTINGS, STATE, role_documents, rules_for
from nodeagent.cluster.settings import KubernetesSection
from nodeagent.config.validation import InvalidDocumentError, convert
from nodeagent.errors import UsageError
from nodeagent.text import escape

_IMAGE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]{0,500}", re.ASCII)
_NAMESPACE: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", re.ASCII)
_PATH: Final = re.compile(r"(/[A-Za-z0-9._+-]+)+", re.ASCII)
_UNAVAILABLE: Final = re.compile(r"[1-9][0-9]{0,5}|([1-9][0-9]?|100)%", re.ASCII)
_SHARED: Final = frozenset({"/etc/kubernetes", "/var/lib", "/var/lib/kubelet", "/var/run"})
_REASONS: Final[Mapping[str, str]] = {
    "automountServiceAccountToken: false": "no API server is used",
    "automountServiceAccountToken: true": "access to the API server, with the rules of the service account",
    "dnsPolicy:": "the name of the API server is resolved by the DNS of the cluster, also on the host network",
    "env:": "the name of the Node object can differ from the host name",
    "hostPID:": "no process of the host is read: the role is configured, and the kubelet evicts and stops pods",
    "hostNetwork:": "metrics on loopback, and a start without the pod network, as on a full disk",
    "mountPropagation:": "without propagation the pod would keep the files of removed containers on the disk",
    "runAsUser:": "the socket of the runtime is owned by root",
    "tolerations:": "a node under disk pressure is tainted when the agent is needed most",
}
"""Comment printed above a line of a pod manifest, by the beginning of the line."""


def print_rbac(nodes: Sequence[str], settings: Collection[str]) -> None:
    """Print service account, roles and bindings, with a comment on the purpose of each rule.

    Args:
        nodes: node names to which rules are limited where RBAC allows a limit; empty for all nodes.
        settings: names of the enabled settings.

    Raises:
        UsageError: no setting is enabled, or a node name is empty or not printable.
    """
    if not settings:
        options = ", ".join(f"--{each.replace('_', '-')}" for each in SETTINGS)
        raise UsageError(f"no setting requires a rule: give the options of the enabled settings ({options})")
    for each in nodes:
        if not each or escape(each) != each or " " in each:
            raise UsageError(f"--node {escape(each)!r}: not a name of a node")
    sys.stdout.write(_documents(role_documents(settings, nodes), settings))


def print_daemon_set(workload: workloads.Workload) -> None:
    """Print the manifests of ConfigMap and DaemonSet, with the API enabled also of service account and roles.

    Raises:
        UsageError: a value is not valid in a manifest.
    """
    _check(workload)
    sys.stdout.writelines((_head(workload), _documents(workloads.daemon_set_objects(workload), workload.kubernetes)))


def write_kustomization(workload: workloads.Workload, directory: Path) -> None:
    """Write the manifests of the DaemonSet as a kustomization into a new directory.

    kustomize generates the ConfigMap from ``config.toml`` and appends a hash to its name: the pods are updated if an
    overlay replaces the file.

    Raises:
        UsageError: a value is not valid in a manifest, or the directory exists or cannot be created.
    """
    _check(workload)
    generator = {
        "name": NAME,
        "namespace": workload.namespace,
        "files": ["config.toml"],
        "options": {"labels": workload.labels},
    }
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": ["nodeagent.yaml"],
        "configMapGenerator": [generator],
    }
    objects = [each for each in workloads.daemon_set_objects(workload) if each["kind"] != "ConfigMap"]
    texts = {
        "kustomization.yaml": _yaml(kustomization),
        "nodeagent.yaml": _head(workload) + _documents(objects, workload.kubernetes),
        "config.toml": workload.config(),
    }
    try:
        directory.mkdir(parents=True)
        for name, text in texts.items():
            (directory / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--kustomization: cannot write {escape(str(error.filename))}: {error.strerror}") from error


def print_static_pod(workload: workloads.Workload) -> None:
    """Print the manifest of the static pod, with the required configuration file as a comment.

    Raises:
        UsageError: a value is not valid in a manifest.
    """
    _check(workload)
    config = "".join(f"#   {line}".rstrip() + "\n" for line in workload.config().splitlines())
    note = f"# Required on the node before, as {workloads.CONFIG_DIRECTORY}/config.toml:\n{config}"
    sys.stdout.writelines((_head(workload), note, _yaml(workloads.static_pod(workload))))


def _check(workload: workloads.Workload) -> None:
    try:
        section = convert(KubernetesSection, workload.kubernetes and {**workload.kubernetes, **workloads.IN_CLUSTER})
    except InvalidDocumentError as error:
        raise UsageError(f"{error.faults[0].cause}; see --api") from error
    in_force = section.settings(Path(STATE))
    for name in workload.kubernetes:
        if not getattr(in_force, name):  # would grant permissions that are not used
            raise UsageError(f"--{name.replace('_', '-')}: the value disables the setting")
    directory = workload.socket.rpartition("/")[0]
    for option, value, pattern, form in (
        ("--image", workload.image, _IMAGE, "an image reference"),
        ("--namespace", workload.namespace, _NAMESPACE, "the name of a namespace"),
        ("--socket", workload.socket, _PATH, "an absolute path"),
        ("--image-root", workload.image_root, _PATH, "an absolute path"),
        ("--manifests", workload.manifests or "/none", _PATH, "an absolute path, or empty"),
        ("--max-unavailable", workload.max_unavailable, _UNAVAILABLE, "a number from 1, or 1% to 100%"),
    ):
        if not pattern.fullmatch(value) or "/../" in f"{value}/":
            raise UsageError(f"{option} {escape(value)!r}: not {form}")
    for option, path in (
        ("--socket", directory),
        ("--image-root", workload.image_root),
        ("--manifests", workload.manifests or "/a/none"),
    ):
        if path.count("/") < 2 or path in _SHARED:
            raise UsageError(f"{option}: {path or '/'} is shared with other services; it is not mounted as a whole")


def _head(workload: workloads.Workload) -> str:
    """Return the comment above a manifest: version, mounts and capabilities with their purpose."""
    lines = [
        f"nodeagent {__version__} beside a kubelet{', dry run: removes nothing' if workload.dry_run else ''}.",
        "Mounts of the host:",
        *(
            f"  {each.path} ({'writable' if each.writable else 'read-only'}): {each.purpose}"
            for each in workload.host_paths
        ),
        "Capabilities, all others are dropped:",
        *(f"  {name}: {purpose}" for name, purpose in workloads.CAPABILITIES.items()),
    ]
    return "".join(f"# {line}\n" for line in lines)


def _documents(objects: Iterable[dict[str, Any]], settings: Collection[str]) -> str:
    """Return objects as YAML, with the purpose of each rule above a role."""
    return "---\n".join(f"{_purposes(each, settings)}{_yaml(each)}" for each in objects)


def _purposes(document: dict[str, Any], settings: Collection[str]) -> str:
    if "rules" not in document:
        return ""
    namespace = document["metadata"].get("namespace", "")
    return "".join(
        f"# {', '.join(rule.verbs)} {rule.resource}: {rule.purpose}\n"
        for rule in rules_for(settings)
        if rule.namespace == namespace
    )


class _Dumper(yaml.SafeDumper):
    """YAML dumper that writes multi-line text as a block scalar."""


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)


_Dumper.add_representer(str, _text)
_Dumper.ignore_aliases = lambda *_: True  # type: ignore[method-assign]


def _yaml(document: dict[str, Any]) -> str:
    """Return an object as YAML, with the comments of ``_REASONS`` above their lines."""
    lines = []
    for line in yaml.dump(document, Dumper=_Dumper, sort_keys=False).splitlines():
        start = line.lstrip(" ")
        reason = next((text for key, text in _REASONS.items() if start.startswith(key)), None)
        if reason is not None:
            lines.append(f"{line[: len(line) - len(start)]}# {reason}")
        lines.append(line)
    return "".join(f"{line}\n" for line in lines)
