"""User ports through the edge: servers that users run in sandboxes, seen from outside."""

import asyncio
import json
import os
import re
import socket

import httpx
import pytest
import websockets
from e2b import Sandbox

from harness.guest import install, serve
from harness.wait import wait_for

BROWSER = "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/130.0 Safari/537.36"


@pytest.fixture(scope="module")
def web(server):
    """A sandbox with a server on all addresses (8000) and one on loopback only (8001)."""
    box = Sandbox.create(timeout=3600)
    serve(box, "http_server.py", "0.0.0.0", 8000)
    serve(box, "http_server.py", "127.0.0.1", 8001)
    yield box
    box.kill()


@pytest.mark.parametrize("port", [8000, 8001], ids=["all-addresses", "loopback-only"])
def test_requests_reach_the_server(server, web, port):
    with server.edge(web, port) as edge:
        assert edge.get("/").text == "hello\n"
        assert edge.head("/").headers["Content-Length"] == "6"
        assert edge.post("/count", content=b"x" * 100_000).text == "100000"
        for status in (201, 204, 301, 404, 418, 500, 503):
            assert edge.get(f"/status?{status}").status_code == status
        for method in ("DELETE", "OPTIONS", "PATCH"):
            assert edge.request(method, "/").text == "hello\n"
        assert edge.get("/headers?a=%2F..%2f&b=ü").json()["path"] == "/headers?a=%2F..%2f&b=%C3%BC"


@pytest.mark.parametrize("label", ["{port}-{id}", "{port}-{id}-6532622b"])
@pytest.mark.parametrize("tail", ["localhost:3000", "example.test", "e2b.app"])
def test_the_host_label_routes_too(server, web, label, tail):
    host = label.format(port=8000, id=web.sandbox_id) + "." + tail
    assert httpx.get(f"{server.url}/", headers={"Host": host}).text == "hello\n"


def test_what_the_server_sees(server, web):
    with server.edge(web, 8000) as edge:
        sent = {"X-Own": "1", "Cookie": "a=b", "Authorization": "Bearer mine", "Accept-Encoding": "gzip"}
        seen = {k.lower(): v for k, v in edge.get("/headers", headers=sent).json()["headers"]}
    for name, value in sent.items():
        assert seen[name.lower()] == value
    assert "x-api-key" not in seen and "x-hearth-control" not in seen
    assert "transfer-encoding" not in seen


@pytest.mark.parametrize("port", [8000, 8001], ids=["all-addresses", "loopback-only"])
def test_bodies_stream_both_ways_at_once(server, web, port):
    """Each part of the request is sent only after the part before it came back."""
    with socket.create_connection(("127.0.0.1", server.port), 10) as s:
        s.sendall(
            f"POST /echo HTTP/1.1\r\nHost: x\r\nE2b-Sandbox-Id: {web.sandbox_id}\r\nE2b-Sandbox-Port: {port}\r\n"
            "Transfer-Encoding: chunked\r\n\r\n".encode()
        )
        got = b""
        for i in range(5):
            s.sendall(b"6\r\npart %d\r\n" % i)
            while b"part %d" % i not in got:
                data = s.recv(65536)
                assert data, got
                got += data
        s.sendall(b"0\r\n\r\n")
        while not got.endswith(b"\r\n0\r\n\r\n"):
            data = s.recv(65536)
            assert data, got
            got += data
    assert got.startswith(b"HTTP/1.1 200")


def test_large_bodies_through_the_edge_stay_out_of_memory(server, web):
    before = server.rss_mib()[0]
    server.reset_peak()
    with server.edge(web, 8000, timeout=100) as edge:
        total = 0
        with edge.stream("GET", f"/bytes?{256 << 20}") as response:
            for chunk in response.iter_raw(1 << 20):
                total += len(chunk)
        assert total == 256 << 20
        sent = (b"x" * (1 << 20) for _ in range(256))
        assert edge.post("/count", content=sent).text == str(256 << 20)
    assert server.rss_mib()[1] - before < 64


@pytest.mark.parametrize("port", [8000, 8001], ids=["all-addresses", "loopback-only"])
def test_server_sent_events_come_one_by_one(server, web, port):
    with server.edge(web, port) as edge, edge.stream("GET", "/sse") as response:
        assert response.headers["Content-Type"] == "text/event-stream"
        lines = response.iter_lines()
        events = [line for line in (next(lines) for _ in range(9)) if line]
    assert events == [f"data: {i}" for i in range(5)]


