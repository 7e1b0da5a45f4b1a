"""Manifests that run the agent in a container beside a kubelet: as a DaemonSet, or as a static pod."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final

from nodeagent.cluster.plan.rules import NAME, HostPath, host_paths, role_documents
from nodeagent.record import Record, field

METRICS_PORT: Final = 20310
MANIFESTS: Final = "/etc/kubernetes/manifests"
CONFIG_DIRECTORY: Final = "/etc/nodeagent"
CAPABILITIES: Final[Mapping[str, str]] = {
    "DAC_OVERRIDE": "files of other users below the log roots",
    "DAC_READ_SEARCH": "sizes of directories of other users in writable layers",
}
"""Linux capabilities added to the agent's container after ``drop: ALL``, with their purpose."""
IN_CLUSTER: Final[Mapping[str, str]] = {
    "server": "https://kubernetes.default.svc",
    "ca_file": "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt",
    "token_file": "/var/run/secrets/kubernetes.io/serviceaccount/token",
}
"""Settings of the access to the API server in a pod with a service account."""
API_FEATURES: Final[Mapping[str, bool]] = {"watch_pods": True, "publish_conditions": True, "publish_events": True}
"""Settings of the option ``--api``."""
ACCOUNT: Final = f"{NAME}-daemonset"
"""Name of the service account and the roles of the DaemonSet. ``manifest rbac`` prints another account, for agents
outside of pods: with one account, deleting either manifest would end the access of both."""
_STOP_WITHIN_S: Final = 60
_LABEL: Final = "app.kubernetes.io/name"


class Workload(Record):
    """Parameters of the manifests.

    Attributes:
        version: version of the agent.
        socket: path of the runtime socket.
        image_root: root directory of the runtime's images and snapshots.
        manifests: directory of static pod manifests; empty for a kubelet without static pods.
        dry_run: whether the agent runs in dry-run mode, without removals.
        max_unavailable: number or percentage of nodes updated concurrently.
        scraped: whether the metrics endpoint listens on all addresses of the node, for Prometheus in the cluster.
        kubernetes: enabled settings of ``[kubernetes]``; empty without access to the API server.
    """

    image: str
    version: str
    namespace: str = "kube-system"
    socket: str = "/run/containerd/containerd.sock"
    image_root: str = "/var/lib/containerd"
    manifests: str = MANIFESTS
    dry_run: bool = True
    max_unavailable: str = "10%"
    scraped: bool = False
    kubernetes: Mapping[str, bool | str] = field(default_factory=dict)

    @property
    def labels(self) -> dict[str, str]:
        """Labels of all objects and the pod selector."""
        return {_LABEL: NAME}

    @property
    def host_paths(self) -> tuple[HostPath, ...]:
        """Host paths mounted in the agent's container."""
        return tuple(host_paths(self.socket.rpartition("/")[0], self.image_root, self.manifests))

    @property
    def most_updated(self) -> int | str:
        """``max_unavailable`` as an API value: an integer, or a string with a percentage."""
        return int(self.max_unavailable) if self.max_unavailable.isdecimal() else self.max_unavailable

    def config(self) -> str:
        """Return the configuration file of the agent.

        The role is set to ``beside-kubelet``: a pod is always run by a kubelet, and from a container the agent cannot
        detect all traces of a kubelet.
        """
        listen = f'\n[metrics]\nlisten = "0.0.0.0:{METRICS_PORT}"\n' if self.scraped else ""
        kubelet = f'\n[kubelet]\nmanifests = "{self.manifests}"\n' if self.manifests != MANIFESTS else ""
        values = {**self.kubernetes, **IN_CLUSTER} if self.kubernetes else {}
        lines = [f"{name} = {json.dumps(value)}\n" for name, value in values.items()]
        kubernetes = "".join(["\n[kubernetes]\n", *lines] if lines else [])
        return (
            f"dry_run = {str(self.dry_run).lower()}\n"
            f'role = "beside-kubelet"\n\n[runtime]\nendpoint = "unix://{self.socket}"\n{kubelet}{listen}{kubernetes}'
        )


