"""Hostile use of the edge, from outside and from inside a sandbox.

From outside: the agent's inner routes, smuggled routing, slow and vanishing clients. From
inside: servers that answer with bytes no honest server sends.
"""

import os
import socket
import struct
import threading
import time

import httpx
import pytest
from e2b import Sandbox

from harness import rpc
from harness.guest import probe, serve
from harness.wait import wait_for


@pytest.fixture(scope="module")
def web(server):
    box = Sandbox.create(timeout=3600)
    serve(box, "http_server.py", "0.0.0.0", 8000)
    yield box
    box.kill()


@pytest.fixture(scope="module")
def victim(server):
    box = Sandbox.create(timeout=3600)
    serve(box, "http_server.py", "0.0.0.0", 8000)
    yield box
    box.kill()


def connect(server, wait=10):
    return socket.create_connection(("127.0.0.1", server.port), wait)


def talk(server, data, wait=5.0):
    """All that comes back until the server closes or is silent for `wait` seconds."""
    with connect(server, wait) as s:
        got = b""
        try:
            s.sendall(data)
            while part := s.recv(65536):
                got += part
        except (TimeoutError, ConnectionError):
            pass
        return got


def routing(box, port=8000):
    return f"E2b-Sandbox-Id: {getattr(box, 'sandbox_id', box)}\r\nE2b-Sandbox-Port: {port}\r\n"


def status(answer):
    return int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/1") else 0


def sockets(server):
    count = 0
    for fd in os.listdir(f"/proc/{server.pid}/fd"):
        try:
            count += os.readlink(f"/proc/{server.pid}/fd/{fd}").startswith("socket:")
        except OSError:
            pass
    return count


# -- the agent's inner side --------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/health", "/logs", "/processes", "/tunnel?port=8000", "/"])
@pytest.mark.parametrize("how", ["headers", "host"])
def test_the_control_port_is_never_routed(server, web, path, how):
    """The same path on the same agent answers on its public port, or is there for the host alone."""
    with server.edge(web) as edge:
        assert edge.get("/health").status_code == 204
    head = {"X-Hearth-Control": "x"}
    if how == "headers":
        head |= {"E2b-Sandbox-Id": web.sandbox_id, "E2b-Sandbox-Port": "49982"}
    else:
        head |= {"Host": f"49982-{web.sandbox_id}.localhost"}
    answer = httpx.get(f"{server.url}{path}", headers=head)
    assert answer.status_code in (400, 403, 404, 502), answer.status_code
    assert answer.status_code != 204


def test_the_control_port_is_closed_from_inside_without_the_secret(web):
    """It may listen, but answers nobody who lacks the header."""
    for where in ("127.0.0.1",):
        for path in ("/health", "/logs", "/processes"):
            out = web.commands.run(
                f"curl -s -m 3 -o /dev/null -w '%{{http_code}}' -H 'x-hearth-control: guess' http://{where}:49982{path} || true", user="root"
            ).stdout
            assert not out.startswith("2"), (path, out)


def test_the_control_secret_is_not_to_be_found_inside(web):
    """Neither in the environment nor in the arguments of PID 1, nor where a user may read."""
    for path in ("/proc/1/environ", "/proc/1/cmdline"):
        text = web.commands.run(f"tr '\\0' '\\n' < {path} || true", user="user").stdout.lower()
        assert "secret" not in text and web._envd_access_token not in text


@pytest.mark.parametrize("path", ["/init", "/freeze", "/unfreeze", "/collapse", "/fsfreeze", "/fsthaw", "/upgrade"])
@pytest.mark.parametrize("spelling", ["{}", "/{}", "/.{}", "/x/..{}", "{}/", "{}?x=1", "%2f{}", "{}%00"])
def test_inner_routes_of_the_agent_are_404(server, web, path, spelling):
    target = spelling.format(path)
    if not target.startswith("/"):
        target = "/" + target
    answer = talk(
        server,
        f"POST {target} HTTP/1.1\r\nHost: x\r\n{routing(web, 49983)}X-Access-Token: {web._envd_access_token}\r\n"
        "Content-Type: application/json\r\nContent-Length: 27\r\nConnection: close\r\n\r\n".encode()
        + b'{"accessToken":"attacker"} ',
    )
    assert status(answer) in (400, 404), answer[:200]
    with server.edge(web) as edge:
        assert edge.get("/envs").status_code == 200, "the old token is still the token"


def test_inner_headers_from_outside_mean_nothing(server, web):
    with server.edge(web, token="wrong") as edge:
        for name in ("X-Hearth-Control", "X-Hearth-Internal", "X-Forwarded-For", "X-Real-Ip", "Forwarded"):
            assert edge.get("/envs", headers={name: "127.0.0.1"}).status_code == 401


