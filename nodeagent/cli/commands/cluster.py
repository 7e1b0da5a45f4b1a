"""Commands on the node's part in a Kubernetes cluster."""

from typing import Annotated

import typer

from nodeagent.cli.exit_codes import EPILOG
from nodeagent.cli.options import CommandGroup, ConfigOption, EndpointOption, Output, OutputOption, at_endpoint

node_app = typer.Typer(
    cls=CommandGroup,
    help="Describe this node as a Node object of Kubernetes.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@node_app.command("describe", epilog=EPILOG)
def node_describe(
    config: ConfigOption = None,
    endpoint: EndpointOption = None,
    output: OutputOption = Output.TABLE,
    show_images: Annotated[bool, typer.Option("--images", help="List the images of the status too")] = False,
) -> None:
    """Show the node status: conditions, capacity, versions.

    The node is read by this command, without a cluster. -o json and yaml print an object v1.Node.
    """
    from nodeagent.cli.node_description import describe  # noqa: PLC0415

    describe(config, at_endpoint(endpoint), output.value, images=show_images)


manifest_app = typer.Typer(
    cls=CommandGroup,
    help="Print objects for a Kubernetes cluster.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@manifest_app.command("rbac", epilog=EPILOG)
def manifest_rbac(
    node: Annotated[
        list[str] | None, typer.Option("--node", metavar="NAME", help="Limit the rules to this node; repeatable")
    ] = None,
) -> None:
    """Print service account, roles and bindings of the agent.

    The roles have the rules that the agent uses and no others; a comment states the purpose of each. Pipe the output to
    kubectl apply -f -.
    """
    from nodeagent.cli.manifests import print_rbac  # noqa: PLC0415

    print_rbac(node or [])
