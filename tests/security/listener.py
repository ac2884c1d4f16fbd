"""Accepts whatever comes, by TCP and UDP, and prints a line for each: what a test counts. Runs from a ConfigMap."""

from __future__ import annotations

import asyncio
import sys
from typing import Any


class Datagrams(asyncio.DatagramProtocol):
    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def datagram_received(self, data: bytes, peer: Any) -> None:
        print(f"udp from {peer[0]}", flush=True)
        self._transport.sendto(b"heard", peer)


async def main(tcp: list[int], udp: int) -> None:
    def accept(port: int) -> Any:
        async def accepted(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            print(f"tcp {port} from {writer.get_extra_info('peername')[0]}", flush=True)
            writer.close()

        return accepted

    for port in tcp:
        await asyncio.start_server(accept(port), "0.0.0.0", port)
    await asyncio.get_running_loop().create_datagram_endpoint(Datagrams, local_addr=("0.0.0.0", udp))
    print("listening", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main([int(port) for port in sys.argv[2:]], int(sys.argv[1])))
