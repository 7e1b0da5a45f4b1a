"""``nodeagent node describe``: the Node object of this node, in the form of ``kubectl describe node``."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from nodeagent.api.common import encode
from nodeagent.cli.display import Line, standard_output, warn, warning_lines
from nodeagent.cli.reading import load_settings, open_for_command, run_async
from nodeagent.cli.table import Heading, Table
from nodeagent.cluster.facts import NodeFactsReader, status_policy
from nodeagent.cluster.plan.node_status import READY, node_object
from nodeagent.errors import ApiServerError, NodeAgentError
from nodeagent.eviction.plan.state import EvictionState
from nodeagent.eviction.signals import EvictionSignalReader, FindImageFilesystems
from nodeagent.model.node import Role
from nodeagent.text import Cut
from nodeagent.units import SystemClock, format_bytes

if TYPE_CHECKING:
    from nodeagent.model.kubernetes import ApiAccess, Node, NodeSpec, StatusCondition
    from nodeagent.model.pressure import NodeCondition
    from nodeagent.runtime.cri import CriClient
    from nodeagent.settings.settings import Settings

_LABEL_WIDTH = 20
_NONE = "<none>"
_UNKNOWN = "<unknown>"
_BESIDE_KUBELET = (
    "a kubelet manages this node: capacity, conditions and version are those of a registration by the agent; those in "
    "force: kubectl describe node {name}"
)


def describe(config: Path | None, overrides: Mapping[str, str | int], form: str, *, images: bool) -> None:
    """Print the Node object of this node; without a runtime the node is not ready and has no images.

    Args:
        config: configuration file.
        overrides: settings changed by options of the command.
        form: ``table``, ``json`` or ``yaml``.
        images: whether the table lists images.

    Raises:
        ConfigError: the configuration is invalid.
    """
    settings = load_settings(config, overrides)
    node, warnings = run_async(_read(settings))
    spec = None
    if (access := settings.kubernetes.access) is not None:
        spec, warning = run_async(_read_spec(access, node.metadata.name))
        node = node if spec is None else msgspec.structs.replace(node, spec=spec)
        warnings = (*warnings, warning) if warning else warnings
    if form != "table":
        sys.stdout.write(encode(msgspec.to_builtins(node), form))
        for each in warnings:
            warn(f"warning: {each}")
        return
    display = standard_output()
    display.write_fitted(description_lines(node, display.columns, images=images, has_spec=spec is not None))
    display.write(warning_lines(warnings))


async def _read(settings: Settings) -> tuple[Node, tuple[str, ...]]:
    """Return the Node object of this node, and the warnings of the reading."""
    try:
        async with open_for_command(settings, record=False) as agent:
            find = agent.observer.images.find_filesystems
            node, warnings = await _read_with(settings, (), agent.cri, find)
            if (await agent.evaluate_role()).role is Role.BESIDE_KUBELET:
                warnings = (_BESIDE_KUBELET.format(name=node.metadata.name), *warnings)
            return node, warnings
    except NodeAgentError as error:
        return await _read_with(settings, (str(error),))


async def _read_with(
    settings: Settings,
    warnings: tuple[str, ...],
    cri: CriClient | None = None,
    find: FindImageFilesystems | None = None,
) -> tuple[Node, tuple[str, ...]]:
    clock = SystemClock()
    facts = await NodeFactsReader(settings, clock).read(cri, await read_pressure(settings, cri, find))
    policy = status_policy(settings)
    return node_object(facts, policy, now=clock.now()), (*warnings, *facts.unread)


async def _read_spec(access: ApiAccess, name: str) -> tuple[NodeSpec | None, str]:
    """Return the stored spec of the Node object, with taints and cordon; else ``None`` and the reason."""
    # imports OpenSSL, which a description without an API server does not need
    from nodeagent.cluster.facts import compare_with_machine  # noqa: PLC0415
    from nodeagent.kube.api_client import ApiClient, NodeApi  # noqa: PLC0415
    from nodeagent.kube.api_credentials import ApiCredentials  # noqa: PLC0415

    api = NodeApi(ApiClient(access, ApiCredentials(access)), name)
    try:
        found = await api.get_node()
        because = await compare_with_machine(found)
    except ApiServerError as error:
        found, because = None, str(error)
    finally:
        api.close()
    if found is None or because:
        return None, f"taints and cordon unknown: {because}"
    return found.spec, ""


async def read_pressure(
    settings: Settings, cri: CriClient | None, find: FindImageFilesystems | None
) -> frozenset[NodeCondition] | None:
    """Return the pressure conditions of one reading of the eviction signals; ``None`` if eviction is disabled.

    ``find`` returns the image filesystems of a node with several; pressure on any image filesystem is reported.
    """
    if settings.eviction.off_because(Role.STANDALONE):
        return None
    reader = EvictionSignalReader(settings.eviction, SystemClock(), pod_log_root=settings.pod_log_root)
    if cri is None:
        layout = await reader.nodefs_layout()
    else:
        layout, _ = await reader.read_layout_or_nodefs(cri, settings.imagefs_path, find)
    return (await reader.evaluate(layout, EvictionState())).evaluation.state.reported


def description_lines(node: Node, columns: int | None, *, images: bool, has_spec: bool) -> Iterator[Line]:
    """Yield the description of a Node object, in the form of ``kubectl describe node``.

    Args:
        node: the Node object.
        columns: width of the terminal; ``None`` disables cutting.
        images: whether images are listed.
        has_spec: whether the spec was read from the API server.
    """
    status = node.status
    yield _field("Name", node.metadata.name)
    yield from _listed("Labels", (f"{name}={value}" for name, value in sorted(node.metadata.labels.items())))
    if has_spec:
        yield from _listed("Taints", (_taint(each.key, each.value, each.effect) for each in node.spec.taints))
        yield _field("Unschedulable", str(node.spec.unschedulable).lower())
    else:
        yield _field("Taints", _UNKNOWN)
        yield _field("Unschedulable", _UNKNOWN)
    yield from _conditions(status.conditions, columns)
    yield from _section("Addresses", [(each.type, each.address) for each in status.addresses])
    yield from _section("Capacity", status.capacity.items())
    yield from _section("Allocatable", status.allocatable.items())
    if (info := status.node_info) is not None:
        yield from _section(
            "System Info",
            [
                ("Machine ID", info.machine_id),
                ("System UUID", info.system_uuid),
                ("Boot ID", info.boot_id),
                ("Kernel Version", info.kernel_version),
                ("OS Image", info.os_image),
                ("Operating System", info.operating_system),
                ("Architecture", info.architecture),
                ("Container Runtime Version", info.container_runtime_version),
                ("Kubelet Version", info.kubelet_version),
            ],
        )
    yield _field("Images", str(len(status.images)))
    if images:
        table = Table(Heading("  SIZE", right=True), Heading("NAMES", cut=Cut.MIDDLE, name=True))
        for each in status.images:
            table.add(f"  {format_bytes(each.size_bytes)}", ", ".join(each.names))
        yield from table.lines(columns)


def _conditions(conditions: Iterable[StatusCondition], columns: int | None) -> Iterator[Line]:
    """Yield the table of conditions; the full message of each abnormal condition follows the table."""
    yield Line("Conditions:")
    table = Table("  Type", "Status", "Reason", Heading("Message", cut=Cut.END))
    unusual = []
    for each in conditions:
        usual = each.status == ("True" if each.type == READY else "False")
        table.add(f"  {each.type}", each.status, each.reason, each.message, style="" if usual else "bold red")
        unusual += [] if usual or columns is None else [f"{each.type}: {each.message}"]
    yield from table.lines(columns)
    for text in unusual:
        line = Line(f"  {text}", hang=4)
        yield from line.wrapped(columns) if columns is not None else (line,)


def _section(title: str, rows: Iterable[tuple[str, str]]) -> Iterator[Line]:
    rows = list(rows)
    width = max((len(name) for name, _ in rows), default=0) + 1
    yield Line(f"{title}:")
    for name, value in rows:
        yield Line(f"  {name + ':':<{width}}  {value or _NONE}")


def _field(name: str, value: str) -> Line:
    return Line(f"{name + ':':<{_LABEL_WIDTH}}{value or _NONE}")


def _listed(name: str, values: Iterable[str]) -> Iterator[Line]:
    first, *rest = [*values] or [_NONE]
    yield _field(name, first)
    for each in rest:
        yield Line(f"{'':<{_LABEL_WIDTH}}{each}")


def _taint(key: str, value: str, effect: str) -> str:
    return f"{key}={value}:{effect}" if value else f"{key}:{effect}"
