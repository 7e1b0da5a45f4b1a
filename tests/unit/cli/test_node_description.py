"""Description of the node: fits the terminal width, escapes tenant data, and is a v1.Node in JSON and YAML."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, cast

import msgspec
import pytest
import yaml

from nodeagent.cli.node_description import description_lines, read_pressure
from nodeagent.cluster.plan.node_status import node_object
from nodeagent.eviction.plan.thresholds import parse_thresholds
from nodeagent.model.kubernetes import Machine, Node
from nodeagent.model.pressure import Moment, NodeCondition, OtherFilesystem, Signal, SignalReading
from nodeagent.model.runtime import Image
from nodeagent.record import replace
from nodeagent.runtime.cri import FilesystemUsage, ImageFsInfo
from nodeagent.settings.loading import load
from nodeagent.text import display_width
from tests.support.api_server import NODES, TOKEN, ApiServer, serving_api
from tests.support.certificates import Authority
from tests.support.command import nodeagent
from tests.support.terminal import in_pipe
from tests.unit.builders import image_filesystem
from tests.unit.cli.served_process import served
from tests.unit.cluster.plan.test_node_status import FACTS, NOW, POLICY

if TYPE_CHECKING:
    from pathlib import Path

    from nodeagent.model.runtime import ImageFilesystem
    from nodeagent.runtime.cri import CriClient
    from nodeagent.units import Clock

CAUSE = (
    "container runtime network not ready: NetworkReady=false reason:NetworkPluginNotReady message:cni plugin missing"
)


def test_description_fits_80_columns_and_has_the_full_cause_of_not_ready() -> None:
    node = node_object(replace(FACTS, not_ready=(CAUSE,)), POLICY, now=NOW)
    lines = [each.text for each in description_lines(node, 80, images=True, has_spec=False)]
    assert max(map(display_width, lines)) <= 80
    assert CAUSE.replace(" ", "") in "".join(lines).replace(" ", "")
    for part in (
        "Capacity:",
        "Allocatable:",
        "System Info:",
        "  ephemeral-storage:  264212084Ki",
        "Images:             13",
    ):
        assert part in lines


def test_names_of_images_are_escaped() -> None:
    hostile = Image("i", repo_tags=("evil.test/\x1b[31m\n:1",), size_bytes=5)
    node = node_object(replace(FACTS, images=(hostile,)), POLICY, now=NOW)
    text = "".join(each.text for each in description_lines(node, 80, images=True, has_spec=False))
    assert "\x1b" not in text
    assert "\n" not in text


async def test_pressure_on_another_image_filesystem_is_that_of_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Runtime:
        @staticmethod
        async def image_fs_info() -> ImageFsInfo:
            return ImageFsInfo((FilesystemUsage(str(tmp_path)),))

    def read_full(other: OtherFilesystem, clock: Clock) -> tuple[SignalReading, ...]:
        at = Moment(clock.now(), clock.monotonic_s())
        return (SignalReading(Signal.IMAGEFS_AVAILABLE, 0, 1 << 40, at, path=other.path),)

    async def find() -> tuple[ImageFilesystem, ...]:
        return image_filesystem("/", 10, "overlayfs", ""), image_filesystem("/b", 100, "native")

    monkeypatch.setattr("nodeagent.eviction.signals.read_other_filesystem", read_full)
    thresholds = parse_thresholds(hard="imagefs.available<1Mi")
    made = load(None, {"role": "standalone"}, {}).config.settings()
    made = replace(made, eviction=replace(made.eviction, thresholds=thresholds), pod_log_root=tmp_path)
    runtime = cast("CriClient", Runtime())
    assert await read_pressure(made, runtime, None) == frozenset()
    assert await read_pressure(made, runtime, find) == frozenset({NodeCondition.DISK_PRESSURE})


def test_node_without_runtime_is_described_as_not_ready_in_every_format(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text(f'[runtime]\nendpoint = "unix://{tmp_path}/absent"\n[kubelet]\nnode_name = "Node-7"\n')
    for form, parse in (("json", json.loads), ("yaml", yaml.safe_load)):
        ended = nodeagent("node", "describe", "--config", str(config), "-o", form)
        assert ended.returncode == 0, ended.stderr
        assert "warning: " in ended.stderr
        node = msgspec.convert(parse(ended.stdout), Node)
        assert (node.kind, node.metadata.name) == ("Node", "node-7")
        ready = node.status.conditions[-1]
        assert (ready.type, ready.status, ready.message) == ("Ready", "False", "container runtime is down")


@pytest.mark.parametrize(
    ("machine_id", "taints", "unschedulable", "warning"),
    [
        ("m", "nodeagent.dev/no-kubelet:NoSchedule", "true", ""),
        ("other", "<unknown>", "<unknown>", "taints and cordon unknown: the Node object is of another machine"),
        (None, "<unknown>", "<unknown>", "taints and cordon unknown: there is no Node object with this name"),
    ],
)
def test_taints_and_cordon_are_those_of_the_stored_object_of_this_machine(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    machine_id: str | None,
    taints: str,
    unschedulable: str,
    warning: str,
) -> None:
    own = Machine("node-1", machine_id="m", system_uuid="u")
    monkeypatch.setattr("nodeagent.cluster.facts.read_machine", lambda *_: own)
    authority = Authority(tmp_path / "authority")
    authority.issue("server")
    server = ApiServer()
    if machine_id is not None:
        spec = {"taints": [{"key": "nodeagent.dev/no-kubelet", "effect": "NoSchedule"}], "unschedulable": True}
        info = {"nodeInfo": {"machineID": machine_id, "systemUUID": "u"}}
        server.put(NODES, "node-1", {"spec": spec, "status": info})
    token, config = tmp_path / "token", tmp_path / "config.toml"
    token.write_text(TOKEN)
    with serving_api(server, partial(authority.server_context, "server")) as url:
        config.write_text(
            f'[runtime]\nendpoint = "unix://{tmp_path}/absent"\n[kubelet]\nnode_name = "node-1"\n'
            f'[kubernetes]\nserver = "{url}"\nca_file = "{authority.ca_file}"\ntoken_file = "{token}"\n'
        )
        shown = in_pipe("node", "describe", "--config", str(config))
    assert shown.code == 0, shown.err
    lines = {name: value.strip() for name, _, value in (line.partition(":") for line in shown.out.splitlines())}
    assert (lines["Taints"], lines["Unschedulable"]) == (taints, unschedulable)
    assert warning in shown.out
    assert not {each.method for each in server.requests} - {"GET"}


def test_taints_are_unknown_without_an_api_server(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text(f'[runtime]\nendpoint = "unix://{tmp_path}/absent"\n')
    lines = in_pipe("node", "describe", "--config", str(config)).out.splitlines()
    assert {"Taints:             <unknown>", "Unschedulable:      <unknown>"} <= set(lines)


@pytest.mark.parametrize("role", ["standalone", "beside-kubelet"])
def test_description_beside_a_kubelet_names_the_command_with_the_values_in_force(tmp_path: Path, role: str) -> None:
    config = tmp_path / "config.toml"
    config.write_text(
        f'role = "{role}"\n[runtime]\nendpoint = "unix://{tmp_path}/s"\n[kubelet]\nnode_name = "node-1"\n'
    )
    with served(tmp_path):
        ended = nodeagent("node", "describe", "--config", str(config), "-o", "json")
    assert ended.returncode == 0, ended.stderr
    assert ("kubectl describe node node-1" in ended.stderr) is (role == "beside-kubelet")
