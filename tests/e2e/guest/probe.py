"""Tries to reach something from inside a sandbox and prints what came of it as one JSON line.

`probe.py tcp ADDR PORT [PATH]`: an HTTP request. `udp ADDR PORT TEXT`: a datagram that wants
an echo. `icmp ADDR TEXT`: a ping. `dns NAME`: the resolver. `dnsat ADDR NAME tcp|udp`: a
resolver of one's own. `many JSON`: a list of these at once, each a list of words. `spoof FROM TO PORT TEXT`: a datagram with a forged source. `bind FROM
TO PORT TEXT`: the same through an address given to the interface.
"""

import concurrent.futures
import json
import os
import socket
import struct
import subprocess
import sys

WAIT = 1.0


def family(addr):
    return socket.AF_INET6 if ":" in addr else socket.AF_INET


def tcp(addr, port, path="/"):
    with socket.create_connection((addr, int(port)), WAIT) as s:
        s.sendall(f"GET {path} HTTP/1.1\r\nHost: {addr}\r\nConnection: close\r\n\r\n".encode())
        data = b""
        while part := s.recv(65536):
            data += part
    return data.decode("latin-1")


def udp(addr, port, text):
    with socket.socket(family(addr), socket.SOCK_DGRAM) as s:
        s.settimeout(WAIT)
        for _ in range(2):
            s.sendto(text.encode(), (addr, int(port)))
            try:
                return s.recv(65536).decode()
            except TimeoutError:
                continue
    raise TimeoutError("no echo")


def checksum(data):
    data += b"\0" * (len(data) % 2)
    total = sum(struct.unpack(f">{len(data) // 2}H", data))
    total = (total >> 16) + (total & 0xFFFF)
    return ~(total + (total >> 16)) & 0xFFFF


def icmp(addr, text):
    body = text.encode()
    head = struct.pack(">BBHHH", 8, 0, 0, 4242, 1)
    packet = struct.pack(">BBHHH", 8, 0, checksum(head + body), 4242, 1) + body
    try:
        s = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
    except PermissionError:
        s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP)
    with s:
        s.settimeout(WAIT)
        for _ in range(2):
            s.sendto(packet, (addr, 0))
            try:
                while True:
                    data = s.recv(65536)
                    if body in data and (data[0] == 0 or data[20] == 0):
                        return "reply"
            except TimeoutError:
                continue
    raise TimeoutError("no reply")


def dns(name):
    return sorted({info[4][0] for info in socket.getaddrinfo(name, None)})


def dnsat(addr, name, how):
    labels = b"".join(bytes([len(part)]) + part.encode() for part in name.split("."))
    query = struct.pack(">HHHHHH", 77, 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack(">HH", 1, 1)
    if how == "tcp":
        with socket.create_connection((addr, 53), WAIT) as s:
            s.sendall(struct.pack(">H", len(query)) + query)
            return s.recv(65536)[2:].hex()
    with socket.socket(family(addr), socket.SOCK_DGRAM) as s:
        s.settimeout(WAIT)
        s.sendto(query, (addr, 53))
        return s.recv(65536).hex()


def forged(source, target, port, text):
    body = text.encode()
    datagram = struct.pack(">HHHH", 5353, int(port), 8 + len(body), 0) + body
    head = struct.pack(
        ">BBHHHBBH4s4s", 0x45, 0, 20 + len(datagram), 1, 0, 64, 17, 0, socket.inet_aton(source), socket.inet_aton(target)
    )
    head = head[:10] + struct.pack(">H", checksum(head)) + head[12:]
    return head + datagram


def spoof(source, target, port, text):
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW) as s:
        s.setsockopt(socket.IPPROTO_IP, socket.IP_HDRINCL, 1)
        for _ in range(3):
            s.sendto(forged(source, target, port, text), (target, 0))
    return "sent"


def bind(source, target, port, text):
    link = next(name for _, name in socket.if_nameindex() if name != "lo")
    subprocess.run(["ip", "addr", "add", f"{source}/32", "dev", link], check=True, capture_output=True)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.bind((source, 0))
        for _ in range(3):
            s.sendto(text.encode(), (target, int(port)))
    return "sent"


def attempt(kind, *args):
    try:
        return {"ok": True, "got": globals()[kind](*args)}
    except (OSError, subprocess.CalledProcessError) as e:
        return {"ok": False, "got": f"{type(e).__name__}: {e} uid {os.getuid()}"}


if __name__ == "__main__":
    socket.setdefaulttimeout(WAIT)
    if sys.argv[1] == "many":
        with concurrent.futures.ThreadPoolExecutor(32) as pool:
            print(json.dumps(list(pool.map(lambda words: attempt(*words), json.loads(sys.argv[2])))))
    else:
        print(json.dumps(attempt(*sys.argv[1:])))
