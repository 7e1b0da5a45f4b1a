"""Fake Kubernetes API server with exactly the endpoints that the agent uses, over HTTPS on loopback.

Objects have uids and resource versions; a write with an outdated version or another uid is a conflict. Error texts are
recorded from kube-apiserver 1.36 with NodeRestriction. Tests can script faults.
"""

from __future__ import annotations

import json
import re
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote, urlsplit

from nodeagent.cluster.plan.rules import rules_for
from tests.support.api_pods import Pods

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Collection, Iterator

NODES = "/api/v1/nodes"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
EVENTS = "/apis/events.k8s.io/v1/namespaces/default/events"
EVENT_NAMESPACE = re.compile(r"^/apis/events\.k8s\.io/v1/namespaces/[a-z0-9-]+/events$")
CSRS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
PODS = "/api/v1/pods"
NAMESPACES = "/api/v1/namespaces"
TOKEN = "token-of-the-agent"
_KINDS = {NODES: "nodes", LEASES: "leases", EVENTS: "events", PODS: "pods", CSRS: "certificatesigningrequests"}
_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_TARGET = re.compile(
    r"/(?:api|apis/(?P<group>[^/]+))/v1/(?:namespaces/(?P<namespace>[^/]+)/)?"
    r"(?P<resource>[a-z]+)(?:/(?P<name>[^/]+))?(?:/(?P<sub>[a-z]+))?"
)
_LABELS = (
    *("kubernetes.io/hostname", "kubernetes.io/arch", "kubernetes.io/os"),
    *("topology.kubernetes.io/zone", "topology.kubernetes.io/region", "node.kubernetes.io/instance-type"),
)


@dataclass
class Fault:
    """Response in place of the next response, or a fault of the connection.

    Attributes:
        status: HTTP status.
        body: body of the response.
        headers: additional headers.
        behaviour: ``close`` closes the connection before a response, ``close-after`` carries out the request and then
            closes the connection, ``hang`` sends no byte until the server stops, ``slow`` sends only half of the body.
    """

    status: int = 500
    body: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    behaviour: str = ""


@dataclass
class Received:
    """Request received by the fake API server."""

    method: str
    path: str
    query: str
    body: Any
    token: str
    subject: str
    content_type: str


