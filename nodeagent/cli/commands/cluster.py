"""Commands that print Kubernetes objects: the Node object of this node, and manifests to run the agent in a cluster."""

from pathlib import Path
from typing import Annotated

import typer

from nodeagent.cli.exit_codes import EPILOG
from nodeagent.cli.options import ConfigOption, EndpointOption, Output, OutputOption, at_endpoint, command_group

node_app = command_group("Describe this node as a Node object of Kubernetes.")


@node_app.command("describe", epilog=EPILOG)
def node_describe(
    config: ConfigOption = None,
    endpoint: EndpointOption = None,
    output: OutputOption = Output.TABLE,
    show_images: Annotated[bool, typer.Option("--images", help="List the images of the status too")] = False,
) -> None:
    """Show the node status: conditions, capacity, versions.

    The command reads the node itself; no cluster is needed. -o json and -o yaml print a v1.Node object.
    """
    from nodeagent.cli.node_description import describe  # noqa: PLC0415

    describe(config, at_endpoint(endpoint), output.value, images=show_images)


ImageOption = Annotated[str, typer.Option("--image", metavar="IMAGE", help="Image of the agent")]
NamespaceOption = Annotated[str, typer.Option("--namespace", metavar="NAME", help="Namespace of the objects")]
DryRunSwitch = Annotated[
    bool, typer.Option("--dry-run/--no-dry-run", help="Plan and log only; --no-dry-run enables removals")
]
SocketOption = Annotated[str, typer.Option("--socket", metavar="PATH", help="Socket of the container runtime")]
ImageRootOption = Annotated[
    str, typer.Option("--image-root", metavar="DIR", help="Directory of the runtime's images and snapshots")
]
ManifestsOption = Annotated[
    str, typer.Option("--manifests", metavar="DIR", help="Directory of static pod manifests; empty for none")
]
_SOCKET = "/run/containerd/containerd.sock"
_IMAGE_ROOT = "/var/lib/containerd"
_MANIFESTS = "/etc/kubernetes/manifests"

manifest_app = command_group("Print objects for a Kubernetes cluster.")


@manifest_app.command("rbac", epilog=EPILOG)
def manifest_rbac(
    node: Annotated[
        list[str] | None, typer.Option("--node", metavar="NAME", help="Limit the rules to this node; repeatable")
    ] = None,
    register_node: Annotated[bool, typer.Option("--register-node", help="Register the node, send heartbeats")] = False,
    watch_pods: Annotated[bool, typer.Option("--watch-pods", help="Watch the pods of the node")] = False,
    publish_conditions: Annotated[
        bool, typer.Option("--publish-conditions", help="Publish conditions of the node")
    ] = False,
    condition_taints: Annotated[
        bool, typer.Option("--condition-taints", help="Set the taints of the conditions")
    ] = False,
    publish_events: Annotated[
        bool, typer.Option("--publish-events", help="Create Events about the node and its pods")
    ] = False,
    publish_pod_status: Annotated[
        bool, typer.Option("--publish-pod-status", help="Report ended pods without a kubelet")
    ] = False,
    evict_pods: Annotated[bool, typer.Option("--evict-pods", help="Evict pods beside a kubelet")] = False,
    override_disruption_budgets: Annotated[
        bool, typer.Option("--override-disruption-budgets", help="Delete pods despite disruption budgets")
    ] = False,
    delete_failed_after: Annotated[bool, typer.Option("--delete-failed-after", help="Delete failed pods")] = False,
) -> None:
    """Print service account and roles of the agent.

    Each option names an enabled setting of the section kubernetes; the roles contain exactly the rules that these
    settings require, with the purpose of each. The account is for agents outside of pods. Pipe the output to kubectl
    apply -f -.
    """
    from nodeagent.cli.manifests import print_rbac  # noqa: PLC0415

    settings = {
        "register_node": register_node,
        "watch_pods": watch_pods,
        "publish_conditions": publish_conditions,
        "condition_taints": condition_taints,
        "publish_events": publish_events,
        "publish_pod_status": publish_pod_status,
        "evict_pods": evict_pods,
        "override_disruption_budgets": override_disruption_budgets,
        "delete_failed_after": delete_failed_after,
    }
    print_rbac(node or [], [name for name, is_set in settings.items() if is_set])


