"""A user's server, run inside a sandbox: `http_server.py ADDRESS PORT`. Standard library only."""

import http.server
import json
import sys
import time


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def chunk(self, data):
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def start(self, kind="text/plain", status=200, length=None):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        if length is None:
            self.send_header("Transfer-Encoding", "chunked")
        else:
            self.send_header("Content-Length", str(length))
        self.end_headers()

    def do_GET(self):
        path, _, query = self.path.partition("?")
        if path == "/headers":
            body = json.dumps({"path": self.path, "headers": self.headers.items()}).encode()
            self.start("application/json", length=len(body))
            self.wfile.write(body)
        elif path == "/sse":  # one event per second, for ever
            self.start("text/event-stream")
            for i in range(10_000):
                self.chunk(f"data: {i}\n\n".encode())
                time.sleep(0.2)
        elif path == "/bytes":
            n = int(query)
            self.start(length=n)
            while n > 0:
                self.wfile.write(b"\0" * min(n, 65536))
                n -= 65536
        elif path == "/status":
            self.start(status=int(query), length=0)
        elif path == "/never":
            time.sleep(3600)
        elif path == "/half":  # promises more than it sends
            self.start(length=1000)
            self.wfile.write(b"only this")
            self.close_connection = True
        else:
            self.start(length=6)
            self.wfile.write(b"hello\n")

    do_DELETE = do_OPTIONS = do_PATCH = do_GET

    def do_HEAD(self):
        self.start(length=6)

    def parts(self):
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            while size := int(self.rfile.readline().split(b";")[0], 16):
                yield self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            left = int(self.headers.get("Content-Length", 0))
            while left > 0:
                data = self.rfile.read(min(left, 65536))
                if not data:
                    return
                left -= len(data)
                yield data

    def do_POST(self):
        if self.path == "/echo":  # answers part by part while the request still comes
            self.start()
            for data in self.parts():
                self.chunk(data)
            self.wfile.write(b"0\r\n\r\n")
        elif self.path == "/count":
            n = str(sum(len(data) for data in self.parts())).encode()
            self.start(length=len(n))
            self.wfile.write(n)
        elif self.path == "/slow":  # never reads its body
            time.sleep(3600)


if __name__ == "__main__":
    http.server.ThreadingHTTPServer.request_queue_size = 1024
    server = http.server.ThreadingHTTPServer((sys.argv[1], int(sys.argv[2])), Handler)
    server.daemon_threads = True
    print("listening", flush=True)
    server.serve_forever()
