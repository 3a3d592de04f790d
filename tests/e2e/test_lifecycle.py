"""Create, find, time out, connect, kill: the control API as the Python SDK drives it."""

import asyncio
import datetime
import re
import threading

import httpx
import pytest
from e2b import (
    AsyncSandbox,
    NotFoundException,
    Sandbox,
    SandboxException,
    SandboxNotFoundException,
    SandboxNotRunningException,
    SandboxQuery,
    SandboxState,
)
from packaging.version import Version

from harness.server import wait_gone
from harness.wait import stays, wait_for


def now():
    return datetime.datetime.now(datetime.timezone.utc)


def ids(page):
    return [one.sandbox_id for one in page]


def all_pages(**more):
    pages, listing = [], Sandbox.list(**more)
    while listing.has_next:
        pages.append(listing.next_items())
    return pages


# -- create ---------------------------------------------------------------------------


def test_create_runs_the_first_command_at_once(new_sandbox):
    box = new_sandbox()
    assert box.commands.run("echo $((6 * 7))").stdout == "42\n"


def test_create_answers_with_everything_a_client_reads(server):
    with server.api() as api:
        answer = api.post("/v2/sandboxes", json={"templateID": "base"})
        assert answer.status_code == 201, answer.text
        body = answer.json()
        try:
            assert re.fullmatch(r"i[a-z0-9]{19,39}", body["sandboxID"])
            assert body["templateID"] and body["clientID"]
            assert Version(body["envdVersion"]) >= Version("0.6.13")
            assert body["envdAccessToken"]
            assert not body.get("trafficAccessToken")
            assert not body.get("domain"), "a domain would send envd traffic elsewhere"
        finally:
            assert api.delete(f"/sandboxes/{body['sandboxID']}").status_code == 204


def test_ids_carry_128_random_bits(server):
    """36^25 > 2^129: an id of `i` and 25 digits. Two ids share no long run of digits."""
    with server.api() as api:
        made = [api.post("/v2/sandboxes", json={"templateID": "base"}).json()["sandboxID"] for _ in range(2)]
        for one in made:
            api.delete(f"/sandboxes/{one}")
    assert all(len(one) >= 26 for one in made)
    same = sum(a == b for a, b in zip(made[0][1:], made[1][1:]))
    assert same < 12, made


def test_v1_create_and_its_short_default_timeout(server):
    with server.api() as api:
        answer = api.post("/sandboxes", json={"templateID": "base", "secure": True})
        assert answer.status_code == 201, answer.text
        box = answer.json()["sandboxID"]
        detail = api.get(f"/sandboxes/{box}").json()
        life = datetime.datetime.fromisoformat(detail["endAt"]) - datetime.datetime.fromisoformat(detail["startedAt"])
        assert 14 <= life.total_seconds() <= 17
        api.delete(f"/sandboxes/{box}")


def test_v2_default_timeout_is_300_seconds(new_sandbox):
    info = new_sandbox().get_info()
    assert 298 <= (info.end_at - info.started_at).total_seconds() <= 303


def test_create_takes_base_by_name_tag_and_id(server, new_sandbox):
    template_id = new_sandbox("base").get_info().template_id
    for name in ("base:default", template_id):
        assert new_sandbox(name).get_info().template_id == template_id


def test_unknown_template_is_404(server):
    with pytest.raises((NotFoundException, SandboxException)) as caught:
        Sandbox.create("no-such-template")
    assert "404" in str(caught.value) or isinstance(caught.value, NotFoundException)
    with server.api() as api:
        answer = api.post("/v2/sandboxes", json={"templateID": "no-such-template"})
        assert (answer.status_code, answer.json()["code"]) == (404, 404)
        assert "no-such-template" in answer.json()["message"]


def test_envs_reach_every_process(new_sandbox):
    box = new_sandbox(envs={"GREETING": "grüß 'dich'\n\"x\"", "EMPTY": ""})
    assert box.commands.run('printf %s "$GREETING"').stdout == "grüß 'dich'\n\"x\""
    assert box.commands.run("printf %s ${EMPTY-unset}").stdout == ""
    assert box.commands.run("printf %s $GREETING", envs={"GREETING": "mine"}).stdout == "mine"
    assert box.commands.run("printf %s $GREETING", user="root").stdout.startswith("grüß")