# -- routing that contradicts itself --------------------------------------------------------------------


def test_repeated_routing_headers_are_refused(server, web, victim):
    one = talk(server, f"GET / HTTP/1.1\r\nHost: x\r\n{routing(web)}Connection: close\r\n\r\n".encode())
    assert b"hello" in one
    for head in (routing(web) + routing(victim), routing(web) + "E2b-Sandbox-Port: 49983\r\n", routing(web) + routing(web)):
        answer = talk(server, f"GET / HTTP/1.1\r\nHost: x\r\n{head}Connection: close\r\n\r\n".encode())
        assert status(answer) == 400, answer[:200]


def test_headers_win_over_the_host_and_only_one_is_followed(server, web, victim):
    web.files.write("/tmp/who", "web")
    victim.files.write("/tmp/who", "victim")
    answer = httpx.get(
        f"{server.url}/files", params={"path": "/tmp/who"},
        headers={"Host": f"49983-{victim.sandbox_id}.localhost", "E2b-Sandbox-Id": web.sandbox_id,
                 "E2b-Sandbox-Port": "49983", "X-Access-Token": web._envd_access_token},
    )  # fmt: skip
    assert answer.text == "web"


@pytest.mark.parametrize("line", [
    "E2b-Sandbox-Id : {id}", " E2b-Sandbox-Id: {id}", "E2b-Sandbox-Id\t: {id}", "E2b_Sandbox_Id: {id}",
    "E2b-Sandbox-Id: {id}\r\n E2b-continued: x", "E2b-Sandbox-Id: {id}\x00", "E2b-Sandbox-Id: {id}\rX: y", "X: y\nE2b-Sandbox-Id: {id}",
])  # fmt: skip
def test_malformed_header_lines_do_not_route(server, web, line):
    """What another proxy might read as a routing header is refused, or is no routing header at all."""
    head = line.replace("{id}", web.sandbox_id)
    answer = talk(server, f"GET / HTTP/1.1\r\nHost: x\r\n{head}\r\nE2b-Sandbox-Port: 8000\r\nConnection: close\r\n\r\n".encode("latin-1"))
    if line.startswith("X: y\n"):
        assert status(answer) in (200, 400)  # a bare LF ends a line, as RFC 9112 2.2 allows
    else:
        assert b"hello" not in answer and status(answer) in (400, 401, 404), answer[:200]


def test_connection_cannot_nominate_the_routing_headers_away(server, web):
    """`Connection: E2b-Sandbox-Id` asks a proxy to drop the header: routing comes first."""
    answer = talk(server, f"GET / HTTP/1.1\r\nHost: x\r\n{routing(web)}Connection: close, E2b-Sandbox-Id, E2b-Sandbox-Port\r\n\r\n".encode())
    assert status(answer) in (200, 400) and b"sandboxID" not in answer


@pytest.mark.parametrize(
    "body",
    [
        "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /headers HTTP/1.1\r\nHost: x\r\n\r\n",
        "Content-Length: 4\r\nContent-Length: 40\r\n\r\nabcdGET /headers HTTP/1.1\r\nHost: x\r\n\r\n",
        "Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\nGET /headers HTTP/1.1\r\nHost: x\r\n\r\n",
        "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\nGET /headers HTTP/1.1\r\nHost: x\r\n\r\n",
        "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\nGET /headers HTTP/1.1\r\nHost: x\r\n\r\n",
        "Transfer-Encoding: chunked\r\n\r\n-1\r\nx\r\n0\r\n\r\n",
        "Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\nx\r\n0\r\n\r\n",
        "Transfer-Encoding: chunked\r\n\r\n5;" + "e" * 70000 + "\r\nhello\r\n0\r\n\r\n",
    ],
    ids=["cl-te", "cl-cl", "te-identity", "te-x", "te-space", "negative", "huge", "extension"],
)
def test_a_second_request_cannot_be_smuggled_to_a_sandbox(server, web, body):
    answer = talk(server, f"POST /count HTTP/1.1\r\nHost: x\r\n{routing(web)}{body}".encode(), wait=3)
    # A pipelined request without routing headers belongs to the control API: never to the sandbox.
    assert b'"path": "/headers"' not in answer, answer[:500]
    assert b"sandboxID" not in answer
    with server.edge(web, 8000) as edge:
        assert edge.get("/").text == "hello\n"


