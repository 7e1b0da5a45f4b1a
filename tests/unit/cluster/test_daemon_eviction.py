"""Daemon process beside a kubelet: evictions are requested from the API server, never from the runtime."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING

from nodeagent.host.machine import read_machine
from tests.support.api_pods import pod
from tests.support.api_server import NODES, TOKEN, ApiServer, serving_api
from tests.support.certificates import Authority
from tests.support.command import nodeagent
from tests.support.reclaim import poll
from tests.support.simulated_daemon import simulated_daemon

if TYPE_CHECKING:
    from pathlib import Path

CONFIGURATION = """
eviction.hard = "memory.available<99%"
eviction.interval = "1s"
kubelet.node_name = "node-1"
[kubernetes]
server = "{0}"
ca_file = "{1}"
token_file = "{2}"
watch_pods = true
evict_pods = true
"""


def test_daemon_beside_a_kubelet_evicts_through_the_api_server_and_stops_no_container(tmp_path: Path) -> None:
    authority, api, machine = Authority(tmp_path / "authority"), ApiServer("watch_pods", "evict_pods"), read_machine()
    authority.issue("server")
    token = tmp_path / "token"
    token.write_text(TOKEN)
    ids = {"machineID": machine.machine_id, "systemUUID": machine.system_uuid}
    api.put(NODES, "node-1", {"status": {"nodeInfo": ids}})
    with serving_api(api, partial(authority.server_context, "server")) as url:
        configuration = CONFIGURATION.format(url, authority.ca_file, token)
        with simulated_daemon(tmp_path, configuration, "beside-kubelet") as daemon:
            found = json.loads(nodeagent("pods", "-o", "json", "--config", str(tmp_path / "config.toml")).stdout)
            running = {each["name"] for each in found["pods"] if any(one["ready"] for one in each["sandboxes"])}
            for each in found["pods"]:
                with api.lock:
                    api.pods.put(pod(each["name"], each["uid"], metadata={"namespace": each["namespace"]}))
            poll("a pod is evicted", lambda: bool(api.pods.ended), timeout_s=60)
            later = json.loads(nodeagent("pods", "-o", "json", "--config", str(tmp_path / "config.toml")).stdout)
        log = daemon.log.read_text()
    assert {name for name, _ in api.pods.ended} <= running
    assert [grace_s for _, grace_s in api.pods.ended] == [1]
    assert {each["name"] for each in later["pods"] if any(one["ready"] for one in each["sandboxes"])} == running
    assert "eviction_started" in log
    assert TOKEN not in log