def test_envs_route_shows_the_sandbox_env(server, new_sandbox):
    box = new_sandbox(envs={"A": "1"})
    with server.edge(box) as edge:
        assert edge.get("/envs").json()["A"] == "1"


def test_async_create_and_kill(server):
    async def main():
        box = await AsyncSandbox.create(metadata={"by": "async"})
        try:
            assert (await box.commands.run("echo hi")).stdout == "hi\n"
            assert await box.is_running()
            info = await box.get_info()
            assert info.metadata == {"by": "async"}
        finally:
            assert await box.kill()
        assert not await box.is_running()
        assert not await box.kill()

    asyncio.run(main())


def test_ten_creates_at_once(server):
    async def main():
        boxes = await asyncio.gather(*(AsyncSandbox.create() for _ in range(10)))
        assert len({box.sandbox_id for box in boxes}) == 10
        out = await asyncio.gather(*(box.commands.run(f"echo {i}") for i, box in enumerate(boxes)))
        assert [one.stdout for one in out] == [f"{i}\n" for i in range(10)]
        assert all(await asyncio.gather(*(box.kill() for box in boxes)))

    asyncio.run(main())


# -- kill -------------------------------------------------------------------------------


def test_kill_is_true_once(new_sandbox):
    box = new_sandbox()
    assert box.is_running()
    assert box.kill() is True
    assert not box.is_running()
    assert box.kill() is False
    assert Sandbox.kill(box.sandbox_id) is False
    with pytest.raises(SandboxNotFoundException):
        box.get_info()
    with pytest.raises(SandboxNotFoundException):
        Sandbox.connect(box.sandbox_id)


def test_kill_cuts_a_running_command_and_the_client_knows_why(new_sandbox):
    box = new_sandbox()
    handle = box.commands.run("echo started; sleep 600", background=True, timeout=0)
    killer = threading.Timer(0.2, box.kill)
    killer.start()
    began = now()
    with pytest.raises(SandboxNotRunningException) as caught:
        handle.wait()
    killer.join()
    assert "killed or reached its end of life" in str(caught.value)
    assert (now() - began).total_seconds() < 15


def test_commands_on_a_killed_sandbox_say_so(new_sandbox):
    box = new_sandbox()
    box.kill()
    with pytest.raises(SandboxNotRunningException):
        box.commands.run("echo")
    with pytest.raises(SandboxNotRunningException):
        box.files.read("/etc/hostname")
    with pytest.raises(SandboxNotRunningException):
        box.files.list("/")


def test_gone_sandbox_tells_when_why_and_by_whom(server, new_sandbox):
    box = new_sandbox()
    box.kill()
    with server.api() as api:
        answer = api.get(f"/sandboxes/{box.sandbox_id}")
        assert answer.status_code == 404
        body = answer.json()
        assert body["code"] == 404
        assert "killed on request" in body["message"]
        assert "API key" in body["message"]
        assert str(now().year) in body["message"]


def test_never_known_id_has_no_reason(server):
    with server.api() as api:
        answer = api.get("/sandboxes/i" + "0" * 25)
        assert answer.status_code == 404
        assert answer.json()["code"] == 404
        assert "killed" not in answer.json()["message"]


# -- info, metadata, listing ---------------------------------------------------------------


def test_info(new_sandbox):
    before = now()
    box = new_sandbox(timeout=120, metadata={"purpose": "info", "ünïcode ☃": "välue & = % + ,"})
    info = box.get_info()
    assert info.sandbox_id == box.sandbox_id
    assert info.name in (None, "base")
    assert info.metadata == {"purpose": "info", "ünïcode ☃": "välue & = % + ,"}
    assert info.state == SandboxState.RUNNING
    assert info.cpu_count >= 1 and info.memory_mb >= 128
    assert abs((info.started_at - before).total_seconds()) < 15
    assert 118 <= (info.end_at - info.started_at).total_seconds() <= 122
    assert Version(info.envd_version) >= Version("0.6.13")
    assert info.lifecycle["on_timeout"] == "kill"
    assert not info.lifecycle["auto_resume"]