@pytest.mark.parametrize("address", ["0.0.0.0", "127.0.0.1"])
def test_websocket(server, web, address):
    port = 8100 if address == "0.0.0.0" else 8101
    handle = serve(web, "ws_echo.py", address, port)

    async def main():
        head = {"E2b-Sandbox-Id": web.sandbox_id, "E2b-Sandbox-Port": str(port)}
        url = server.url.replace("http", "ws")
        async with websockets.connect(url, additional_headers=head, max_size=None, proxy=None) as ws:
            for message in ("text ü", b"\0\1\2", "x" * 70_000, os.urandom(3_000_000)):
                await ws.send(message)
                assert await asyncio.wait_for(ws.recv(), 20) == message
            await (await ws.ping())
        host = f"{port}-{web.sandbox_id}.localhost"
        with socket.create_connection(("127.0.0.1", server.port)) as raw:
            async with websockets.connect(f"ws://{host}:{server.port}/", sock=raw, proxy=None) as ws:
                await ws.send("by host name")
                assert await asyncio.wait_for(ws.recv(), 20) == "by host name"

    asyncio.run(main())
    handle.kill()


def test_websocket_is_cut_when_the_sandbox_is_killed(server, new_sandbox):
    box = new_sandbox()
    serve(box, "ws_echo.py", "0.0.0.0", 8100)

    async def main():
        head = {"E2b-Sandbox-Id": box.sandbox_id, "E2b-Sandbox-Port": "8100"}
        async with websockets.connect(server.url.replace("http", "ws"), additional_headers=head, proxy=None) as ws:
            await ws.send("up")
            await ws.recv()
            await asyncio.to_thread(box.kill)
            with pytest.raises(websockets.ConnectionClosed):
                await asyncio.wait_for(ws.recv(), 10)

    asyncio.run(main())


# -- what the edge answers by itself -----------------------------------------------------


def test_closed_port(server, web):
    with server.edge(web, 9999) as edge:
        answer = edge.get("/")
    assert answer.status_code == 502
    assert answer.json() == {
        "sandboxId": web.sandbox_id,
        "message": "The sandbox is running but port is not open",
        "port": 9999,
        "code": 502,
    }


def test_sandbox_that_is_gone(server):
    for one in ("i" + "0" * 25, "i" + "0" * 19):
        with server.edge(one, 8000) as edge:
            answer = edge.get("/")
        assert answer.status_code == 502
        assert answer.json() == {"sandboxId": one, "message": "The sandbox was not found", "code": 502}


def test_killed_sandbox_answers_at_once(server, new_sandbox):
    box = new_sandbox()
    serve(box, "http_server.py", "0.0.0.0", 8000)
    with server.edge(box, 8000) as edge:
        assert edge.get("/").status_code == 200
        box.kill()
        answer = edge.get("/")
        assert (answer.status_code, answer.json()["message"]) == (502, "The sandbox was not found")


@pytest.mark.parametrize("what", ["closed", "gone"])
def test_browsers_get_a_page(server, web, what):
    target, port = (web, 9999) if what == "closed" else ("i" + "0" * 25, 8000)
    with server.edge(target, port) as edge:
        answer = edge.get("/", headers={"User-Agent": BROWSER, "Accept": "text/html,*/*"})
    assert answer.status_code == 502
    assert answer.headers["Content-Type"].startswith("text/html") and "<!doctype html" in answer.text.lower()
    sandbox_id = getattr(target, "sandbox_id", target)
    assert sandbox_id in answer.text


def test_a_page_does_not_run_what_the_address_contains(server, web):
    answer = httpx.get(f"{server.url}/<script>alert(1)</script>", headers={
        "Host": f"9999-{web.sandbox_id}.localhost", "User-Agent": BROWSER, "Accept": "text/html",
    })  # fmt: skip
    assert "<script>alert" not in answer.text


@pytest.mark.parametrize("port", ["0", "-1", "65536", "99999999999", "", "x", "80 80", "0x50", "８０", "80.0", "+80"])
def test_bad_ports_in_the_header(server, web, port):
    head = {b"E2b-Sandbox-Id": web.sandbox_id.encode(), b"E2b-Sandbox-Port": port.encode()}
    answer = httpx.get(f"{server.url}/", headers=head)
    assert answer.status_code == 400, (answer.status_code, answer.text)


@pytest.mark.parametrize("sandbox", ["", "x", "..", "../../etc", "I" + "0" * 25, "i" + "0" * 65536, "%69" + "0" * 25, "і" + "0" * 25, "i0000000000000000000 0", "i" + "0" * 18])
def test_bad_ids_in_the_header(server, sandbox):
    head = {b"E2b-Sandbox-Id": sandbox.encode(), b"E2b-Sandbox-Port": b"80"}
    answer = httpx.get(f"{server.url}/health", headers=head)
    assert answer.status_code in (400, 431, 502), (answer.status_code, answer.text)
    assert answer.status_code not in (200, 204)


