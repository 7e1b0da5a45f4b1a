"""Which pods are up, and what their labels tell of them."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from nodeagent.model import Container, ContainerState, Sandbox, ShutdownPod
from nodeagent.plan.pods_up import PodUp, pods_up

if TYPE_CHECKING:
    from collections.abc import Mapping

NO_NOTES: Final[Mapping[str, str]] = MappingProxyType({})
UID = "io.kubernetes.pod.uid"
NAMES = {UID: "u1", "io.kubernetes.pod.name": "web", "io.kubernetes.pod.namespace": "shop"}


def sandbox(uid: str = "u1", annotations: Mapping[str, str] = NO_NOTES, *, ready: bool = True) -> Sandbox:
    labels = {**NAMES, UID: uid, "app": "web"}
    return Sandbox(f"s-{uid}", "web", "shop", uid, ready, labels=labels, annotations=annotations)


def container(
    name: str, state: ContainerState = ContainerState.RUNNING, *, home: str = "s-u1", uid: str = "u1", grace: str = ""
) -> Container:
    annotations = {"io.kubernetes.pod.terminationGracePeriod": grace} if grace else {}
    return Container(name, name, home, state, labels={**NAMES, UID: uid}, annotations=annotations)


def test_running_containers_of_a_ready_sandbox() -> None:
    (up,) = pods_up([sandbox()], [container("a"), container("b", ContainerState.EXITED), container("c")], {})
    assert up == PodUp(
        ShutdownPod("u1", "shop", "web", labels={"app": "web"}, container_ids=("a", "c")), sandbox_ids=("s-u1",)
    )


def test_what_may_run_counts_as_running() -> None:
    (up,) = pods_up([sandbox(ready=False)], [container("a", ContainerState.UNKNOWN)], {})
    assert (up.pod.container_ids, up.sandbox_ids) == (("a",), ())


def test_nothing_up_is_no_pod() -> None:
    assert pods_up([sandbox(ready=False)], [container("a", ContainerState.CREATED)], {}) == ()


def test_a_ready_sandbox_alone_is_a_pod() -> None:
    (up,) = pods_up([sandbox()], [], {})
    assert (up.pod.container_ids, up.sandbox_ids) == ((), ("s-u1",))


def test_a_container_without_its_sandbox_belongs_to_the_pod_it_names() -> None:
    (up,) = pods_up([], [container("a", home="lost")], {})
    assert (up.pod.uid, up.pod.namespace, up.pod.name, up.pod.container_ids) == ("u1", "shop", "web", ("a",))


def test_sandboxes_of_one_pod_are_one_pod() -> None:
    second = Sandbox("s-2", "web", "shop", "u1", ready=True, labels=NAMES)
    (up,) = pods_up([sandbox(), second], [container("a"), container("b", home="s-2")], {})
    assert (up.pod.container_ids, up.sandbox_ids) == (("a", "b"), ("s-u1", "s-2"))


def test_what_was_told_before_stays_and_containers_are_those_of_now() -> None:
    known = ShutdownPod("u1", "shop", "web", 7, "kubelet /pods", container_ids=("old",), termination_grace_s=3)
    (up,) = pods_up([sandbox()], [container("new")], {"u1": known})
    assert up.pod == ShutdownPod("u1", "shop", "web", 7, "kubelet /pods", container_ids=("new",), termination_grace_s=3)


def test_labels_and_annotations_tell_what_they_can() -> None:
    told = {"kubernetes.io/config.source": "file", "nodeagent.dev/priority": "1000"}
    containers = [container("a", grace="30"), container("b", grace="45"), container("c", grace="soon")]
    (up,) = pods_up([sandbox(annotations=told)], containers, {})
    assert (up.pod.static, up.pod.static_source) == (True, "annotation kubernetes.io/config.source=file")
    assert (up.pod.priority, up.pod.priority_source) == (1000, "annotation nodeagent.dev/priority")
    assert up.pod.termination_grace_s == 45


def test_senseless_numbers_are_left_out() -> None:
    (up,) = pods_up([sandbox(annotations={"nodeagent.dev/priority": "high"})], [container("a", grace="-1")], {})
    assert (up.pod.priority, up.pod.priority_source, up.pod.termination_grace_s) == (None, "", None)