def test_detail_has_every_required_field(server, new_sandbox):
    box = new_sandbox()
    with server.api() as api:
        detail = api.get(f"/sandboxes/{box.sandbox_id}").json()
        listed = next(one for one in api.get("/v2/sandboxes").json() if one["sandboxID"] == box.sandbox_id)
        v1 = next(one for one in api.get("/sandboxes").json() if one["sandboxID"] == box.sandbox_id)
    for one in (detail, listed, v1):
        for field in ("templateID", "sandboxID", "clientID", "startedAt", "endAt", "envdVersion", "state"):
            assert isinstance(one[field], str) and one[field], field
        for field in ("cpuCount", "memoryMB", "diskSizeMB"):
            assert isinstance(one[field], int) and one[field] > 0, field
        for field in ("startedAt", "endAt"):
            datetime.datetime.fromisoformat(one[field])
    assert detail["envdAccessToken"] == box._envd_access_token
    assert "envdAccessToken" not in listed
    assert detail["tier"] == "gvisor", "the isolation tier is in the object"


def test_list_finds_by_metadata_state_template_and_time(new_sandbox):
    tag = f"run {id(object())}/&=%+☃"
    a = new_sandbox(metadata={"tag": tag, "which": "a"})
    between = now()
    b = new_sandbox(metadata={"tag": tag, "which": "b"})
    new_sandbox(metadata={"which": "a"})

    def found(**query):
        return ids(Sandbox.list(query=SandboxQuery(**query)).next_items())

    assert found(metadata={"tag": tag}) == [b.sandbox_id, a.sandbox_id]
    assert found(metadata={"tag": tag, "which": "a"}) == [a.sandbox_id]
    assert found(metadata={"tag": tag, "which": "c"}) == []
    assert found(metadata={"tag": tag}, state=[SandboxState.RUNNING]) == [b.sandbox_id, a.sandbox_id]
    assert found(metadata={"tag": tag}, state=[SandboxState.PAUSED]) == []
    assert found(metadata={"tag": tag}, template="base") == [b.sandbox_id, a.sandbox_id]
    assert found(metadata={"tag": tag}, template=a.get_info().template_id) == [b.sandbox_id, a.sandbox_id]
    assert found(metadata={"tag": tag}, template="other") == []
    assert found(metadata={"tag": tag}, started_after=between) == [b.sandbox_id]


def test_paging_in_both_orders(server, new_sandbox):
    made = [new_sandbox(metadata={"page": "yes"}).sandbox_id for _ in range(5)]
    query = SandboxQuery(metadata={"page": "yes"})
    newest_first = all_pages(query=query, limit=2)
    assert [len(page) for page in newest_first] == [2, 2, 1]
    assert [one for page in newest_first for one in ids(page)] == made[::-1]
    oldest_first = all_pages(query=query, limit=2, order="asc")
    assert [one for page in oldest_first for one in ids(page)] == made
    assert [len(page) for page in all_pages(query=query, limit=5)] == [5], "no empty page at the end"
    with server.api() as api:
        answer = api.get("/v2/sandboxes", params={"limit": 1})
        assert int(answer.headers["X-Total-Running"]) >= 5
        token = answer.headers["X-Next-Token"]
        wrong = api.get("/v2/sandboxes", params={"limit": 1, "nextToken": token, "order": "asc"})
        assert wrong.status_code == 400 and "next token" in wrong.json()["message"].lower()


def test_paging_is_stable_while_sandboxes_come_and_go(server, new_sandbox):
    made = [new_sandbox(metadata={"page": "moving"}) for _ in range(4)]
    listing = Sandbox.list(query=SandboxQuery(metadata={"page": "moving"}), limit=1)
    first = ids(listing.next_items())
    assert first == [made[3].sandbox_id]
    new_sandbox(metadata={"page": "moving"})
    made[2].kill()
    rest = []
    while listing.has_next:
        rest += ids(listing.next_items())
    assert rest == [made[1].sandbox_id, made[0].sandbox_id]


