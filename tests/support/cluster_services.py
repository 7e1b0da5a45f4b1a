"""Service ``kubernetes.default.svc`` of a cluster without kube-proxy and DNS add-on, in the network of a node.

``python -m tests.support.cluster_services ADDRESS PORT``: a DNS server on 127.0.0.1 returns the address of the service,
and connections to port 443 of the address are relayed to a port on loopback.
"""

from __future__ import annotations

import asyncio
import ipaddress
import struct
import sys

from tests.support.unix_relay import relay_to

NAME = b"\x0akubernetes\x07default\x03svc\x07cluster\x05local\x00"
_TYPE_A, _HEADER = 1, struct.Struct(">6H")


def answer(query: bytes, address: str) -> bytes:
    """Return the response to a DNS query: the address for a query of type A, ``NXDOMAIN`` for another name.

    Source: RFC 1035, 4.1.
    """
    number, _, *_ = _HEADER.unpack_from(query)
    end = query.index(b"\0", _HEADER.size) + 5
    question = query[_HEADER.size : end]
    known = question[:-4].lower() == NAME
    (kind,) = struct.unpack_from(">H", question, len(question) - 4)
    records = b""
    if known and kind == _TYPE_A:
        records = b"\xc0\x0c" + struct.pack(">HHIH", _TYPE_A, 1, 30, 4) + ipaddress.IPv4Address(address).packed
    return _HEADER.pack(number, 0x8580 if known else 0x8583, 1, 1 if records else 0, 0, 0) + question + records


class _Dns(asyncio.DatagramProtocol):
    def __init__(self, address: str) -> None:
        self._address = address

    def connection_made(self, transport: asyncio.DatagramTransport) -> None:  # type: ignore[override]
        self._transport = transport

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        self._transport.sendto(answer(data, self._address), addr)


async def _serve(address: str, port: int) -> None:
    await asyncio.get_running_loop().create_datagram_endpoint(lambda: _Dns(address), ("127.0.0.1", 53))
    server = await asyncio.start_server(relay_to(port), address, 443)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1], int(sys.argv[2])))