@manifest_app.command("daemonset", epilog=EPILOG)
def manifest_daemonset(
    image: ImageOption,
    namespace: NamespaceOption = "kube-system",
    dry_run: DryRunSwitch = True,
    socket: SocketOption = _SOCKET,
    image_root: ImageRootOption = _IMAGE_ROOT,
    manifests: ManifestsOption = _MANIFESTS,
    max_unavailable: Annotated[
        str, typer.Option("--max-unavailable", metavar="N|PERCENT", help="Maximum unavailable nodes during an update")
    ] = "10%",
    pod_monitor: Annotated[
        bool, typer.Option("--pod-monitor", help="Serve metrics on the node address; add a PodMonitor")
    ] = False,
    api: Annotated[bool, typer.Option("--api", help="Watch pods, publish conditions and Events at the API")] = False,
    condition_taints: Annotated[
        str, typer.Option("--condition-taints", metavar="KEY:EFFECT,...", help="Set the taints of the conditions")
    ] = "",
    evict_pods: Annotated[bool, typer.Option("--evict-pods", help="Evict pods through the API server")] = False,
    override_disruption_budgets: Annotated[
        bool, typer.Option("--override-disruption-budgets", help="Delete pods despite disruption budgets")
    ] = False,
    delete_failed_after: Annotated[
        str, typer.Option("--delete-failed-after", metavar="AGE", help="Delete failed pods of this age")
    ] = "",
    kustomization: Annotated[
        Path | None, typer.Option("--kustomization", metavar="DIR", help="Write a kustomization into a new directory")
    ] = None,
) -> None:
    """Print a DaemonSet for nodes with a kubelet.

    The agent reads its configuration from a ConfigMap. The pod has only the mounts and capabilities that the agent
    uses; a comment states the purpose of each. With --api, a service account with exactly the required rules follows.
    With --kustomization, the same objects are written as the base of overlays, which replace config.toml and image.
    """
    from nodeagent import __version__  # noqa: PLC0415
    from nodeagent.cli.manifests import print_daemon_set, write_kustomization  # noqa: PLC0415
    from nodeagent.cluster.plan.workloads import API_FEATURES, Workload  # noqa: PLC0415
    from nodeagent.record import replace  # noqa: PLC0415

    features: dict[str, bool | str] = {
        "condition_taints": condition_taints,
        "evict_pods": evict_pods,
        "override_disruption_budgets": override_disruption_budgets,
        "delete_failed_after": delete_failed_after,
    }
    kubernetes = {**(API_FEATURES if api else {}), **{name: value for name, value in features.items() if value}}
    workload = Workload(image, __version__, namespace, socket, image_root, manifests, dry_run, max_unavailable)
    workload = replace(workload, scraped=pod_monitor, kubernetes=kubernetes)
    if kustomization is None:
        print_daemon_set(workload)
    else:
        write_kustomization(workload, kustomization)


@manifest_app.command("static-pod", epilog=EPILOG)
def manifest_static_pod(
    image: ImageOption,
    namespace: NamespaceOption = "kube-system",
    dry_run: DryRunSwitch = True,
    socket: SocketOption = _SOCKET,
    image_root: ImageRootOption = _IMAGE_ROOT,
    manifests: ManifestsOption = _MANIFESTS,
) -> None:
    """Print a static pod for a node with a kubelet.

    The agent reads its configuration from /etc/nodeagent on the node; a comment in the manifest shows the required
    content.
    """
    from nodeagent import __version__  # noqa: PLC0415
    from nodeagent.cli.manifests import print_static_pod  # noqa: PLC0415
    from nodeagent.cluster.plan.workloads import Workload  # noqa: PLC0415

    print_static_pod(Workload(image, __version__, namespace, socket, image_root, manifests, dry_run))