def test_missing_port_header(server, web):
    answer = httpx.get(f"{server.url}/", headers={"E2b-Sandbox-Id": web.sandbox_id})
    assert answer.status_code == 400


@pytest.mark.parametrize("label", ["0-{id}", "65536-{id}", "99999999999999-{id}", "8000-x", "8000-x" + "0" * 25])
def test_bad_host_labels(server, web, label):
    host = label.format(id=web.sandbox_id) + ".localhost"
    answer = httpx.get(f"{server.url}/", headers={"Host": host})
    assert answer.status_code == 400, (answer.status_code, answer.text)


def test_host_names_have_no_case(server, web):
    host = f"8000-{web.sandbox_id.upper()}.LOCALHOST"
    assert httpx.get(f"{server.url}/", headers={"Host": host}).text == "hello\n"


def test_a_port_that_never_answers(server, web):
    """The client may leave at any time, others are served meanwhile, nothing piles up."""
    with server.edge(web, 8000, timeout=1) as edge:
        for _ in range(20):
            with pytest.raises(httpx.ReadTimeout):
                edge.get("/never", timeout=0.2)
        assert edge.get("/", timeout=10).text == "hello\n"
    wait_for(lambda: connections(server) < 60, 20, "dropped requests are not kept")


def connections(server):
    """Sockets the server process holds."""
    count = 0
    for fd in os.listdir(f"/proc/{server.pid}/fd"):
        try:
            count += os.readlink(f"/proc/{server.pid}/fd/{fd}").startswith("socket:")
        except OSError:
            pass
    return count


def test_a_server_that_breaks_its_promise(server, web):
    """Fewer bytes than announced: the client must see a broken answer, not a short one."""
    with server.edge(web, 8000) as edge:
        with pytest.raises((httpx.RemoteProtocolError, httpx.ReadError)):
            edge.get("/half")
        assert edge.get("/").text == "hello\n"


def test_expect_continue_and_old_clients(server, web):
    def raw(text):
        with socket.create_connection(("127.0.0.1", server.port)) as s:
            s.settimeout(10)
            s.sendall(text.replace("\n", "\r\n").encode())
            data = b""
            while b"hello" not in data and b"\r\n\r\n2" not in data:
                part = s.recv(65536)
                if not part:
                    break
                data += part
            return data

    head = f"E2b-Sandbox-Id: {web.sandbox_id}\nE2b-Sandbox-Port: 8000\n"
    assert b"hello" in raw(f"GET / HTTP/1.0\n{head}\n")
    assert b"hello" in raw(f"GET http://whatever.test/ HTTP/1.1\nHost: whatever.test\n{head}Connection: close\n\n")


def test_many_connections_at_once(server, web):
    """One SDK process may open 200 connections."""

    async def main():
        limits = httpx.Limits(max_connections=200)
        head = {"E2b-Sandbox-Id": web.sandbox_id, "E2b-Sandbox-Port": "8000"}
        async with httpx.AsyncClient(base_url=server.url, headers=head, limits=limits, timeout=60) as client:
            answers = await asyncio.gather(*(client.get("/") for _ in range(400)))
        assert {a.text for a in answers} == {"hello\n"}

    asyncio.run(main())


def test_get_host_names_port_and_sandbox(web):
    assert re.match(rf"8000-{web.sandbox_id}\.", web.get_host(8000))


def test_ports_come_and_go(server, new_sandbox):
    box = new_sandbox()
    path = install(box, "http_server.py")
    with server.edge(box, 8500) as edge:
        assert edge.get("/").status_code == 502
        for address in ("127.0.0.1", "0.0.0.0", "127.0.0.1"):
            handle = box.commands.run(f"exec python3 {path} {address} 8500", background=True, timeout=0)
            wait_for(lambda: edge.get("/").text == "hello\n", 15, f"served on {address}")
            handle.kill()
            wait_for(lambda: edge.get("/").status_code == 502, 15, "closed again")


def test_agent_metadata_of_one_sandbox_is_not_anothers(server, web, new_sandbox):
    """The token of one sandbox opens no other."""
    other = new_sandbox()
    with server.edge(other, token=web._envd_access_token) as edge:
        assert edge.get("/envs").status_code == 401
    with server.edge(other) as edge:
        assert json.loads(edge.get("/envs").text) is not None
