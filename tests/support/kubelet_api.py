"""Fake kubelet API with the pod list on a loopback port; responses are recorded from a real kubelet."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator

POD = {"metadata": {"name": "web", "namespace": "shop", "uid": "u-1"}, "spec": {"priority": 7}}
FORBIDDEN = b"Forbidden (user=agent, verb=get, resource=nodes, subresource(s)=[pods proxy])"
LIST = {"kind": "PodList", "apiVersion": "v1", "items": [POD]}


@dataclass
class Answer:
    status: int = 200
    body: bytes = field(default_factory=lambda: json.dumps(LIST).encode())
    length: int | None = None
    requests: list[dict[str, str]] = field(default_factory=list)


@contextmanager
def kubelet(answer: Answer, context: ssl.SSLContext | None = None) -> Iterator[str]:
    """Serve one response to all requests on a loopback port; yield the URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer.requests.append({"path": self.path, **dict(self.headers.items())})
            self.send_response(answer.status)
            if answer.length != -1:
                self.send_header("Content-Length", str(len(answer.body) if answer.length is None else answer.length))
            self.end_headers()
            self.wfile.write(answer.body)

        def log_message(self, *_: Any) -> None: ...

    class Server(ThreadingHTTPServer):
        def handle_error(self, *_: Any) -> None: ...

    with Server(("127.0.0.1", 0), Handler) as server:
        if context is not None:
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"{'http' if context is None else 'https'}://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def pod_list(*names: str, source: str = "api") -> bytes:
    """Return the kubelet's list of running pods with the given names, as JSON, with the kubelet's annotations."""
    items = [
        {
            "metadata": {
                "name": name,
                "namespace": "shop",
                "uid": f"uid-{name}",
                "annotations": {"kubernetes.io/config.source": source},
            },
            "spec": {"containers": [{"name": "app", "image": f"registry.test/{name}:1"}]},
            "status": {"phase": "Running"},
        }
        for name in names
    ]
    return json.dumps({"kind": "PodList", "apiVersion": "v1", "items": items}).encode()
