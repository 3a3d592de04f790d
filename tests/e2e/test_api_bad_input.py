"""The control API against everything that is not a proper request.

A server may refuse in its own words, but with the status E2B gives, a JSON body that
repeats it, and the field's name; and it must go on serving.
"""

import asyncio
import gzip
import json
import socket
import uuid

import httpx
import pytest
from e2b import AuthenticationException, RateLimitException, Sandbox, SandboxException

from harness.wait import wait_for

UNKNOWN = "i" + "0" * 25

ROUTES = [
    ("GET", "/sandboxes/{id}", None),
    ("DELETE", "/sandboxes/{id}", None),
    ("POST", "/sandboxes/{id}/timeout", {"timeout": 60}),
    ("POST", "/sandboxes/{id}/refreshes", {"duration": 60}),
    ("POST", "/sandboxes/{id}/connect", {"timeout": 60}),
    ("POST", "/v2/sandboxes/{id}/connect", {}),
    ("GET", "/sandboxes/{id}/metrics", None),
    ("GET", "/sandboxes/{id}/logs", None),
    ("GET", "/v2/sandboxes/{id}/logs", None),
]

EVERY_ROUTE = [
    *ROUTES,
    ("GET", "/sandboxes", None),
    ("GET", "/v2/sandboxes", None),
    ("POST", "/sandboxes", {"templateID": "base"}),
    ("POST", "/v2/sandboxes", {"templateID": "base"}),
    ("GET", "/templates", None),
    ("GET", "/templates/aliases/base", None),
]


def call(api, method, path, body, id=UNKNOWN, **more):
    return api.request(method, path.format(id=id), json=body, **more)


def is_error(answer, *statuses):
    assert answer.status_code in statuses, (answer.status_code, answer.text[:500])
    if answer.headers.get("Content-Length") != "0":
        body = answer.json()
        assert body["code"] == answer.status_code and body["message"], body
    return answer


@pytest.fixture
def raw(server):
    """Sends bytes to the server and returns all it answers before it closes or falls silent."""

    def send(data, half_close=False, wait=5.0):
        got = b""
        with socket.create_connection(("127.0.0.1", server.port), wait) as s:
            try:
                s.sendall(data)
                if half_close:
                    s.shutdown(socket.SHUT_WR)
                while part := s.recv(65536):
                    got += part
            except (TimeoutError, ConnectionError):
                pass
        return got

    return send


# -- who asks --------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "path", "body"), EVERY_ROUTE, ids=lambda v: str(v)[:40])
def test_every_route_wants_a_key(server, sbx, method, path, body):
    with httpx.Client(base_url=server.url) as api:
        is_error(call(api, method, path, body, id=sbx.sandbox_id), 401)
        for key in ("", "x", "e2b_" + "0" * 40, server.key()[:-1], server.key() + "0", server.key().upper(), "' OR 1=1 --", "ключ".encode(), "a" * 7000):
            is_error(call(api, method, path, body, id=sbx.sandbox_id, headers={"X-API-KEY": key}), 400, 401)
    assert sbx.is_running()


def test_the_sdk_says_authentication(server):
    with pytest.raises(AuthenticationException):
        Sandbox.create(api_key="e2b_" + "ab" * 20)


def test_a_key_in_any_case_of_header_and_only_there(server):
    for name in ("x-api-key", "X-API-KEY", "X-Api-Key"):
        assert httpx.get(f"{server.url}/v2/sandboxes", headers={name: server.key()}).status_code == 200
    assert httpx.get(f"{server.url}/v2/sandboxes", params={"X-API-KEY": server.key()}).status_code == 401
    assert httpx.get(f"{server.url}/v2/sandboxes", headers={"Cookie": f"X-API-KEY={server.key()}"}).status_code == 401


def test_two_different_keys_in_one_request(server):
    head = [("X-API-KEY", "e2b_" + "0" * 40), ("X-API-KEY", server.key())]
    assert httpx.get(f"{server.url}/v2/sandboxes", headers=head).status_code in (400, 401)


