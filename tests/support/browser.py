"""A headless Chromium for tests of pages, driven by the DevTools protocol over pipes.

Source: https://chromedevtools.github.io/devtools-protocol/, ``--remote-debugging-pipe``: JSON messages that end with
NUL, read by Chromium from descriptor 3 and written to descriptor 4.
"""

from __future__ import annotations

import base64
import itertools
import json
import os
import select
import subprocess
import tempfile
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_OPTIONS: Final = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions"),
    "--remote-debugging-pipe",
)
_WITHIN_S: Final = 60.0
_HEIGHT: Final = 900


class Browser:
    """One page of a running Chromium; ``events`` are the events of the protocol since the last navigation."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._to, self._from = to_browser, from_browser
        self._received = b""
        self._ids = itertools.count(1)
        self._session = ""
        self.events: list[dict[str, Any]] = []
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self._call(f"{domain}.enable")

    def _call(self, method: str, **params: object) -> dict[str, Any]:
        number = next(self._ids)
        session = {"sessionId": self._session} if self._session else {}
        message = {"id": number, "method": method, "params": params, **session}
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == number:
                assert "error" not in answer, (method, answer)
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def _receive(self) -> dict[str, Any]:
        until_s = time.monotonic() + _WITHIN_S
        while b"\0" not in self._received:
            ready, _, _ = select.select([self._from], [], [], max(0.0, until_s - time.monotonic()))
            read = os.read(self._from, 1 << 20) if ready else b""
            assert read, "no message from Chromium"
            self._received += read
        message, _, self._received = self._received.partition(b"\0")
        decoded: dict[str, Any] = json.loads(message)
        return decoded

    def open(self, url: str, width: int, scheme: str) -> None:
        """Open an address in a window of this width, in the colour scheme ``light`` or ``dark``."""
        self.events.clear()
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=_HEIGHT, deviceScaleFactor=1, mobile=False)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self._call("Emulation.setEmulatedMedia", media="", features=features)
        self._call("Page.navigate", url=url)
        while not any(each.get("method") == "Page.loadEventFired" for each in self.events):
            self.events.append(self._receive())

    def evaluate(self, expression: str) -> Any:
        """Return the value of an expression of JavaScript in the page."""
        return self._call("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def screenshot(self) -> bytes:
        """Return the whole page as PNG."""
        return base64.b64decode(self._call("Page.captureScreenshot", captureBeyondViewport=True)["data"])

    def pdf(self) -> bytes:
        """Return the page as printed."""
        return base64.b64decode(self._call("Page.printToPDF", preferCSSPageSize=True)["data"])

    def emulate_print(self) -> None:
        """Show the page as printed."""
        self._call("Emulation.setEmulatedMedia", media="print")

    @property
    def requested(self) -> list[str]:
        """Addresses requested by the page, the page itself included."""
        return [
            each["params"]["request"]["url"]
            for each in self.events
            if each.get("method") == "Network.requestWillBeSent"
        ]

    @property
    def faults(self) -> list[dict[str, Any]]:
        """Messages of the console, exceptions and dialogs of the page."""
        kinds = (
            "Log.entryAdded",
            "Runtime.consoleAPICalled",
            "Runtime.exceptionThrown",
            "Page.javascriptDialogOpening",
        )
        return [each for each in self.events if each.get("method") in kinds]


@contextmanager
def running_browser() -> Iterator[Browser]:
    """Start a Chromium with an empty profile; it ends with the block."""
    with tempfile.TemporaryDirectory(prefix="page") as profile:
        (into, to_browser), (from_browser, out) = os.pipe(), os.pipe()
        words = ["chromium", *_OPTIONS, f"--user-data-dir={profile}"]
        shell = ["bash", "-c", f'exec "$@" 3<&{into} 4>&{out}', "bash", *words]
        process = subprocess.Popen(shell, pass_fds=(into, out), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        os.close(into)
        os.close(out)
        try:
            yield Browser(to_browser, from_browser)
        finally:
            process.terminate()
            process.wait(30)
            os.close(to_browser)
            os.close(from_browser)
