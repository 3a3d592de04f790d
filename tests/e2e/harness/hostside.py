"""Services of the host itself, in the `host` namespace: what a sandbox must never reach.

HTTP and UDP on every address, and a way to the control plane on every address, so that
"the control plane is not reachable" is shown against a listener that answers elsewhere.
"""

import asyncio
import socket
import sys

sys.path.insert(0, __file__.rsplit("/", 1)[0])
import netns  # noqa: E402
import world  # noqa: E402

HTTP, UDP, CONTROL = 18080, 18081, 18090
CONTROL_PLANE = ("127.0.0.1", 3000)


async def pump(reader, writer):
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass
    finally:
        writer.close()


async def forward(reader, writer):
    try:
        up_reader, up_writer = await asyncio.open_connection(*CONTROL_PLANE)
    except OSError:
        writer.close()
        return
    await asyncio.gather(pump(reader, up_writer), pump(up_reader, writer))


async def main():
    loop = asyncio.get_running_loop()
    for addr in ("0.0.0.0", "::"):
        await asyncio.start_server(world.http, addr, HTTP)
        await asyncio.start_server(forward, addr, CONTROL)
        family = socket.AF_INET6 if ":" in addr else socket.AF_INET
        udp = socket.socket(family, socket.SOCK_DGRAM)
        if family == socket.AF_INET6:
            udp.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        udp.bind((addr, UDP))
        udp.setblocking(False)
        await loop.create_datagram_endpoint(world.EchoUdp, sock=udp)
    print("ready", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    netns.setns(sys.argv[1])
    asyncio.run(main())