@pytest.mark.parametrize(("method", "path", "body"), ROUTES, ids=lambda v: str(v)[:40])
def test_another_teams_sandbox_is_404_on_every_route(server, new_sandbox, method, path, body):
    box = new_sandbox()
    with server.api() as mine, server.api(team="other") as other:
        if method != "DELETE":  # the owner may: what is refused below is not simply broken
            assert call(mine, method, path, body, id=box.sandbox_id).status_code in (200, 204)
        theirs = is_error(call(other, method, path, body, id=box.sandbox_id), 404)
        nobodys = is_error(call(other, method, path, body), 404)
        assert theirs.json()["message"].replace(box.sandbox_id, "ID") == nobodys.json()["message"].replace(UNKNOWN, "ID")
    assert box.is_running()


def test_another_teams_sandbox_is_in_no_list_and_its_end_tells_nothing(server, new_sandbox):
    box = new_sandbox(metadata={"mine": "yes"})
    with server.api(team="other") as other:
        for path in ("/v2/sandboxes", "/sandboxes"):
            assert box.sandbox_id not in other.get(path, params={"metadata": "mine=yes"}).text
            assert box.sandbox_id not in other.get(path).text
        box.kill()
        assert "killed" not in other.get(f"/sandboxes/{box.sandbox_id}").json()["message"]


def test_paging_tokens_of_another_team_show_nothing_of_it(server, new_sandbox):
    boxes = [new_sandbox() for _ in range(2)]
    with server.api() as mine, server.api(team="other") as other:
        token = mine.get("/v2/sandboxes", params={"limit": 1}).headers["X-Next-Token"]
        answer = other.get("/v2/sandboxes", params={"nextToken": token})
        assert not [box for box in boxes if box.sandbox_id in answer.text]


# -- ids --------------------------------------------------------------------------------------


ODD_IDS = [
    "..", "../x", "..%2f..%2fetc%2fpasswd", "%2e%2e", "%252e%252e", "%00", "i%00" + "0" * 20, "a" * 65536, "i" * 4000,
    "i" + "0" * 25 + "%00", "i" + "0" * 25 + "%2f..", UNKNOWN.upper(), "%d1%96" + "0" * 25, "%EF%BD%89" + "0" * 25, "%ff%fe",
    "'%20or%201=1--", "%3Cscript%3E", "i" + "0" * 25 + "%0d%0aX-Evil:%201", "-", "i", "null", "undefined", "{id}", "*", "%20", "i" + "0" * 25 + ".json",
]  # fmt: skip


@pytest.mark.parametrize("odd", ODD_IDS, ids=lambda v: v[:24])
def test_odd_ids_on_every_route(server, raw, odd):
    for method, path, body in ROUTES:
        content = json.dumps(body).encode() if body is not None else b""
        target = path.replace("{id}", odd)
        answer = raw(
            f"{method} {target} HTTP/1.1\r\nHost: x\r\nX-API-KEY: {server.key()}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(content)}\r\nConnection: close\r\n\r\n".encode() + content
        )
        head, _, rest = answer.partition(b"\r\n\r\n")
        status = int(head.split(b" ")[1]) if head else 0
        assert status in (400, 404, 405, 414, 431), (method, target[:60], answer[:300])
        assert b"X-Evil" not in head and b"root:" not in rest
    assert httpx.get(f"{server.url}/health").status_code in (200, 204)


@pytest.mark.parametrize("path", ["/", "/nope", "/v2", "/v9/sandboxes", "/sandboxes/", "//sandboxes", "/sandboxes/../templates", "/%2e%2e/%2e%2e/etc/passwd", "/sandboxes%00", "/" + "a/" * 5000])
def test_unknown_paths(server, raw, path):
    answer = raw(f"GET {path} HTTP/1.1\r\nHost: x\r\nX-API-KEY: {server.key()}\r\nConnection: close\r\n\r\n".encode())
    assert int(answer.split(b" ")[1]) in (400, 404, 414, 431), answer[:300]


@pytest.mark.parametrize("method", ["PUT", "PATCH", "TRACE", "PROPFIND", "A" * 5000])
def test_unknown_methods(server, method):
    with server.api() as api:
        assert api.request(method, "/v2/sandboxes").status_code in (400, 404, 405, 431, 501)


# -- bodies -------------------------------------------------------------------------------------


