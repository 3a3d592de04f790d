"""A hostile server for a sandbox: `raw_server.py PORT FILE` answers every request with the bytes of FILE.

It keeps the connection open afterwards, so that what a proxy does with the rest is seen.
"""

import socketserver
import sys

ANSWER = open(sys.argv[2], "rb").read()


class Handler(socketserver.StreamRequestHandler):
    def handle(self):
        while line := self.rfile.readline():
            if line == b"\r\n":
                self.wfile.write(ANSWER)
                self.wfile.flush()


class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True


if __name__ == "__main__":
    print("listening", flush=True)
    Server(("0.0.0.0", int(sys.argv[1])), Handler).serve_forever()