def daemon_set_objects(workload: Workload) -> tuple[dict[str, Any], ...]:
    """Return configuration and DaemonSet, service account and roles if the API is used, and a PodMonitor if scraped."""
    metadata = {"name": NAME, "namespace": workload.namespace, "labels": workload.labels}
    config = workload.config()
    version = {"app.kubernetes.io/version": workload.version}
    digest = hashlib.sha256(config.encode()).hexdigest()
    account = role_documents(workload.kubernetes, name=ACCOUNT, namespace=workload.namespace)
    objects: list[dict[str, Any]] = [
        *(account if workload.kubernetes else ()),
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"config.toml": config}},
        {
            "apiVersion": "apps/v1",
            "kind": "DaemonSet",
            "metadata": {**metadata, "labels": {**workload.labels, **version}},
            "spec": {
                "selector": {"matchLabels": workload.labels},
                "updateStrategy": {
                    "type": "RollingUpdate",
                    "rollingUpdate": {"maxUnavailable": workload.most_updated},
                },
                "template": {
                    "metadata": {
                        "labels": {**workload.labels, **version},
                        "annotations": {f"{NAME}/config-sha256": digest},
                    },
                    "spec": {
                        **({"serviceAccountName": ACCOUNT} if workload.kubernetes else {}),
                        **_pod_spec(workload, {"name": "config", "configMap": {"name": NAME}}, arguments=()),
                    },
                },
            },
        },
    ]
    if workload.scraped:
        objects.append(
            {
                "apiVersion": "monitoring.coreos.com/v1",
                "kind": "PodMonitor",
                "metadata": metadata,
                "spec": {
                    "selector": {"matchLabels": workload.labels},
                    "podMetricsEndpoints": [{"port": "metrics", "path": "/metrics"}],
                },
            }
        )
    return tuple(objects)


def static_pod(workload: Workload) -> dict[str, Any]:
    """Return the static pod manifest, with the configuration mounted from a host directory.

    A static pod cannot reference a ConfigMap or a service account. Source: kubelet, static pods.
    """
    directory = {"path": CONFIG_DIRECTORY, "type": "Directory"}
    arguments = ("--dry-run",) if workload.dry_run else ()
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": NAME,
            "namespace": workload.namespace,
            "labels": {**workload.labels, "app.kubernetes.io/version": workload.version},
        },
        "spec": _pod_spec(workload, {"name": "config", "hostPath": directory}, arguments=arguments),
    }


def _pod_spec(workload: Workload, config: dict[str, Any], *, arguments: tuple[str, ...]) -> dict[str, Any]:
    paths = workload.host_paths
    mounts: list[dict[str, Any]] = [{"name": "config", "mountPath": CONFIG_DIRECTORY, "readOnly": True}]
    mounts += map(_mount, paths)
    mounts.append({"name": "tmp", "mountPath": "/tmp"})  # noqa: S108 - private to the container
    volumes: list[dict[str, Any]] = [config]
    volumes += [
        {
            "name": each.name,
            "hostPath": {
                "path": each.path,
                "type": "File" if each.is_file else "DirectoryOrCreate" if each.create else "Directory",
            },
        }
        for each in paths
    ]
    volumes.append({"name": "tmp", "emptyDir": {"medium": "Memory", "sizeLimit": "16Mi"}})
    return {
        "priorityClassName": "system-node-critical",
        "automountServiceAccountToken": bool(workload.kubernetes),
        "enableServiceLinks": False,
        "hostPID": False,
        "hostNetwork": True,
        **({"dnsPolicy": "ClusterFirstWithHostNet"} if workload.kubernetes else {}),
        "terminationGracePeriodSeconds": _STOP_WITHIN_S,
        "nodeSelector": {"kubernetes.io/os": "linux"},
        "tolerations": [{"operator": "Exists"}],
        "containers": [_container(workload, mounts, arguments)],
        "volumes": volumes,
    }


def _mount(path: HostPath) -> dict[str, Any]:
    propagation = {"mountPropagation": "HostToContainer"} if path.has_mounts else {}
    return {"name": path.name, "mountPath": path.path, "readOnly": not path.writable, **propagation}


def _container(workload: Workload, mounts: list[dict[str, Any]], arguments: tuple[str, ...]) -> dict[str, Any]:
    port = {"name": "metrics", "containerPort": METRICS_PORT, "hostPort": METRICS_PORT, "protocol": "TCP"}
    return {
        "name": NAME,
        "image": workload.image,
        "command": [NAME, "run", "--config", f"{CONFIG_DIRECTORY}/config.toml", *arguments],
        "env": [{"name": "NODEAGENT_KUBELET__NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
        **({"ports": [port]} if workload.scraped else {}),
        "livenessProbe": {**_probe("/healthz"), "initialDelaySeconds": 30, "periodSeconds": 30, "failureThreshold": 4},
        "readinessProbe": {**_probe("/readyz"), "periodSeconds": 10, "failureThreshold": 3},
        "resources": {
            "requests": {"cpu": "10m", "memory": "64Mi"},
            "limits": {"memory": "1Gi"},
        },
        "securityContext": {
            "runAsUser": 0,
            "runAsGroup": 0,
            "privileged": False,
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"], "add": sorted(CAPABILITIES)},
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "volumeMounts": mounts,
    }


def _probe(path: str) -> dict[str, Any]:
    """Return a probe over the control socket, since every user of the node can occupy the metrics listener."""
    return {"exec": {"command": [NAME, "__probe", path]}, "timeoutSeconds": 5}