def test_each_request_of_a_connection_is_routed_by_itself(server, web):
    """Keep-alive from one sandbox to the control plane and back: nothing carries over."""
    with connect(server) as s:
        for head, expected in ((routing(web), b"hello"), ("", b"401"), (routing("i" + "0" * 25), b"502"), (routing(web), b"hello")):
            s.sendall(f"GET {'/' if head else '/v2/sandboxes'} HTTP/1.1\r\nHost: x\r\n{head}\r\n".encode())
            got = b""
            while expected not in got or not complete(got):
                part = s.recv(65536)
                assert part, got
                got += part


def complete(answer):
    head, _, body = answer.partition(b"\r\n\r\n")
    for line in head.split(b"\r\n"):
        if line.lower().startswith(b"content-length:"):
            return len(body) >= int(line.split(b":")[1])
    return body.endswith(b"0\r\n\r\n")


# -- hostile servers inside ---------------------------------------------------------------------------------


def hostile(box, port, answer):
    box.files.write("/tmp/answer", answer)
    return serve(box, "raw_server.py", port, "/tmp/answer")


OK = b"HTTP/1.1 200 OK\r\n"


def test_a_second_answer_is_not_given_to_anybody(server, new_sandbox, web):
    """Two answers to one request: the extra one must not wait for the next client."""
    box = new_sandbox()
    hostile(box, 8000, OK + b"Content-Length: 5\r\n\r\nfirst" + OK + b"Content-Length: 6\r\n\r\npoison")
    with httpx.Client(base_url=server.url, timeout=5) as client:
        for _ in range(5):
            head = {"E2b-Sandbox-Id": box.sandbox_id, "E2b-Sandbox-Port": "8000"}
            assert client.get("/", headers=head).text == "first"
            head["E2b-Sandbox-Id"] = web.sandbox_id
            assert client.get("/", headers=head).text == "hello\n"
            assert client.get("/health").text == ""


@pytest.mark.parametrize(
    "answer",
    [
        b"", b"\0" * 100, b"garbage\r\n\r\n", b"HTTP/9.9 200 OK\r\n\r\n", b"HTTP/1.1 999999 X\r\n\r\n", b"HTTP/1.1 200 OK\r\nBad Header\r\n\r\n",
        OK + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello", OK + b"Content-Length: -1\r\n\r\n", OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        OK + b"X: " + b"a" * 300_000 + b"\r\n\r\n", OK + b"".join(b"X%d: y\r\n" % i for i in range(5000)) + b"\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" * 1000, b"\x16\x03\x01\x02\x00\x01", b"SSH-2.0-OpenSSH\r\n",
    ],
    ids=lambda a: repr(a[:24]),
)  # fmt: skip
def test_a_server_that_does_not_speak_http(server, victim, web, answer):
    """The client gets an error or a cut connection; the edge lives."""
    handle = hostile(victim, 8200, answer)
    try:
        with server.edge(victim, 8200, timeout=3) as edge:
            got = edge.get("/")
            assert got.status_code >= 500, (got.status_code, got.text[:200])
    except httpx.HTTPError:
        pass
    finally:
        handle.kill()
    with server.edge(web, 8000) as edge:
        assert edge.get("/").text == "hello\n"


def test_headers_of_an_answer_cannot_speak_for_the_edge(server, new_sandbox):
    """Hop-by-hop and routing headers of a sandbox's answer stay between it and the edge."""
    box = new_sandbox()
    hostile(
        box, 8000,
        OK + b"Content-Length: 2\r\nConnection: keep-alive, X-Drop\r\nX-Drop: 1\r\nKeep-Alive: timeout=9999\r\nProxy-Authenticate: Basic\r\n\r\nok",
    )  # fmt: skip
    with server.edge(box, 8000) as edge:
        answer = edge.get("/")
    assert answer.text == "ok"
    for name in ("X-Drop", "Keep-Alive"):
        assert name not in answer.headers


