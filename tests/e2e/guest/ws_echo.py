"""A WebSocket echo server for a sandbox: `ws_echo.py ADDRESS PORT`. Standard library only."""

import base64
import hashlib
import socketserver
import struct
import sys

MAGIC = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


class Handler(socketserver.StreamRequestHandler):
    def handle(self):
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            line = self.rfile.readline()
            if not line:
                return
            head += line
        fields = dict(line.split(b": ", 1) for line in head.split(b"\r\n")[1:] if b": " in line)
        fields = {name.lower(): value for name, value in fields.items()}
        accept = base64.b64encode(hashlib.sha1(fields[b"sec-websocket-key"] + MAGIC).digest())
        self.wfile.write(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Accept: " + accept + b"\r\n\r\n"
        )
        while True:
            start = self.rfile.read(2)
            if len(start) < 2:
                return
            kind, size = start[0] & 15, start[1] & 127
            if size == 126:
                size = struct.unpack(">H", self.rfile.read(2))[0]
            elif size == 127:
                size = struct.unpack(">Q", self.rfile.read(8))[0]
            mask = self.rfile.read(4)
            data = self.rfile.read(size)
            key = int.from_bytes((mask * (size // 4 + 1))[:size], "big")
            data = (int.from_bytes(data, "big") ^ key).to_bytes(size, "big")
            if size < 126:
                head = bytes([0x80 | kind, size])
            elif size < 65536:
                head = bytes([0x80 | kind, 126]) + struct.pack(">H", size)
            else:
                head = bytes([0x80 | kind, 127]) + struct.pack(">Q", size)
            self.wfile.write(head + data)
            if kind == 8:
                return


class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True


if __name__ == "__main__":
    print("listening", flush=True)
    Server((sys.argv[1], int(sys.argv[2])), Handler).serve_forever()