BAD_JSON = [
    b"", b" ", b"{", b"}", b"null", b"[]", b"1", b'"base"', b"{'templateID':'base'}", b'{"templateID":', b'{"templateID":"base"',
    b'{"templateID":"base",}', b'{"templateID":"base"}}', b'{"templateID":"base"} x', b"\xff\xfe{\x00}\x00", b'{"templateID":"\xff"}',
    b'{"templateID":"\\ud800"}', b"\x00", b"{" * 100_000, b"[" * 100_000, b'{"templateID":"base","metadata":' + b'{"a":' * 5000,
    b'{"templateID":1}', b'{"templateID":null}', b'{"templateID":["base"]}', b'{"templateID":{}}', b"{}", b'{"templateId":"base"}',
    b'{"templateID":"base","timeout":NaN}', b'{"templateID":"base","timeout":1e999}',
]  # fmt: skip


@pytest.mark.parametrize("body", BAD_JSON, ids=lambda b: repr(b[:28]))
@pytest.mark.parametrize("path", ["/v2/sandboxes", "/sandboxes"])
def test_malformed_json(server, path, body):
    with server.api() as api:
        answer = api.post(path, content=body, headers={"Content-Type": "application/json"})
        is_error(answer, 400)
        assert not running(api)


def running(api):
    return [one for one in api.get("/v2/sandboxes", params={"metadata": "made=badly"}).json()]


@pytest.mark.parametrize("path", ["/sandboxes/{id}/timeout", "/sandboxes/{id}/refreshes", "/sandboxes/{id}/connect", "/v2/sandboxes/{id}/connect"])
@pytest.mark.parametrize("body", [b"{", b"[]", b"1", b"\xff", b"{" * 10_000, b'{"timeout":"x","duration":"x"}'], ids=lambda b: repr(b[:16]))
def test_malformed_json_on_the_other_routes(server, sbx, path, body):
    with server.api() as api:
        before = api.get(f"/sandboxes/{sbx.sandbox_id}").json()["endAt"]
        answer = api.post(path.format(id=sbx.sandbox_id), content=body, headers={"Content-Type": "application/json"})
        is_error(answer, 400)
        assert api.get(f"/sandboxes/{sbx.sandbox_id}").json()["endAt"] == before


def test_bodies_without_and_with_other_content_types(server):
    """Old clients send none or a wrong one; what counts is that it is JSON."""
    with server.api() as api:
        for kind in (None, "application/json; charset=utf-8", "application/json"):
            head = {"Content-Type": kind} if kind else {}
            answer = api.post("/v2/sandboxes", content=b'{"templateID":"base"}', headers=head)
            if kind is None and answer.status_code in (400, 415):
                continue
            assert answer.status_code == 201, answer.text
            api.delete(f"/sandboxes/{answer.json()['sandboxID']}")
        for kind in ("multipart/form-data; boundary=x", "application/x-www-form-urlencoded", "text/html"):
            answer = api.post("/v2/sandboxes", content=b"templateID=base", headers={"Content-Type": kind})
            is_error(answer, 400, 415)


def test_multipart_to_the_control_api(server):
    with server.api() as api:
        is_error(api.post("/v2/sandboxes", files={"templateID": ("x", b"base")}), 400, 415)
        is_error(api.post("/v2/sandboxes", content=b"--x\r\n", headers={"Content-Type": "multipart/form-data; boundary=x"}), 400, 415)


def test_gzip_to_the_control_api(server):
    """A compressed body is either understood or refused, also when it is broken or a bomb."""
    good = gzip.compress(b'{"templateID":"base"}')
    bomb = gzip.compress(b'{"templateID":"' + b"a" * (200 << 20) + b'"}', 1)
    before = server.rss_mib()[0]
    server.reset_peak()
    with server.api() as api:
        head = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
        answer = api.post("/v2/sandboxes", content=good, headers=head)
        assert answer.status_code in (201, 400, 415)
        if answer.status_code == 201:
            api.delete(f"/sandboxes/{answer.json()['sandboxID']}")
        for body in (good[:-6], b"\x1f\x8b" + b"\0" * 50, b"not gzip", bomb):
            is_error(api.post("/v2/sandboxes", content=body, headers=head), 400, 413, 415)
    assert server.rss_mib()[1] - before < 64


