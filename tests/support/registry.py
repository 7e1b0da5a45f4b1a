"""Read-only image registry on a loopback port, for pulls by a real containerd.

The registry serves the images of OCI archives. containerd 1 pulls from a loopback address by HTTP without
configuration. Source: OCI distribution specification, "Pull".
"""

from __future__ import annotations

import json
import tarfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Self

from tests.support.containerd_config import REGISTRIES

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.images import Archive

_BLOBS = "blobs/sha256/"


class Registry:
    """Registry that is served until :meth:`close`; the added archives must have image names below ``host``."""

    def __init__(self) -> None:
        registry = self
        self._blobs: dict[str, bytes] = {}
        self._manifests: dict[tuple[str, str], str] = {}

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self._answer()

            def do_HEAD(self) -> None:
                self._answer()

            def _answer(self) -> None:
                found = registry.find(self.path.partition("?")[0])
                if found is None:
                    self.send_response(404)
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return
                digest, kind, data = found
                self.send_response(200)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(data)))
                self.send_header("Docker-Content-Digest", digest)
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(data)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.host = f"127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the registry."""
        self._server.shutdown()
        self._server.server_close()

    def announce(self, base: Path) -> None:
        """Configure HTTP for this registry in the containerd 2 of ``base``, which reads the file at each pull."""
        directory = base / REGISTRIES / self.host
        directory.mkdir(parents=True)
        (directory / "hosts.toml").write_text(f'server = "http://{self.host}"\n')

    def add(self, archive: Archive) -> None:
        """Serve the images of an archive by their tags and digests."""
        with tarfile.open(archive.path) as tar:
            for member in tar:
                file = tar.extractfile(member) if member.name.startswith(_BLOBS) else None
                if file is not None:
                    self._blobs[f"sha256:{member.name.removeprefix(_BLOBS)}"] = file.read()
        for image in archive.images:
            for name in image.tags:
                repository, _, tag = name.removeprefix(f"{self.host}/").rpartition(":")
                self._manifests[repository, tag] = image.digest

    def find(self, path: str) -> tuple[str, str, bytes] | None:
        """Return digest, media type and content of the manifest or blob at a URL path; ``None`` if it is missing."""
        parts = path.removeprefix("/v2/").split("/")
        repository, kind, reference = "/".join(parts[:-2]), parts[-2] if len(parts) > 1 else "", parts[-1]
        digest = self._manifests.get((repository, reference), reference)
        data = self._blobs.get(digest)
        if data is None:
            return None
        media_type = str(json.loads(data)["mediaType"]) if kind == "manifests" else "application/octet-stream"
        return digest, media_type, data
