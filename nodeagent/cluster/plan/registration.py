"""Registration of a node without a kubelet, and its cordon for the time of a graceful shutdown.

The agent creates its Node object, adopts an existing one, or refuses: a Node object of another machine, or with a
heartbeat of another process, is never changed. The cordon of an operator is kept. The agent ends a cordon of its own:
that of a shutdown, and that of the registration if the configuration no longer requires it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

import msgspec

from nodeagent.cluster.plan.heartbeat import LEASE_DURATION_S
from nodeagent.model.kubernetes import NO_KUBELET_TAINT, REGISTERED_ANNOTATION, Node, NodeSpec, NodeSystemInfo, Taint
from nodeagent.model.stops import NodeStop, StopKind
from nodeagent.record import Record, field

CORDONED_ANNOTATION: Final = "nodeagent.dev/cordoned"
"""Annotation of a node that the agent has cordoned; its value is the cause."""
CORDONED_BY_REGISTRATION: Final = "no-kubelet"
LABELS_ANNOTATION: Final = "nodeagent.dev/labels"
"""Annotation with the labels that the agent has set, as ``NAME=VALUE,...``; others are never changed."""
_TAINTS: Final = tuple(Taint(key=NO_KUBELET_TAINT, effect=effect) for effect in ("NoSchedule", "NoExecute"))


class RegistrationVerdict(StrEnum):
    """Decision on the Node object. The values are part of logs."""

    CREATE = "create"
    ADOPT = "adopt"
    KEEP = "registered"
    OTHER_MACHINE = "other-machine"
    UNKNOWN_MACHINE = "unknown-machine"
    OTHER_HEARTBEAT = "other-heartbeat"
    DELETING = "being-deleted"


class RegistrationPlan(Record):
    """Registration decision with its reason.

    Attributes:
        node: Node object to create; ``None`` for verdicts other than ``CREATE``.
        patch: patch of an existing Node object; ``None`` without changes. The patch fails with a conflict if the object
            has changed.
        kept: values of an adopted Node object that differ from the configuration and are kept.
    """

    verdict: RegistrationVerdict
    reason: str
    node: Node | None = None
    patch: Mapping[str, Any] | None = None
    kept: tuple[str, ...] = ()


def plan_registration(
    found: Node | None, own: Node, policy: RegistrationPolicy, *, lease_free: bool, contested: bool = False
) -> RegistrationPlan:
    """Return the decision to create, adopt, keep or refuse the Node object of this machine.

    Args:
        found: the Node object in the cluster; ``None`` if it does not exist.
        own: complete Node object of this machine.
        policy: settings of node registration.
        lease_free: whether no other process renews the Lease of the object.
        contested: whether another process renewed the Lease of a Node object that the agent had registered.
    """
    if found is None:
        return RegistrationPlan(RegistrationVerdict.CREATE, "no Node object", node=_new_node(own, policy))
    if found.metadata.deletion_timestamp is not None:
        return RegistrationPlan(RegistrationVerdict.DELETING, "the Node object is being deleted")
    refusal = _foreign(found, own)
    if refusal is not None:
        return refusal
    registered = REGISTERED_ANNOTATION in found.metadata.annotations
    if (contested or not registered) and not lease_free:
        because = f"its Lease was renewed by another process within {LEASE_DURATION_S} s"
        return RegistrationPlan(RegistrationVerdict.OTHER_HEARTBEAT, because)
    if registered:
        # The taints may have been removed while a kubelet ran on this node.
        taints = _with_own_taints(found, policy)
        metadata = {"resourceVersion": found.metadata.resource_version}
        patch = {"metadata": metadata, "spec": {"taints": taints}} if taints else None
        return RegistrationPlan(RegistrationVerdict.KEEP, "registered by an earlier run of the agent", patch=patch)
    adoption, kept = _adoption(found, own, policy)
    return RegistrationPlan(
        RegistrationVerdict.ADOPT, "the Node object of this machine has no heartbeat", patch=adoption, kept=kept
    )


def _foreign(found: Node, own: Node) -> RegistrationPlan | None:
    """Return the refusal of a Node object of another or an unknown machine; ``None`` if the object is acceptable.

    A Node object without ids, such as an object created by a cloud provider, is acceptable: no machine has reported its
    status yet.
    """
    theirs, ours = found.status.node_info, own.status.node_info
    if theirs is None or ours is None:
        return None
    refusal = _id_mismatch(theirs, ours.machine_id, ours.system_uuid)
    return None if refusal is None else RegistrationPlan(*refusal)


def unproven_because(found: Node | None, machine_id: str, system_uuid: str) -> str:
    """Return the reason why a Node object is not proven to be of this machine; empty if both ids match.

    With a wrong node name or cluster, the pod list would contain no pod of this node, and all pods would count as
    deleted.

    Args:
        found: the Node object; ``None`` if it does not exist.
        machine_id: machine id of this machine; empty if unknown.
        system_uuid: system UUID of this machine; empty if unknown.
    """
    if found is None:
        return "there is no Node object with this name"
    info = found.status.node_info
    if info is None or not info.machine_id or not info.system_uuid:
        return "the Node object has no ids of its machine"
    refusal = _id_mismatch(info, machine_id, system_uuid)
    return "" if refusal is None else refusal[1]


def _id_mismatch(theirs: NodeSystemInfo, machine_id: str, system_uuid: str) -> tuple[RegistrationVerdict, str] | None:
    """Return verdict and reason if an id in a Node object differs from that of this machine, or cannot be compared."""
    ids = (("machine id", theirs.machine_id, machine_id), ("system UUID", theirs.system_uuid, system_uuid))
    for name, their_id, our_id in ids:
        if their_id and our_id and their_id.lower() != our_id.lower():
            because = f"the Node object is of another machine: its {name} is {their_id}, this machine has {our_id}"
            return RegistrationVerdict.OTHER_MACHINE, because
    for name, their_id, our_id in ids:
        if their_id and not our_id:
            because = f"the {name} of this machine is unknown: it cannot be compared with that of the Node object"
            return RegistrationVerdict.UNKNOWN_MACHINE, because
    return None


def _new_node(own: Node, policy: RegistrationPolicy) -> Node:
    labels = {**policy.labels, **own.metadata.labels}
    annotations = {REGISTERED_ANNOTATION: "created", LABELS_ANNOTATION: _label_text(labels)}
    if policy.unschedulable:
        annotations[CORDONED_ANNOTATION] = CORDONED_BY_REGISTRATION
    metadata = msgspec.structs.replace(own.metadata, labels=labels, annotations=annotations)
    spec = NodeSpec(
        provider_id=policy.provider_id,
        unschedulable=policy.unschedulable,
        taints=_TAINTS if policy.taint else (),
    )
    return msgspec.structs.replace(own, metadata=metadata, spec=spec)


def _adoption(found: Node, own: Node, policy: RegistrationPolicy) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the patch that adopts a Node object by adding missing fields, and the differing values that are kept."""
    wanted = {**policy.labels, **own.metadata.labels}
    present = found.metadata.labels
    added = {name: value for name, value in wanted.items() if name not in present}
    kept = [f"label {name}={present[name]}" for name in wanted if present.get(name, wanted[name]) != wanted[name]]
    annotations = {REGISTERED_ANNOTATION: "adopted", LABELS_ANNOTATION: _label_text(added)}
    spec: dict[str, Any] = {}
    if policy.unschedulable and not found.spec.unschedulable:
        spec["unschedulable"] = True
        annotations[CORDONED_ANNOTATION] = CORDONED_BY_REGISTRATION
    if policy.provider_id and not found.spec.provider_id:
        spec["providerID"] = policy.provider_id
    elif policy.provider_id and found.spec.provider_id != policy.provider_id:
        kept.append(f"providerID {found.spec.provider_id}")
    taints = _with_own_taints(found, policy)
    if taints:
        spec["taints"] = taints
    metadata: dict[str, Any] = {"resourceVersion": found.metadata.resource_version, "annotations": annotations}
    if added:
        metadata["labels"] = added
    return {"metadata": metadata, **({"spec": spec} if spec else {})}, tuple(kept)


