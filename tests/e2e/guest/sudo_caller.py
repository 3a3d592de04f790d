"""Talks to the agent's sudo socket as no honest client does, then says what came back."""

import array
import json
import os
import socket
import struct
import sys

SOCKET = "/.hearth/sudo"
FDS = array.array("i", [0, 1, 2])


def field(letter, value):
    return letter + struct.pack(">I", len(value)) + value


def talk(length, body, fds=FDS, forge=None):
    """Sends a request by hand; gives the first letter of the answer, or what went wrong."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.settimeout(15)
    sock.connect(SOCKET)
    try:
        if sock.recv(1) != b"+":
            return "closed"
        notes = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)] if len(fds) else []
        if forge:
            notes.append((socket.SOL_SOCKET, 2, struct.pack("3i", *forge)))
        sock.sendmsg([struct.pack(">I", length)], notes)
        sock.sendall(body)
        return sock.recv(1).decode() or "closed"
    except PermissionError:
        return "forgery refused"
    except (ConnectionError, BrokenPipeError):
        return "closed"


good = field(b"d", b"/") + field(b"a", b"true")
cases = {
    "good": lambda: talk(len(good), good),
    "forged": lambda: talk(len(good), good, forge=(os.getpid(), 0, 0)),
    "no files": lambda: talk(len(good), good, fds=array.array("i")),
    "one file": lambda: talk(len(good), good, fds=array.array("i", [0])),
    "endless": lambda: talk(0xFFFFFFFF, good),
    "unknown letter": lambda: talk(5, b"z\0\0\0\0"),
    "length beyond its end": lambda: talk(6, b"a\0\0\0\x09x"),
    "nul in an argument": lambda: talk(8, b"a\0\0\0\x03x\0y"),
    "empty": lambda: talk(0, b""),
    "half": lambda: talk(len(good) + 50, good),
}
print(json.dumps({name: cases[name]() for name in (sys.argv[1:] or cases)}))