def test_v1_list_filters_metadata_and_shows_only_running(server, new_sandbox):
    box = new_sandbox(metadata={"v1": "yes"})
    dead = new_sandbox(metadata={"v1": "yes"})
    dead.kill()
    with server.api() as api:
        found = api.get("/sandboxes", params={"metadata": "v1=yes"}).json()
        assert [one["sandboxID"] for one in found] == [box.sandbox_id]


@pytest.mark.parametrize(
    "params",
    [
        {"limit": "0"}, {"limit": "101"}, {"limit": "-1"}, {"limit": "many"}, {"limit": "9" * 30},
        {"nextToken": "?"}, {"nextToken": "AAAA"}, {"nextToken": "A" * 40000}, {"nextToken": "../../x"},
        {"state": "asleep"}, {"order": "sideways"}, {"startedAfter": "yesterday"}, {"template": "base:v1"},
    ],
    ids=lambda p: "-".join(f"{k}={v[:12]}" for k, v in p.items()),
)  # fmt: skip
def test_list_refuses_bad_queries(server, params):
    with server.api() as api:
        answer = api.get("/v2/sandboxes", params=params)
        assert answer.status_code in (400, 414, 431), (answer.status_code, answer.text)
        if answer.status_code == 400:
            assert answer.json()["code"] == 400
        assert api.get("/v2/sandboxes").status_code == 200


# -- timeouts ---------------------------------------------------------------------------------


def test_timeout_kills_within_a_second_and_says_so(server):
    box = Sandbox.create(timeout=3)
    handle = box.commands.run("sleep 600", background=True, timeout=0)
    end = box.get_info().end_at
    with pytest.raises(SandboxNotRunningException):
        handle.wait()
    assert abs((now() - end).total_seconds()) < 2.5
    assert not box.is_running()
    with server.api() as api:
        message = api.get(f"/sandboxes/{box.sandbox_id}").json()["message"]
    assert "its timeout passed" in message


def test_set_timeout_lengthens_and_shortens(new_sandbox):
    box = new_sandbox(timeout=60)
    for seconds in (600, 30):
        box.set_timeout(seconds)
        left = (box.get_info().end_at - now()).total_seconds()
        assert seconds - 3 <= left <= seconds + 1
    box.set_timeout(2)
    wait_for(lambda: not box.is_running(), 6, "the shorter timeout was obeyed")


def test_set_timeout_zero_ends_at_once(new_sandbox):
    box = new_sandbox()
    box.set_timeout(0)
    wait_for(lambda: not box.is_running(), 5, "gone")


def test_lengthened_timeout_outlives_the_first(new_sandbox):
    box = new_sandbox(timeout=2)
    box.set_timeout(60)
    stays(box.is_running, 3.5, "running past the first timeout")


def test_timeout_of_a_gone_sandbox_is_404(new_sandbox):
    box = new_sandbox()
    box.kill()
    with pytest.raises(SandboxNotFoundException):
        box.set_timeout(10)


@pytest.mark.parametrize("timeout", [0, -1, 1.5, "5", None, 2**31, 2**63, 10**30, True], ids=str)
def test_create_refuses_bad_timeouts(server, timeout):
    with server.api() as api:
        for path in ("/v2/sandboxes", "/sandboxes"):
            answer = api.post(path, json={"templateID": "base", "timeout": timeout})
            if timeout is None and answer.status_code == 201:  # null is as good as absent
                api.delete(f"/sandboxes/{answer.json()['sandboxID']}")
                continue
            assert answer.status_code == 400, (path, answer.status_code, answer.text)
            assert answer.json()["code"] == 400
            assert "timeout" in answer.json()["message"].lower()