def _with_own_taints(found: Node, policy: RegistrationPolicy) -> list[Any]:
    """Return the taints of the object plus missing taints of the agent; empty if none is missing.

    The list contains all taints, since a patch replaces the whole list.
    """
    held = {(each.key, each.effect) for each in found.spec.taints}
    missing = tuple(each for each in _TAINTS if policy.taint and (each.key, each.effect) not in held)
    return [msgspec.to_builtins(each) for each in (*found.spec.taints, *missing)] if missing else []


class LabelPlan(Record):
    """Changes of the labels of a Node object.

    Attributes:
        patch: patch of the Node; ``None`` without changes. The patch fails with a conflict if the object has changed.
        changed: set labels, and removed ones as ``NAME-``, for display.
        kept: labels with another value than configured, which the agent did not set, for display.
    """

    patch: Mapping[str, Any] | None = None
    changed: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()


def plan_labels(found: Node, wanted: Mapping[str, str]) -> LabelPlan:
    """Return the changes of the configured labels of a registered node.

    Missing labels are set. A label is replaced or removed if the agent has set its present value.

    Source: kubectl apply, three-way merge with the annotation of the last applied object.
    """
    present, before = found.metadata.labels, found.metadata.annotations.get(LABELS_ANNOTATION, "")
    pairs = (each.partition("=") for each in before.split(",") if each)
    own = {name: value for name, _, value in pairs if present.get(name) == value}
    changes: dict[str, str | None] = {
        name: value for name, value in wanted.items() if name not in present or own.get(name, value) != value
    }
    changes |= {name: None for name in own if name not in wanted}
    after = _label_text({name: value for name, value in wanted.items() if name in changes or present[name] == value})
    kept = tuple(
        f"{name}={present[name]}"
        for name, value in sorted(wanted.items())
        if name not in changes and present[name] != value
    )
    if not changes and after == before:
        return LabelPlan(kept=kept)
    metadata = {
        "resourceVersion": found.metadata.resource_version,
        "annotations": {LABELS_ANNOTATION: after},
        **({"labels": changes} if changes else {}),
    }
    shown = tuple(f"{name}-" if value is None else f"{name}={value}" for name, value in sorted(changes.items()))
    return LabelPlan({"metadata": metadata}, shown, kept)


