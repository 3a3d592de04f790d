"""The outside, as one process in the `world` namespace: standard library only.

HTTP at every address on port 80, HTTPS at the public one, TCP and UDP echo, DNS over UDP and TCP, and a sniffer
that notes every connection attempt, datagram and ping that reaches this namespace. The
notes are read through the admin port, so a test can assert that nothing arrived.
"""

import asyncio
import collections
import json
import socket
import ssl
import struct
import sys
import urllib.parse

sys.path.insert(0, __file__.rsplit("/", 1)[0])
import netns  # noqa: E402

ADMIN = (netns.WORLD_ADDR, 9000)
ECHO_TCP, ECHO_UDP, HTTP, HTTP_ALT = 7001, 7002, 80, 8080

NAMES = {
    "public.test": netns.PUBLIC,
    "other.public.test": netns.PUBLIC,
    "metadata.test": netns.METADATA,
    "lan.test": netns.LAN[0],
    "host.test": netns.HOST_ADDR,
}
NAMES6 = {"six.test": netns.PUBLIC6}

PACKETS = collections.deque(maxlen=20000)
QUERIES = collections.deque(maxlen=20000)


def reply(status, body, kind="application/json"):
    body = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return head.encode() + body


async def http(reader, writer):
    try:
        head = await reader.readuntil(b"\r\n\r\n")
        method, target, _ = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ", 2)
        url = urllib.parse.urlsplit(target)
        query = dict(urllib.parse.parse_qsl(url.query))
        here, peer = writer.get_extra_info("sockname"), writer.get_extra_info("peername")
        if url.path == "/bytes":
            n = int(query["n"])
            writer.write(f"HTTP/1.1 200 OK\r\nContent-Length: {n}\r\nConnection: close\r\n\r\n".encode())
            while n:
                part = min(n, 65536)
                writer.write(b"\0" * part)
                await writer.drain()
                n -= part
        elif here[1] == ADMIN[1] and url.path == "/packets":
            writer.write(reply("200 OK", list(PACKETS)))
        elif here[1] == ADMIN[1] and url.path == "/queries":
            writer.write(reply("200 OK", list(QUERIES)))
        else:
            writer.write(reply("200 OK", {"world": here[0], "peer": peer[0], "method": method, "path": target}))
        await writer.drain()
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError, ValueError, KeyError):
        pass
    finally:
        writer.close()


async def echo(reader, writer):
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass
    finally:
        writer.close()


class EchoUdp(asyncio.DatagramProtocol):
    def connection_made(self, transport):
        self.transport = transport

    def datagram_received(self, data, addr):
        self.transport.sendto(data, addr)


def dns_answer(query, over_tcp):
    """Answers A, AAAA and TXT of the names above; NXDOMAIN for the rest."""
    ident, flags, n_questions = struct.unpack(">HHH", query[:6])
    at, labels = 12, []
    while query[at]:
        labels.append(query[at + 1 : at + 1 + query[at]].decode("latin-1").lower())
        at += 1 + query[at]
    qtype = struct.unpack(">H", query[at + 1 : at + 3])[0]
    question = query[12 : at + 5]
    name = ".".join(labels)
    QUERIES.append({"name": name, "type": qtype, "tcp": over_tcp})
    answers, rcode, truncated = [], 0, False
    if name in NAMES and qtype == 1:
        answers.append((1, socket.inet_aton(NAMES[name])))
    elif name in NAMES6 and qtype == 28:
        answers.append((28, socket.inet_pton(socket.AF_INET6, NAMES6[name])))
    elif name == "big.test" and qtype == 16:
        if over_tcp:
            answers = [(16, bytes([250]) + b"x" * 250) for _ in range(30)]
        else:
            truncated = True
    elif name not in NAMES and name not in NAMES6 and name != "big.test":
        rcode = 3
    head = struct.pack(
        ">HHHHHH", ident, 0x8180 | (0x0200 if truncated else 0) | rcode, n_questions, len(answers), 0, 0
    )
    body = b"".join(b"\xc0\x0c" + struct.pack(">HHIH", t, 1, 30, len(d)) + d for t, d in answers)
    return head + question + body


class DnsUdp(asyncio.DatagramProtocol):
    def connection_made(self, transport):
        self.transport = transport

    def datagram_received(self, data, addr):
        try:
            self.transport.sendto(dns_answer(data, False), addr)
        except (IndexError, struct.error):
            pass


async def dns_tcp(reader, writer):
    try:
        while True:
            size = struct.unpack(">H", await reader.readexactly(2))[0]
            answer = dns_answer(await reader.readexactly(size), True)
            writer.write(struct.pack(">H", len(answer)) + answer)
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError, IndexError, struct.error):
        pass
    finally:
        writer.close()


def sniff(sock):
    """Notes what arrives: first packets of TCP, everything of other protocols."""
    try:
        frame, addr = sock.recvfrom(65535)
    except BlockingIOError:
        return
    if addr[2] == socket.PACKET_OUTGOING:
        return
    kind = struct.unpack(">H", frame[12:14])[0]
    packet = frame[14:]
    note = None
    if kind == 0x0800 and len(packet) >= 20:
        size = (packet[0] & 15) * 4
        note = {"src": socket.inet_ntoa(packet[12:16]), "dst": socket.inet_ntoa(packet[16:20]), "proto": packet[9]}
        rest = packet[size:]
    elif kind == 0x86DD and len(packet) >= 40:
        note = {
            "src": socket.inet_ntop(socket.AF_INET6, packet[8:24]),
            "dst": socket.inet_ntop(socket.AF_INET6, packet[24:40]),
            "proto": packet[6],
        }
        rest = packet[40:]
    if note is None:
        return
    if note["proto"] == 6 and (len(rest) < 14 or rest[13] & 0x12 != 0x02):
        return  # TCP, not a first SYN
    if note["proto"] in (6, 17) and len(rest) >= 4:
        note["dport"] = struct.unpack(">H", rest[2:4])[0]
    note["data"] = rest[8:72].hex()
    PACKETS.append(note)


async def main():
    loop = asyncio.get_running_loop()
    for addr in [netns.PUBLIC, netns.METADATA, netns.LINK_LOCAL, *netns.LAN, netns.PUBLIC6, netns.WORLD_ADDR, netns.WORLD_ADDR6]:
        for port in (HTTP, HTTP_ALT):
            await asyncio.start_server(http, addr, port)
        await asyncio.start_server(echo, addr, ECHO_TCP)
        await loop.create_datagram_endpoint(EchoUdp, (addr, ECHO_UDP))
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(f"{sys.argv[2]}/cert.pem", f"{sys.argv[2]}/key.pem")
    await asyncio.start_server(http, netns.PUBLIC, 443, ssl=tls)
    await asyncio.start_server(http, *ADMIN)
    for addr in (netns.DNS, netns.METADATA, netns.PUBLIC):
        await loop.create_datagram_endpoint(DnsUdp, (addr, 53))
        await asyncio.start_server(dns_tcp, addr, 53)
    raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
    raw.bind(("host0", 0))
    raw.setblocking(False)
    loop.add_reader(raw, sniff, raw)
    print("ready", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    netns.setns(sys.argv[1])
    asyncio.run(main())