def test_oversized_bodies(server):
    before = server.rss_mib()[0]
    server.reset_peak()
    with server.api() as api:
        for body in (
            json.dumps({"templateID": "base", "metadata": {"a": "x" * (2 << 20)}}).encode(),
            b'{"templateID":"base"' + b" " * (8 << 20) + b"}",
            (b" " * 65536 for _ in range(2000)),
        ):
            try:
                answer = api.post("/v2/sandboxes", content=body, headers={"Content-Type": "application/json"})
                is_error(answer, 400, 413)
            except (httpx.WriteError, httpx.ReadError, httpx.RemoteProtocolError):
                pass  # it may stop reading
        assert api.get("/v2/sandboxes").status_code == 200
    assert server.rss_mib()[1] - before < 64


@pytest.mark.parametrize("declared", ["1000", "99999999999", "-1", "1e3", "0x10", "", "10, 20", " 10"])
def test_truncated_and_misdeclared_bodies(server, raw, declared):
    head = f"POST /v2/sandboxes HTTP/1.1\r\nHost: x\r\nX-API-KEY: {server.key()}\r\nContent-Type: application/json\r\n"
    answer = raw(head.encode() + f"Content-Length: {declared}\r\n\r\n".encode() + b'{"templateID":"base","metadata":{"made":"badly"}}', half_close=True)
    assert b" 201 " not in answer.split(b"\r\n")[0]
    with server.api() as api:
        assert not running(api)


def test_maps_have_limits_that_are_named(server):
    with server.api() as api:
        for field in ("metadata", "envVars"):
            for value in ({f"k{i}": "v" for i in range(5000)}, {"k" * 5000: "v"}, {"k": "v" * 200_000}, {"k": 1}, {"k": None}, {"k": ["v"]}, ["k"], "k", 1):
                answer = api.post("/v2/sandboxes", json={"templateID": "base", field: value})
                is_error(answer, 400)
                assert field in answer.json()["message"], answer.text
        for name in ("", "A=B", "A\0B"):
            is_error(api.post("/v2/sandboxes", json={"templateID": "base", "envVars": {name: "v"}}), 400)
        is_error(api.post("/v2/sandboxes", json={"templateID": "base", "envVars": {"A": "b\0c"}}), 400)


def test_odd_but_proper_metadata_comes_back_as_it_was(server, new_sandbox):
    metadata = {"nul\u0001": "\u202e\ufeff", "emoji 😀": "😀" * 50, "": "empty key", "__proto__": "x", "a&b=c": "%25", "'; DROP TABLE sandboxes; --": "1"}
    box = new_sandbox(metadata=metadata)
    assert box.get_info().metadata == metadata


@pytest.mark.parametrize("template", ["", "..", "../base", "base\0", "b\u0430se", "base:", ":base", "base:nope", "a" * 65536, "%62ase", "base/../base", "x/y/z", " base", "base "], ids=lambda t: repr(t)[:16])
def test_odd_template_names(server, template):
    with server.api() as api:
        is_error(api.post("/v2/sandboxes", json={"templateID": template, "metadata": {"made": "badly"}}), 400, 404)
        assert not running(api)


# -- options that come later ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("autoPause", True),
        ("autoPauseMemory", False),
        ("autoResume", {"enabled": True}),
        ("network", {"denyOut": ["0.0.0.0/0"]}),
        ("network", {"allowPublicTraffic": False}),
        ("mcp", {"x": {}}),
        ("iam", {"tokens": {"aws": {"audience": "x", "tokenType": "JWT-SVID"}}}),
        ("volumeMounts", [{"name": "v", "path": "/v"}]),
    ],
    ids=lambda v: json.dumps(v)[:32] if not isinstance(v, str) else v,
)
def test_unsupported_options_are_refused_by_name(server, field, value):
    with server.api() as api:
        for path in ("/v2/sandboxes", "/sandboxes"):
            answer = api.post(path, json={"templateID": "base", field: value})
            is_error(answer, 400)
            assert field in answer.json()["message"]


@pytest.mark.parametrize(
    "body", [{"autoPause": False}, {"mcp": None}, {"autoResume": {"enabled": False}}, {"secure": True}, {"somethingNew": {"x": 1}}, {"volumeMounts": []}],
    ids=json.dumps,
)  # fmt: skip
def test_defaults_spelt_out_and_unknown_fields_are_fine(server, body):
    with server.api() as api:
        answer = api.post("/v2/sandboxes", json={"templateID": "base", **body})
        assert answer.status_code == 201, answer.text
        api.delete(f"/sandboxes/{answer.json()['sandboxID']}")