def _label_text(labels: Mapping[str, str]) -> str:
    return ",".join(f"{name}={value}" for name, value in sorted(labels.items()))


CORDONED_FOR_SHUTDOWN: Final = "shutdown"
"""Value of the annotation while the agent cordons the node for a shutdown."""


def has_stale_mark(found: Node) -> bool:
    """Return whether another program ended the agent's cordon; its annotation would mark a later cordon as the agent's.

    Source: ``kubectl uncordon`` changes ``spec.unschedulable`` only.
    """
    return CORDONED_ANNOTATION in found.metadata.annotations and not found.spec.unschedulable


def has_ending_cordon(found: Node, policy: RegistrationPolicy) -> bool:
    """Return whether the node has a cordon of a shutdown, or of a registration that the policy does not cordon."""
    cause = found.metadata.annotations.get(CORDONED_ANNOTATION) if found.spec.unschedulable else None
    return cause == CORDONED_FOR_SHUTDOWN or (cause == CORDONED_BY_REGISTRATION and not policy.unschedulable)


def plan_cordon(found: Node) -> Mapping[str, Any] | None:
    """Return the patch that cordons a node for its shutdown; ``None`` if it is unschedulable already.

    It fails with a conflict if the object has changed, since an operator may have cordoned it meanwhile.
    """
    if found.spec.unschedulable:
        return None
    return _patch(found, CORDONED_FOR_SHUTDOWN, {"unschedulable": True})


def plan_uncordon(found: Node, policy: RegistrationPolicy, *, is_stale: bool = False) -> Mapping[str, Any] | None:
    """Return the patch that ends a cordon of the agent, or removes a stale annotation; ``None`` without either.

    Before a shutdown with a cordon the node was schedulable. If it is registered unschedulable, an operator has
    uncordoned it. The patch fails with a conflict if the Node object has changed.

    Args:
        found: the Node object.
        policy: settings of node registration.
        is_stale: whether the annotation was stale at an earlier reading, so that a cordon is of another program.
    """
    if has_stale_mark(found) or (is_stale and CORDONED_ANNOTATION in found.metadata.annotations):
        return _patch(found, None, {})
    return _patch(found, None, {"unschedulable": None}) if has_ending_cordon(found, policy) else None


def _patch(found: Node, annotation: str | None, spec: dict[str, Any]) -> dict[str, Any]:
    metadata = {"resourceVersion": found.metadata.resource_version, "annotations": {CORDONED_ANNOTATION: annotation}}
    return {"metadata": metadata, **({"spec": spec} if spec else {})}


UNCLEAN_STOP_ANNOTATION: Final = "nodeagent.dev/unclean-stop"
"""Annotation of a node whose last stop was unclean; its value is the time of the last record of the running node."""


def plan_unclean_stop(found: Node, last: NodeStop) -> Mapping[str, Any] | None:
    """Return the patch of the annotation for the last stop of the node; ``None`` without a change."""
    is_unclean = last.kind is StopKind.UNCLEAN
    value = last.started_at.isoformat(timespec="seconds").replace("+00:00", "Z") if is_unclean else None
    if found.metadata.annotations.get(UNCLEAN_STOP_ANNOTATION) == value:
        return None
    return {"metadata": {"uid": found.metadata.uid, "annotations": {UNCLEAN_STOP_ANNOTATION: value}}}


TAINT_KEYS: Final = {"images": "nodeagent.dev/image-gc-degraded", "containers": "nodeagent.dev/container-gc-degraded"}
"""Key of the taint that follows the node condition of a loop, by loop name."""
TAINT_EFFECTS: Final = ("NoSchedule", "PreferNoSchedule")


class RegistrationPolicy(Record):
    """Settings of node registration.

    Attributes:
        labels: labels in addition to host name, architecture and operating system.
        provider_id: ``spec.providerID`` of the node; empty for no id.
        unschedulable: whether the node is registered cordoned.
        taint: whether the node is registered with the taint ``nodeagent.dev/no-kubelet``.
    """

    labels: Mapping[str, str] = field(default_factory=dict)
    provider_id: str = ""
    unschedulable: bool = True
    taint: bool = True


class Reservation(Record):
    """Resources reserved for the system, subtracted from allocatable in addition to the hard eviction thresholds."""

    cpu_millis: int = 0
    memory_bytes: int = 0
    ephemeral_bytes: int = 0


NO_RESERVATION: Final = Reservation()