@pytest.mark.parametrize("timeout", [-1, 1.5, "5", 2**63, 10**30, [], {}], ids=str)
def test_timeout_route_refuses_bad_timeouts(server, sbx, timeout):
    with server.api() as api:
        before = api.get(f"/sandboxes/{sbx.sandbox_id}").json()["endAt"]
        answer = api.post(f"/sandboxes/{sbx.sandbox_id}/timeout", json={"timeout": timeout})
        assert answer.status_code == 400, answer.text
        assert api.get(f"/sandboxes/{sbx.sandbox_id}").json()["endAt"] == before


def test_refreshes_extend_and_never_shorten(server, new_sandbox):
    box = new_sandbox(timeout=60)
    with server.api() as api:
        path = f"/sandboxes/{box.sandbox_id}/refreshes"
        assert api.post(path, json={"duration": 600}).status_code == 204
        end = box.get_info().end_at
        assert (end - now()).total_seconds() > 590
        assert api.post(path, json={"duration": 5}).status_code == 204
        assert box.get_info().end_at == end
        assert api.post(path, json={}).status_code == 204
        assert api.post(path, json={"duration": 3601}).status_code == 400
        assert api.post(path, json={"duration": -1}).status_code == 400


# -- connect -------------------------------------------------------------------------------------


def test_connect_gives_the_same_sandbox_and_never_shortens(server, new_sandbox):
    box = new_sandbox(timeout=300)
    box.files.write("note", "from the first client")
    end = box.get_info().end_at
    other = Sandbox.connect(box.sandbox_id, timeout=10)
    assert other.sandbox_id == box.sandbox_id
    assert other._envd_access_token == box._envd_access_token
    assert other.files.read("note") == "from the first client"
    assert box.get_info().end_at == end
    Sandbox.connect(box.sandbox_id, timeout=900)
    assert (box.get_info().end_at - now()).total_seconds() > 890


def test_connect_answers_200_for_a_running_sandbox(server, new_sandbox):
    box = new_sandbox()
    with server.api() as api:
        for path, body in (
            (f"/v2/sandboxes/{box.sandbox_id}/connect", {}),
            (f"/v2/sandboxes/{box.sandbox_id}/connect", {"timeout": 60}),
            (f"/sandboxes/{box.sandbox_id}/connect", {"timeout": 60}),
            (f"/sandboxes/{box.sandbox_id}-6532622b/connect", {"timeout": 60}),
        ):
            answer = api.post(path, json=body)
            assert answer.status_code == 200, (path, answer.text)
            assert answer.json()["sandboxID"] == box.sandbox_id
            assert answer.json()["envdAccessToken"] == box._envd_access_token
        assert api.post(f"/sandboxes/{box.sandbox_id}/connect", json={}).status_code == 400


# -- metrics and logs -----------------------------------------------------------------------------


def test_metrics_come_within_30_seconds_and_read_the_sandbox(new_sandbox):
    box = new_sandbox()
    before = now() - datetime.timedelta(hours=1)
    box.commands.run("while :; do :; done", background=True, timeout=0)
    got = wait_for(lambda: box.get_metrics(), 30, "a first sample")
    one, info = got[-1], box.get_info()
    assert one.cpu_count == info.cpu_count
    assert 0 < one.mem_used <= one.mem_total and one.mem_total >= 64 << 20
    assert 0 < one.disk_used < one.disk_total and one.disk_total >= 1 << 30
    assert abs((one.timestamp - now()).total_seconds()) < 40
    wait_for(lambda: any(m.cpu_used_pct > 5 for m in box.get_metrics()), 30, "the burnt CPU is seen")
    assert box.get_metrics(start=before, end=before + datetime.timedelta(minutes=1)) == []


def test_agent_metrics(server, sbx):
    with server.edge(sbx) as edge:
        body = edge.get("/metrics").json()
    for field in ("ts", "cpu_count", "cpu_used_pct", "mem_total", "mem_used", "disk_used", "disk_total"):
        assert isinstance(body[field], (int, float)), field
    assert body["disk_total"] > body["disk_used"] > 0


