"""Host side of the control channel of a node; ``vm_guest`` is the guest side."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from concurrent.futures import Future, TimeoutError as FutureTimeoutError
from typing import Any

from tests.support import vm_guest

_SEND_S = 60


class NodeError(Exception):
    """Failure of the node or of a command in the node; the text contains the output."""


class NodeOffError(NodeError):
    """Failure of a request because the node is powered off."""


class ControlChannel(vm_guest.Channel):
    """Host side of the control channel; thread-safe."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", _SEND_S, 0))
        super().__init__(self._socket.fileno())
        self._waiting: dict[int, Future[tuple[dict[str, Any], bytes]]] = {}
        self._guard = threading.Lock()
        self._numbers = 0
        self._ended = False
        self._receiver = threading.Thread(target=self._receive_all, name="node control", daemon=True)
        self._receiver.start()

    def ask(self, head: dict[str, Any], raw: bytes, timeout_s: float) -> tuple[dict[str, Any], bytes]:
        """Send a request to the node and wait for its response."""
        answer: Future[tuple[dict[str, Any], bytes]] = Future()
        with self._guard:
            if self._ended:
                raise NodeOffError(f"{head['argv']}: node powered off")
            self._numbers += 1
            number = self._numbers
            self._waiting[number] = answer
        try:
            self.send({**head, "id": number}, raw)
            return answer.result(timeout_s)
        except BlockingIOError:
            raise TimeoutError(f"{head['argv']}: request not accepted by the node in {_SEND_S} s") from None
        except FutureTimeoutError:
            raise TimeoutError(f"{head['argv']}: no response of the node in {timeout_s:g} s") from None
        except OSError as error:
            raise NodeOffError(f"{head['argv']}: {error}") from error
        finally:
            with self._guard:
                self._waiting.pop(number, None)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._receiver.join()
        self._socket.close()

    def nothing_read(self) -> None:
        raise EOFError("the node powered off")

    def _receive_all(self) -> None:
        try:
            while True:
                head, raw = self.receive()
                with self._guard:
                    waiting = self._waiting.get(head["id"])
                if waiting is not None:
                    waiting.set_result((head, raw))
        except (EOFError, OSError) as error:
            with self._guard:
                self._ended = True
                lost = list(self._waiting.values())
            for one in lost:
                one.set_exception(NodeOffError(str(error)))
