"""Cost of the Kubernetes integration in an idle daemon: resident memory, and requests to the API server.

Each daemon is a separate process on a simulated node, with a fake API server that has 110 pods of 25 KiB: a daemon
without the Kubernetes integration, a daemon beside a kubelet with all features possible there, and a daemon that
registers its node.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psutil

from nodeagent.host.machine import read_machine
from tests.support.api_pods import pod
from tests.support.api_server import NODES, TOKEN, ApiServer, serving_api
from tests.support.certificates import Authority
from tests.support.simulated_daemon import simulated_daemon

if TYPE_CHECKING:
    from tests.support.simulated_daemon import SimulatedDaemon

PODS: Final = 110
POD_BYTES: Final = 25 << 10
BOOKMARK_S: Final = 60.0
SETTLED_S: Final = 60.0
_BESIDE: Final = ("watch_pods", "publish_conditions", "publish_events", "evict_pods")
_ALONE: Final = ("register_node", "watch_pods", "publish_conditions", "publish_events")
CASES: Final = {
    "without Kubernetes": ("standalone", ()),
    "beside a kubelet: watch, conditions, Events, evictions": ("beside-kubelet", _BESIDE),
    "registered: heartbeats, watch, conditions, Events": ("standalone", _ALONE),
}


def server(*, has_node: bool) -> ApiServer:
    """Return a fake API server with the pods; with ``has_node``, also with the Node object of this machine."""
    made, machine = ApiServer(), read_machine()
    made.bookmark_s = BOOKMARK_S
    ids = {"machineID": machine.machine_id, "systemUUID": machine.system_uuid}
    if has_node:
        made.put(NODES, "node-1", {"status": {"nodeInfo": ids}})
    for number in range(PODS):
        made.pods.put(pod(f"p{number}", metadata={"annotations": {"example.com/data": "x" * POD_BYTES}}))
    return made


def settings_of(names: tuple[str, ...], url: str, authority: Authority, token: Path) -> str:
    """Return the configuration of a measured daemon."""
    if not names:
        return ""
    access = {"server": url, "ca_file": str(authority.ca_file), "token_file": str(token)}
    lines = [f"{key} = {json.dumps(value)}" for key, value in access.items()]
    lines += [f"{each} = true" for each in names]
    return "\n".join(["[kubernetes]", *lines, "[kubelet]", 'node_name = "node-1"', ""])


def main() -> None:
    """Print resident memory and requests of each daemon."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rest", type=float, default=300, help="seconds of measurement of the idle daemons")
    rest_s: float = parser.parse_args().rest
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        directory = Path(name)
        authority = Authority(directory)
        authority.issue("server")
        token = directory / "token"
        token.write_text(TOKEN)
        running: list[tuple[str, SimulatedDaemon, ApiServer]] = []
        for number, (title, (role, settings)) in enumerate(CASES.items()):
            api, place = server(has_node=role != "standalone"), directory / str(number)
            place.mkdir()
            url = stack.enter_context(serving_api(api, partial(authority.server_context, "server")))
            daemon = stack.enter_context(simulated_daemon(place, settings_of(settings, url, authority, token), role))
            running.append((title, daemon, api))
        time.sleep(SETTLED_S)  # a real sleep, since idle daemons are measured
        before = [len(api.requests) for _, _, api in running]
        time.sleep(rest_s)
        base_mib = 0.0
        for (title, daemon, api), known in zip(running, before, strict=True):
            resident_mib = psutil.Process(daemon.pid).memory_info().rss / 2**20
            base_mib = base_mib or resident_mib
            recent = api.requests[known:]
            sent = [each for each in recent if "watch=1" not in each.query]
            count = len(sent) - (len(recent) - len(sent))  # each watch begins with a reading of the Node object
            watches = sum("watch=1" in each.query for each in api.requests)
            print(
                f"{title}: {watches} watches, {resident_mib:.1f} MiB resident ({resident_mib - base_mib:+.1f}),",
                end=" ",
            )
            print(f"{count} requests in {rest_s:.0f} s beside the watch ({10 * count / rest_s:.2f} in 10 s)")
            for (method, path), number in Counter((each.method, each.path) for each in sent).most_common():
                print(f"    {number:4} {method} {path}")


if __name__ == "__main__":
    main()