class ApiServer:
    """State of the fake API server; tests set its attributes and read ``requests``.

    Attributes:
        node_identity: whether the client is authenticated as a node, with NodeRestriction, and not as a service
            account.
        settings: settings whose printed RBAC rules limit the client; ``None`` for a client without limits.
        token: accepted bearer token; a client certificate is accepted too.
        bootstrap_token: bearer token that is accepted for certificate requests only; empty for none.
        pods: pods of the node.
        bookmark_s: seconds without a change after which a watch sends a bookmark.
    """

    def __init__(self, *settings: str) -> None:
        self.settings = settings or None
        self.objects: dict[str, dict[str, dict[str, Any]]] = {NODES: {}, LEASES: {}, EVENTS: {}, CSRS: {}}
        self.requests: list[Received] = []
        self.faults: list[Fault] = []
        self.denied: set[tuple[str, str]] = set()
        self.node_identity = False
        self.token = TOKEN
        self.bootstrap_token = ""
        self.pods = Pods()
        self.bookmark_s = 0.05
        self.stopped = threading.Event()
        self.received = threading.Event()
        self.lock = threading.Lock()
        self.connections = 0
        self._version = 100

    def put(self, collection: str, name: str, value: dict[str, Any]) -> dict[str, Any]:
        """Store an object with a new resource version; return the stored object."""
        self._version += 1
        old = self.objects[collection].get(name, {})
        uid = old.get("metadata", {}).get("uid") or value.get("metadata", {}).get("uid") or f"uid-{self._version}"
        metadata = {**value.get("metadata", {}), "name": name, "uid": uid, "resourceVersion": str(self._version)}
        self.objects[collection][name] = {**value, "metadata": metadata}
        return self.objects[collection][name]

    @property
    def node(self) -> dict[str, Any]:
        return self.objects[NODES]["node-1"]

    @property
    def lease(self) -> dict[str, Any]:
        return self.objects[LEASES]["node-1"]

    def seen(self, method: str, suffix: str = "") -> list[Received]:
        """Return the received requests with an HTTP method and a path that ends with ``suffix``."""
        return [each for each in self.requests if each.method == method and each.path.endswith(suffix)]

    def answer(self, request: Received) -> tuple[int, dict[str, Any]]:
        """Carry out a request; return the HTTP status and the object."""
        if self.settings is not None and request.path != REVIEWS and not is_granted(request, self.settings):
            return _status(403, "Forbidden", f"no printed rule grants {request.method} {request.path}")
        return self._carry_out(request)

    def _carry_out(self, request: Received) -> tuple[int, dict[str, Any]]:
        request = replace(request, path=EVENT_NAMESPACE.sub(EVENTS, request.path))
        if request.path == REVIEWS or request.path.startswith(NAMESPACES):
            return self._review(request) if request.path == REVIEWS else self._change_pod(request)
        collection = next((each for each in _KINDS if request.path.startswith(each)), "")
        name, _, sub = unquote(request.path[len(collection) :]).strip("/").partition("/")
        refused = self._authorise(request, collection, name, sub)
        if refused is not None:
            return refused
        if collection == PODS:
            return self.pods.page(request.query)
        if request.method == "POST":
            return self._create(collection, request.body)
        stored = self.objects[collection].get(name)
        if stored is None:
            return _status(404, "NotFound", f'{_KINDS[collection]} "{name}" not found')
        return (200, stored) if request.method == "GET" else self._change(request, collection, name, sub, stored)

    def _authorise(self, request: Received, collection: str, name: str, sub: str) -> tuple[int, dict[str, Any]] | None:
        """Return the refusal of a request that its identity may not send; ``None`` if it is allowed."""
        if not collection:
            return _status(404, "NotFound", "the server could not find the requested resource")
        is_bootstrap = bool(self.bootstrap_token) and request.token == self.bootstrap_token
        if not (is_bootstrap and collection == CSRS) and request.token != self.token and not request.subject:
            return _status(401, "Unauthorized", "Unauthorized")
        resource = _KINDS[collection] + (f"/{sub}" if sub else "")
        if (request.method, resource) not in self.denied:
            return None
        verb = {"GET": "get", "POST": "create", "PATCH": "patch", "PUT": "update"}[request.method]
        about = f'User "agent" cannot {verb} resource "{resource}"'
        return _status(403, "Forbidden", f'{_KINDS[collection]} "{name}" is forbidden: {about}')

    def _change_pod(self, request: Received) -> tuple[int, dict[str, Any]]:
        """Evict or delete the pod of a request, or patch its status; return the HTTP status and the response body."""
        namespace, _, name, *sub = unquote(request.path[len(NAMESPACES) :]).strip("/").split("/")
        resource = "/".join(["pods", *sub])
        if request.token != self.token and not request.subject:
            return _status(401, "Unauthorized", "Unauthorized")
        if (request.method, resource) in self.denied:
            return _status(403, "Forbidden", f'pods "{name}" is forbidden: cannot create resource "{resource}"')
        if request.method == "PATCH" and sub == ["status"]:
            return self.pods.patch_status(namespace, name, request.body, merge)
        evicts = sub == ["eviction"]
        options = request.body["deleteOptions"] if evicts else request.body
        return self.pods.end(namespace, name, options, by_eviction=evicts)

    def _review(self, request: Received) -> tuple[int, dict[str, Any]]:
        """Return the response to an access review: whether the identity has the requested permission."""
        if request.token != self.token and not request.subject:
            return _status(401, "Unauthorized", "Unauthorized")
        asked = request.body["spec"]["resourceAttributes"]
        resource = asked["resource"] + (f"/{asked['subresource']}" if asked["subresource"] else "")
        verbs = {
            "get": "GET",
            "create": "POST",
            "patch": "PATCH",
            "update": "PUT",
            "list": "GET",
            "watch": "GET",
            "delete": "DELETE",
        }
        method = verbs[asked["verb"]]
        return 201, {**request.body, "status": {"allowed": (method, resource) not in self.denied}}

    def _create(self, collection: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        name = body["metadata"]["name"]
        if name in self.objects[collection]:
            return _status(409, "AlreadyExists", f'{_KINDS[collection]} "{name}" already exists')
        return self._restriction(collection, name, {}, body) or (201, self.put(collection, name, body))

    def _change(
        self, request: Received, collection: str, name: str, sub: str, stored: dict[str, Any]
    ) -> tuple[int, dict[str, Any]]:
        given = request.body.get("metadata", {})
        for key in ("resourceVersion", "uid"):
            if given.get(key, stored["metadata"][key]) != stored["metadata"][key]:
                return _status(409, "Conflict", "the object has been modified; please apply your changes to the latest")
        if request.method == "PUT":
            value = request.body
        else:
            part = {"status": request.body.get("status", {})} if sub else request.body
            value = merge(stored, {key: each for key, each in part.items() if sub or key != "status"})
        refused = self._restriction(collection, name, stored, value)
        return refused or (200, value if "dryRun=All" in request.query else self.put(collection, name, value))

    def _restriction(
        self, collection: str, name: str, before: dict[str, Any], after: dict[str, Any]
    ) -> tuple[int, dict[str, Any]] | None:
        """Return the refusal of a write by NodeRestriction, with kube-apiserver's text; ``None`` if it is allowed."""
        if not self.node_identity:
            return None
        if collection == LEASES and name != "node-1":
            about = "can only access node lease with the same name as the requesting node"
            return _status(403, "Forbidden", f'leases.coordination.k8s.io "{name}" is forbidden: {about}')
        if collection == NODES:
            if before and before.get("spec", {}).get("taints") != after.get("spec", {}).get("taints"):
                about = 'node "node-1" is not allowed to modify taints'
                return _status(403, "Forbidden", f'nodes "{name}" is forbidden: {about}')
            old, new = (each.get("metadata", {}).get("labels") or {} for each in (before, after))
            changed = sorted(each for each in old.keys() | new.keys() if old.get(each) != new.get(each))
            foreign = [each for each in changed if ".kubernetes.io/" in each and each not in _LABELS]
            if foreign:
                about = f"is not allowed to modify labels: {', '.join(foreign)}"
                return _status(403, "Forbidden", f'nodes "{name}" is forbidden: {about}')
        return None


def is_granted(request: Received, settings: Collection[str]) -> bool:
    """Return whether the RBAC rules that are printed for the settings of node ``node-1`` grant a request."""
    found = _TARGET.fullmatch(request.path)
    assert found is not None, request.path
    verb = _VERBS.get(request.method) or ("get" if found["name"] else "watch" if "watch=1" in request.query else "list")
    resource = "/".join(filter(None, (found["resource"], found["sub"])))
    return any(
        (rule.group, rule.resource) == (found["group"] or "", resource)
        and verb in rule.verbs
        and rule.namespace in ("", found["namespace"])
        and (not rule.of_node or found["name"] == "node-1")
        for rule in rules_for(settings)
    )


def merge(old: Any, patch: Any, key: str = "") -> Any:
    """Return the strategic merge of two objects.

    Maps are merged by key, conditions and addresses by type; other lists are replaced; null deletes a key.
    """
    if isinstance(patch, dict):
        base = dict(old) if isinstance(old, dict) else {}
        for name, value in patch.items():
            if value is None:
                base.pop(name, None)
            else:
                base[name] = merge(base.get(name), value, name)
        return base
    if isinstance(patch, list) and key in ("conditions", "addresses"):
        if {"$patch": "replace"} in patch:
            return [each for each in patch if each != {"$patch": "replace"}]
        found = {each["type"]: each for each in old or []}
        for each in patch:
            if each.get("$patch") == "delete":
                found.pop(each["type"], None)
            else:
                found[each["type"]] = merge(found.get(each["type"]), each)
        return list(found.values())
    return patch


def _status(code: int, reason: str, message: str) -> tuple[int, dict[str, Any]]:
    return code, {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "message": message}


class _Handler(BaseHTTPRequestHandler):
    """HTTP handler of one connection; a subclass sets ``double`` to the fake API server."""

    double: ApiServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def setup(self) -> None:
        self.request.do_handshake()
        self.double.connections += 1
        super().setup()

    def handle_request(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = urlsplit(self.path)
        names = dict(each[0] for each in (self.request.getpeercert() or {}).get("subject", ()))
        request = Received(
            self.command,
            parts.path,
            parts.query,
            json.loads(body) if body else None,
            (self.headers.get("Authorization") or "").removeprefix("Bearer "),
            names.get("commonName", ""),
            self.headers.get("Content-Type") or "",
        )
        with self.double.lock:
            self.double.requests.append(request)
            self.double.received.set()
            fault = self.double.faults.pop(0) if self.double.faults else None
            done = (0, {}) if fault and fault.behaviour != "close-after" else self.double.answer(request)
        if fault is None and done[0] == 200 and request.path == PODS and "watch=1" in request.query:
            self._watch(int(parse_qs(request.query)["resourceVersion"][0]))
        elif fault is None:
            self._send(done[0], json.dumps(done[1]), {})
        else:
            self._send_fault(fault)

    def _send_fault(self, fault: Fault) -> None:
        if not fault.behaviour:
            self._send(fault.status, fault.body, fault.headers)
            return
        if fault.behaviour == "slow":
            self._send(200, '{"kind": "No', {"Content-Length": "100"})
        if fault.behaviour in ("hang", "slow"):
            self.double.stopped.wait(30)
        self.close_connection = True

    def _watch(self, version: int) -> None:
        """Stream the changes after a version until the client disconnects or an error event is sent."""
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        pods, known = self.double.pods, version
        while not self.double.stopped.wait(self.double.bookmark_s):
            with self.double.lock:
                found = list(pods.changes(known)) or [(known, pods.bookmark(known))]
            known = found[-1][0]
            for _, event in found:
                line = json.dumps(event).encode() + b"\n"
                self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
            self.wfile.flush()
            if found[-1][1]["type"] == "ERROR":
                break
        self.wfile.write(b"0\r\n\r\n")

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = handle_request  # noqa: N815 - names defined by http.server

    def _send(self, status: int, text: str, headers: dict[str, str]) -> None:
        body = text.encode()
        self.send_response(status)
        for name, value in {
            "Content-Type": "application/json",
            "Content-Length": str(len(body)),
            **headers,
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()

    def log_message(self, *_: Any) -> None: ...


@contextmanager
def serving_api(server: ApiServer, context: Callable[[], ssl.SSLContext]) -> Iterator[str]:
    """Serve the fake API server on a loopback port; yield its URL. The TLS context is created for each connection."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def get_request(self) -> tuple[ssl.SSLSocket, Any]:
            sock, address = super().get_request()
            return context().wrap_socket(sock, server_side=True, do_handshake_on_connect=False), address

        def handle_error(self, *_: Any) -> None: ...

    handler = type("Handler", (_Handler,), {"double": server})
    with Server(("127.0.0.1", 0), handler) as http:
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"https://127.0.0.1:{http.server_address[1]}"
        finally:
            server.stopped.set()
            http.shutdown()
            thread.join()