def test_the_sdks_options_fail_loudly(server):
    for options, field in (
        ({"lifecycle": {"on_timeout": "pause"}}, "autoPause"),
        ({"network": {"deny_out": ["1.1.1.1"]}}, "network"),
        ({"volume_mounts": {"/mnt": "vol"}}, "volumeMounts"),
    ):
        with pytest.raises(SandboxException) as caught:
            Sandbox.create(**options)
        assert "400" in str(caught.value) and field in str(caught.value)


def test_pause_fork_and_snapshot_are_refused_not_faked(server, sbx):
    with server.api() as api:
        for verb in ("pause", "fork", "snapshots", "resume"):
            answer = api.post(f"/sandboxes/{sbx.sandbox_id}/{verb}", json={})
            assert answer.status_code in (400, 404, 405, 409, 501), (verb, answer.status_code)
            if answer.status_code != 405:
                assert answer.json()["code"] == answer.status_code
    assert sbx.is_running()


# -- the limit of a team ------------------------------------------------------------------------------


def test_the_teams_limit_holds_under_a_race(server):
    """Ten creates at once, a limit of three: three live, seven are told to come again."""
    team = f"t{uuid.uuid4().hex[:8]}"
    key = server.key(team, limit=3)
    head = {"X-API-KEY": key}

    async def race():
        async with httpx.AsyncClient(base_url=server.url, headers=head, timeout=60) as api:
            return await asyncio.gather(*(api.post("/v2/sandboxes", json={"templateID": "base", "timeout": 120}) for _ in range(10)))

    answers = asyncio.run(race())
    made = [a.json()["sandboxID"] for a in answers if a.status_code == 201]
    refused = [a for a in answers if a.status_code != 201]
    try:
        assert len(made) == 3, [a.status_code for a in answers]
        for a in refused:
            is_error(a, 429)
            assert int(a.headers["Retry-After"]) >= 0
            assert "3" in a.json()["message"]
        with pytest.raises(RateLimitException):
            Sandbox.create(api_key=key, retries=0)
        with httpx.Client(base_url=server.url, headers=head, timeout=60) as api:
            assert api.delete(f"/sandboxes/{made[0]}").status_code == 204
            again = wait_for(lambda: (a := api.post("/v2/sandboxes", json={"templateID": "base"})).status_code == 201 and a, 15, "a place is free")
            made.append(again.json()["sandboxID"])
        assert Sandbox.create(timeout=10).kill(), "another team is not limited by it"
    finally:
        for one in made:
            httpx.delete(f"{server.url}/sandboxes/{one}", headers=head, timeout=30)


def test_a_killed_create_leaves_nothing(server):
    """The client leaves while the create runs: it either exists and is listed, or is not there."""
    with server.api() as api:
        before = {one["sandboxID"] for one in api.get("/v2/sandboxes").json()}
        for _ in range(5):
            with pytest.raises(httpx.TimeoutException):
                httpx.post(
                    f"{server.url}/v2/sandboxes", json={"templateID": "base", "timeout": 5},
                    headers={"X-API-KEY": server.key()}, timeout=httpx.Timeout(5, read=0.03),
                )  # fmt: skip
        wait_for(lambda: {one["sandboxID"] for one in api.get("/v2/sandboxes").json()} <= before, 30, "their time ended")


def test_kills_at_once_agree(server, new_sandbox):
    """Eight kills of one sandbox: exactly one says yes."""
    box = new_sandbox()

    async def race():
        async with httpx.AsyncClient(base_url=server.url, headers={"X-API-KEY": server.key()}, timeout=30) as api:
            return await asyncio.gather(*(api.delete(f"/sandboxes/{box.sandbox_id}") for _ in range(8)))

    statuses = sorted(a.status_code for a in asyncio.run(race()))
    assert statuses == [204, *[404] * 7], statuses


def test_204_has_no_body(server, new_sandbox):
    box = new_sandbox()
    with server.api() as api:
        answer = api.post(f"/sandboxes/{box.sandbox_id}/timeout", json={"timeout": 60})
        assert (answer.status_code, answer.content) == (204, b"")
        answer = api.delete(f"/sandboxes/{box.sandbox_id}")
        assert (answer.status_code, answer.content) == (204, b"")
