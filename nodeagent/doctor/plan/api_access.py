"""Checks of ``nodeagent doctor`` on the access to the API server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nodeagent.doctor.plan.node import Finding, Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

API_CHECK: Final = "kubernetes"
TAINT_RULE: Final = "patch nodes with taints (not permitted to node certificates; configure a service account)"
PODS_CHECK: Final = "kubernetes-pods"
_SOON_S: Final = 7 * 86_400.0
_RENEW: Final = "renew the certificate; the agent reads the new file without a restart"
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
    until = "" if expires_at is None else f"{expires_at:%Y-%m-%d %H:%M} UTC"
    if left_s is not None and left_s <= 0:
        return Finding(API_CHECK, Verdict.PROBLEM, f"the client certificate expired at {until}", _RENEW)
    if error:
        return Finding(API_CHECK, Verdict.PROBLEM, error, _fix(error))
    if missing:
        lacking = f"the identity of the agent lacks: {', '.join(missing)}"
        flags = "".join(f" --{each.replace('_', '-')}" for each in options)
        fix = f"nodeagent manifest rbac{flags} | kubectl apply -f -"
        if in_pod:
            fix = "print nodeagent manifest daemonset with the options of these settings, such as --api, and apply it"
        return Finding(API_CHECK, Verdict.PROBLEM, lacking, fix)
    if left_s is not None and left_s < _SOON_S:
        return Finding(API_CHECK, Verdict.WARNING, f"the client certificate expires at {until}", _RENEW)
    state = f"the API server answers and grants every rule; {foreign or 'the Node object is of this machine'}"
    if has_node and foreign:
        return Finding(API_CHECK, Verdict.PROBLEM, state, _fix(foreign))
    return Finding(API_CHECK, Verdict.OK, state)


def check_pod_access(pods: int, problem: str) -> Finding:
    """Return the finding on the initial list of the pod watch.

    Args:
        pods: number of listed pods.
        problem: cause of a failure, or reason why the list cannot prove pod deletions; empty without a problem.
    """
    if problem:
        return Finding(PODS_CHECK, Verdict.PROBLEM, f"{problem}: no deletion of a pod is proven", _fix(problem))
    return Finding(PODS_CHECK, Verdict.OK, f"the API server lists {pods} pods of this node, whose ids match")


def _fix(error: str) -> str:
    for words, fix in _FIXES:
        if words in error:
            return fix
    return "check kubernetes.server or kubeconfig, and IPAddressAllow= of the unit (drop-in api-server.conf)"