def test_a_101_nobody_asked_for_is_not_a_tunnel(server, new_sandbox):
    box = new_sandbox()
    hostile(box, 8000, b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: anything\r\n\r\nraw bytes from inside")
    answer = talk(server, f"GET / HTTP/1.1\r\nHost: x\r\n{routing(box)}\r\n".encode(), wait=3)
    assert b"raw bytes" not in answer
    assert status(answer) in (0, 502)


def test_a_sandbox_cannot_use_the_edge_as_another(server, web, victim):
    """Requests with routing headers sent from inside reach neither the edge nor a sandbox."""
    with server.edge(victim, 8000) as edge:
        assert edge.get("/").text == "hello\n"
    gateway = web.commands.run("ip route show default").stdout.split("via ")[1].split()[0]
    for host in (gateway, "198.51.100.2", "10.39.0.1"):
        for port in (3000, 18090):
            out = web.commands.run(
                f"curl -s -m 2 -H 'E2b-Sandbox-Id: {victim.sandbox_id}' -H 'E2b-Sandbox-Port: 8000' http://{host}:{port}/ || echo refused"
            ).stdout
            assert out == "refused\n", out


def test_routing_headers_to_the_agent_from_inside_do_not_route(web, victim):
    """The agent is no proxy: with another's id it answers for itself."""
    out = web.commands.run(
        f"curl -s -m 3 -o /dev/null -w '%{{http_code}}' -H 'E2b-Sandbox-Id: {victim.sandbox_id}' -H 'E2b-Sandbox-Port: 8000' "
        "http://127.0.0.1:49983/files?path=/etc/hostname || true"
    ).stdout
    assert out == "401"
    out = web.commands.run("curl -s -m 3 -x http://127.0.0.1:49983 -o /dev/null -w '%{http_code}' http://public.test/ || true").stdout
    assert not out.startswith("2")


def test_the_agents_token_is_needed_inside_too(web):
    answer = probe(web, "tcp", "127.0.0.1", 49983, "/envs")
    assert answer["ok"] and "401" in answer["got"].split("\r\n")[0]


# -- slow and vanishing clients ------------------------------------------------------------------------------------


def test_slow_readers_do_not_fill_memory(server, web):
    """Ten clients ask for a gigabyte each and read nothing."""
    before = server.rss_mib()[0]
    server.reset_peak()
    held = []
    for _ in range(10):
        s = connect(server)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        s.sendall(f"GET /bytes?{1 << 30} HTTP/1.1\r\nHost: x\r\n{routing(web)}\r\n".encode())
        assert s.recv(10)
        held.append(s)
    with server.edge(web, 8000) as edge:
        for _ in range(20):
            assert edge.get("/").text == "hello\n"
    assert server.rss_mib()[1] - before < 64
    for s in held:
        s.close()
    wait_for(lambda: sockets(server) < 80, 20, "their connections are let go")


def test_a_slow_reader_of_command_output_holds_only_itself(server, web):
    before = server.rss_mib()[0]
    server.reset_peak()
    message = rpc.envelope({"process": {"cmd": "/bin/bash", "args": ["-c", "head -c 300000000 /dev/zero"]}})
    head = (
        f"POST /process.Process/Start HTTP/1.1\r\nHost: x\r\n{routing(web, 49983)}X-Access-Token: {web._envd_access_token}\r\n"
        f"Content-Type: application/connect+json\r\nConnect-Protocol-Version: 1\r\nContent-Length: {len(message)}\r\n\r\n"
    )
    with connect(server) as s:
        s.sendall(head.encode() + message)
        assert s.recv(1000)
        assert web.commands.run("echo others go on").stdout == "others go on\n"
        assert server.rss_mib()[1] - before < 64
        rss = int(web.files.read("/proc/1/status").split("VmRSS:")[1].split()[0])
        assert rss < 96 * 1024


def test_slow_writers_are_cut_or_held_cheaply(server, web):
    """Headers byte by byte (slowloris), and bodies that never end: others are served."""
    held = []
    for i in range(100):
        s = connect(server)
        s.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nX-Slow: ")
        held.append(s)
    for _ in range(20):
        s = connect(server)
        s.sendall(f"POST /slow HTTP/1.1\r\nHost: x\r\n{routing(web)}Content-Length: 1000000000\r\n\r\n".encode() + b"x" * 1000)
        held.append(s)
    with server.edge(web, 8000) as edge, server.api() as api:
        for _ in range(10):
            assert edge.get("/").text == "hello\n"
            assert api.get("/v2/sandboxes").status_code == 200
        for s in held[:100]:
            s.sendall(b"a")
        assert edge.get("/").text == "hello\n"
    for s in held:
        s.close()
    wait_for(lambda: sockets(server) < 80, 20, "their connections are let go")


def test_endless_headers_are_cut(server):
    before = server.rss_mib()[0]
    server.reset_peak()
    with connect(server) as s:
        s.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n")
        answer = b""
        try:
            for i in range(100_000):
                s.sendall(b"X-%d: " % i + b"y" * 1000 + b"\r\n")
            answer = s.recv(1000)
        except (ConnectionError, TimeoutError):
            pass
    assert status(answer) in (0, 400, 431)
    assert server.rss_mib()[1] - before < 32


@pytest.mark.parametrize(
    "data", [b"\0" * 1000, b"\x16\x03\x01" + b"\0" * 500, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 500, b"GET\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n",
             b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", b"CONNECT 127.0.0.1:3000 HTTP/1.1\r\nHost: x\r\n\r\n", b"\r\n" * 5000, b"GET / HTTP/0.9\r\n\r\n",
             b"GET http://[::1 HTTP/1.1\r\nHost: x\r\n\r\n", b"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n"],
    ids=lambda d: repr(d[:24]),
)  # fmt: skip
def test_bytes_that_are_no_request(server, data):
    answer = talk(server, data, wait=2)
    assert not answer.startswith(b"HTTP/1.1 200") or data.startswith(b"OPTIONS"), answer[:100]
    assert httpx.get(f"{server.url}/health").status_code in (200, 204)


def test_clients_that_vanish_everywhere(server, web):
    """Cut at every stage of a request, with and without a reset; nothing stays."""
    started = sockets(server)
    message = rpc.envelope({"process": {"cmd": "/bin/sleep", "args": ["0.5"]}})
    whole = (
        f"POST /process.Process/Start HTTP/1.1\r\nHost: x\r\n{routing(web, 49983)}X-Access-Token: {web._envd_access_token}\r\n"
        f"Content-Type: application/connect+json\r\nConnect-Protocol-Version: 1\r\nContent-Length: {len(message)}\r\n\r\n"
    ).encode() + message
    upload = (
        f"POST /files?path=/tmp/vanish HTTP/1.1\r\nHost: x\r\n{routing(web, 49983)}X-Access-Token: {web._envd_access_token}\r\n"
        "Content-Type: application/octet-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    ).encode() + b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
    download = f"GET /bytes?{1 << 28} HTTP/1.1\r\nHost: x\r\n{routing(web)}\r\n".encode()
    events = f"GET /sse HTTP/1.1\r\nHost: x\r\n{routing(web)}\r\n".encode()
    for data, read in ((whole, True), (upload, False), (download, True), (events, True)):
        for cut in (1, 20, len(data) // 2, len(data) - 1, len(data)):
            for reset in (False, True):
                s = connect(server)
                if reset:
                    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                s.sendall(data[:cut])
                if read and cut == len(data):
                    s.recv(100)
                s.close()
    wait_for(lambda: sockets(server) <= started + 10, 30, f"connections are let go (began with {started})")
    wait_for(lambda: not [p for p in web.commands.list() if p.cmd == "/bin/sleep"], 20)
    assert web.commands.run("echo ok").stdout == "ok\n"


def test_a_kill_cuts_every_kind_of_stream_at_once(server, new_sandbox):
    box = new_sandbox()
    serve(box, "http_server.py", "0.0.0.0", 8000)
    serve(box, "http_server.py", "127.0.0.1", 8001)
    results = {}

    def follow(name, data):
        with connect(server, 30) as s:
            s.sendall(data)
            got = b""
            try:
                while part := s.recv(65536):
                    got = (got + part)[-4000:]
                    ready[name].set()
            except ConnectionError:
                pass
            results[name] = (time.monotonic(), got)

    message = rpc.envelope({"process": {"cmd": "/bin/sleep", "args": ["600"]}})
    streams = {
        "command": (
            f"POST /process.Process/Start HTTP/1.1\r\nHost: x\r\n{routing(box, 49983)}X-Access-Token: {box._envd_access_token}\r\n"
            f"Content-Type: application/connect+json\r\nConnect-Protocol-Version: 1\r\nContent-Length: {len(message)}\r\n\r\n"
        ).encode() + message,
        "events": f"GET /sse HTTP/1.1\r\nHost: x\r\n{routing(box)}\r\n".encode(),
        "loopback": f"GET /sse HTTP/1.1\r\nHost: x\r\n{routing(box, 8001)}\r\n".encode(),
        "download": f"GET /bytes?{1 << 40} HTTP/1.1\r\nHost: x\r\n{routing(box)}\r\n".encode(),
    }
    ready = {name: threading.Event() for name in streams}
    threads = [threading.Thread(target=follow, args=item) for item in streams.items()]
    for one in threads:
        one.start()
    for name, event in ready.items():
        assert event.wait(15), name
    box.kill()
    killed = time.monotonic()
    with server.edge(box) as edge:
        assert edge.get("/health").status_code == 502
    for one in threads:
        one.join(15)
    assert results.keys() == streams.keys(), "a stream hangs"
    for name, (at, got) in results.items():
        assert at - killed < 3, f"{name} ended {at - killed:.1f} s after the kill"
        assert not got.endswith(b"0\r\n\r\n"), f"{name} got a clean end, as if it were whole"


def test_the_log_has_no_secrets(server, web):
    """After all of this: no key and no token in what the server wrote."""
    text = server.log()
    assert server.key() not in text
    assert web._envd_access_token not in text
