"""Guest side of the control channel: runs commands that the test on the host sends over a virtio port.

systemd starts this file early with the distribution's Python, so that only the standard library is available. A message
is an eight-byte length, a JSON head, and raw bytes; ``size`` in the head is the number of raw bytes. The head of a
request has ``id``, ``argv``, ``env``, ``cwd`` and ``timeout_s``; its raw bytes are the standard input. The head of a
response has ``id``, ``code`` (null after a timeout), and ``stdout`` and ``stderr`` as lengths of the two parts of the
raw bytes; if the command could not be started, the head has ``error`` instead. Requests run concurrently.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import struct
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

PORT = "nodeagent.control"

_LENGTH = struct.Struct(">Q")
_LOCK_CURRENT_AND_FUTURE_ON_FAULT = 1 | 2 | 4
_AFTER_KILL_S = 5.0
# This program is exempt from the OOM killer; the commands that it runs must not inherit the exemption.
_AS_ORDINARY = ("choom", "--adjust", "0", "--")


class Channel:
    """Message channel over one file descriptor; several threads may send, one thread may receive."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._sending = threading.Lock()

    def receive(self) -> tuple[dict[str, Any], bytes]:
        (length,) = _LENGTH.unpack(self._read(_LENGTH.size))
        head: dict[str, Any] = json.loads(self._read(length))
        return head, self._read(head["size"])

    def send(self, head: dict[str, Any], raw: bytes = b"") -> None:
        encoded = json.dumps({**head, "size": len(raw)}).encode()
        with self._sending:
            left = memoryview(_LENGTH.pack(len(encoded)) + encoded + raw)
            while left:
                left = left[os.write(self._descriptor, left[: 1 << 16]) :]

    def _read(self, size: int) -> bytes:
        parts = bytearray()
        while len(parts) < size:
            part = os.read(self._descriptor, min(size - len(parts), 1 << 20))
            if part:
                parts += part
            else:
                self.nothing_read()
        return bytes(parts)

    def nothing_read(self) -> None:
        """Wait for the host: a virtio port without a peer returns end of file, and poll(2) reports only a hang-up."""
        select.poll().poll(100)


def serve(channel: Channel) -> None:
    """Handle requests forever."""
    while True:
        head, raw = channel.receive()
        threading.Thread(target=_answer, args=(channel, head, raw), daemon=True).start()


def _answer(channel: Channel, head: dict[str, Any], stdin: bytes) -> None:
    try:
        code, stdout, stderr = _run(head, stdin)
    except OSError as error:
        channel.send({"id": head["id"], "error": str(error)})
        return
    channel.send({"id": head["id"], "code": code, "stdout": len(stdout), "stderr": len(stderr)}, stdout + stderr)


def _run(head: dict[str, Any], stdin: bytes) -> tuple[int | None, bytes, bytes]:
    process = subprocess.Popen(
        [*_AS_ORDINARY, *head["argv"]],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **head["env"]},
        cwd=head["cwd"],
        start_new_session=True,
    )
    try:
        stdout, stderr = process.communicate(stdin, timeout=head["timeout_s"])
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        try:
            stdout, stderr = process.communicate(timeout=_AFTER_KILL_S)
        except subprocess.TimeoutExpired as held:  # a child process in another session still has the output pipes open
            stdout, stderr = held.output or b"", held.stderr or b""
        return None, stdout, stderr
    return process.returncode, stdout, stderr


def _port() -> Path:
    for name in Path("/sys/class/virtio-ports").glob("*/name"):
        if name.read_text().strip() == PORT:
            return Path("/dev") / name.parent.name
    sys.exit(f"no virtio port is named {PORT}")


def main() -> None:
    """Lock the memory of this process and serve requests on the virtio port of this machine."""
    threading.stack_size(512 << 10)
    ctypes.CDLL(None).mlockall(_LOCK_CURRENT_AND_FUTURE_ON_FAULT)
    serve(Channel(os.open(_port(), os.O_RDWR)))


if __name__ == "__main__":
    main()