def test_metrics_refuse_a_turned_range_and_a_gone_sandbox(server, new_sandbox):
    box = new_sandbox()
    with server.api() as api:
        path = f"/sandboxes/{box.sandbox_id}/metrics"
        assert api.get(path, params={"start": 20, "end": 10}).status_code == 400
        assert api.get(path, params={"start": "now"}).status_code == 400
        box.kill()
        assert api.get(path).status_code == 404


def test_logs_of_a_sandbox(server, new_sandbox):
    box = new_sandbox()
    box.commands.run("echo for the log")
    with server.api() as api:

        def entries():
            body = api.get(f"/sandboxes/{box.sandbox_id}/logs", params={"limit": 1000}).json()
            assert {"logs", "logEntries"} <= body.keys()
            return body["logEntries"]

        for one in wait_for(entries, 15, "log entries"):
            datetime.datetime.fromisoformat(one["timestamp"])
            assert one["level"] in ("debug", "info", "warn", "error")
            assert isinstance(one["message"], str)
        v2 = api.get(f"/v2/sandboxes/{box.sandbox_id}/logs", params={"direction": "forward"})
        assert v2.status_code == 200 and v2.json()["logs"]
        assert api.get(f"/v2/sandboxes/{box.sandbox_id}/logs", params={"limit": 1001}).status_code == 400
        assert api.get(f"/v2/sandboxes/{box.sandbox_id}/logs", params={"direction": "up"}).status_code == 400
        assert api.get("/sandboxes/i" + "0" * 25 + "/logs").status_code == 404


# -- templates, health, idempotency -----------------------------------------------------------------


def test_templates_list_base(server):
    with server.api() as api:
        base = next(t for t in api.get("/templates").json() if "base" in t["names"] or "base" in t["aliases"])
        for field in (
            "templateID", "buildID", "cpuCount", "memoryMB", "diskSizeMB", "public", "aliases", "names",
            "createdAt", "updatedAt", "spawnCount", "buildCount", "envdVersion", "buildStatus",
        ):  # fmt: skip
            assert field in base, field
        alias = api.get("/templates/aliases/base")
        assert alias.status_code == 200 and alias.json()["templateID"] == base["templateID"]
        assert api.get("/templates/aliases/nope").status_code == 404


def test_health_needs_no_key(server):
    assert httpx.get(f"{server.url}/health").status_code in (200, 204)


def test_same_idempotency_key_same_sandbox(server, new_sandbox):
    one = new_sandbox(idempotency_key="once-and-only-once")
    again = Sandbox.create(idempotency_key="once-and-only-once")
    assert again.sandbox_id == one.sandbox_id
    assert new_sandbox(idempotency_key="another").sandbox_id != one.sandbox_id
    with server.api() as api:
        answer = api.post(
            "/v2/sandboxes",
            json={"templateID": "base", "metadata": {"other": "request"}},
            headers={"Idempotency-Key": "once-and-only-once"},
        )
        assert answer.status_code == 409
        assert answer.json()["error_code"] == "idempotency_request_mismatch"
        for bad in ("", "UPPER", "a" * 256, "a_b", "ä".encode()):
            answer = api.post("/v2/sandboxes", json={"templateID": "base"}, headers={"Idempotency-Key": bad})
            assert answer.status_code == 400, (bad, answer.text)


def test_idempotent_creates_at_once_make_one_sandbox(server):
    async def main():
        url, head = f"{server.url}/v2/sandboxes", {"X-API-KEY": server.key(), "Idempotency-Key": "race-1"}
        async with httpx.AsyncClient(timeout=60) as client:
            answers = await asyncio.gather(
                *(client.post(url, json={"templateID": "base"}, headers=head) for _ in range(8))
            )
        made = {a.json()["sandboxID"] for a in answers if a.status_code == 201}
        assert len(made) == 1, [a.text for a in answers]
        for a in answers:
            if a.status_code != 201:
                assert (a.status_code, a.json()["error_code"]) == (409, "idempotency_in_progress")
        return made.pop()

    box = asyncio.run(main())
    assert Sandbox.kill(box)
    wait_gone(server, box)
