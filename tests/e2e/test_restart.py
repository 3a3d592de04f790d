"""The server's own life: it may end at any moment, and sandboxes do not notice.

Each test has a server of its own.
"""

import base64
import datetime
import os
import re
import signal
import socket
import subprocess
import threading

import httpx
import pytest
from e2b import CommandExitException, Sandbox, SandboxNotFoundException, SandboxNotRunningException, SandboxQuery

from harness import leftovers, rpc
from harness.guest import serve
from harness.wait import wait_for


def stop_by(server, how):
    if how == "SIGTERM":
        server.terminate()
    else:
        server.kill9()


@pytest.mark.parametrize("how", ["SIGTERM", "SIGKILL"])
def test_sandboxes_and_their_processes_outlive_the_server(own_server, how):
    server = own_server()
    opts = server.opts()
    box = Sandbox.create(timeout=600, metadata={"kept": "yes"}, envs={"KEPT": "env"}, **opts)
    counter = box.commands.run("i=0; while :; do i=$((i+1)); echo $i > /tmp/count; sleep 0.1; done", background=True, timeout=0)
    reader = box.commands.run("read line; echo got:$line; exit 4", background=True, stdin=True, timeout=0)
    web = serve(box, "http_server.py", "0.0.0.0", 8000)
    uptime = float(box.files.read("/proc/uptime").split()[0])
    before = int(wait_for(lambda: box.files.read("/tmp/count"), 10))
    end = box.get_info().end_at
    processes = {pid for pid, line in server.processes() if box.sandbox_id in line}
    assert processes

    stop_by(server, how)
    assert processes <= {pid for pid, _ in server.processes()}, "a sandbox process ended with the server"
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{server.url}/health")
    server.start()

    assert box.is_running()
    info = box.get_info()
    assert info.metadata == {"kept": "yes"} and info.end_at == end
    wait_for(lambda: int(box.files.read("/tmp/count") or 0) > before, 10, "the counter went on")
    assert float(box.files.read("/proc/uptime").split()[0]) > uptime, "its kernel began anew"
    assert {counter.pid, reader.pid, web.pid} <= {p.pid for p in box.commands.list()}
    again = box.commands.connect(reader.pid)
    box.commands.send_stdin(reader.pid, "hello\n")
    with pytest.raises(CommandExitException) as caught:
        again.wait()
    assert (caught.value.stdout, caught.value.exit_code) == ("got:hello\n", 4)
    with server.edge(box, 8000) as edge:
        assert edge.get("/").text == "hello\n"
    assert box.commands.run("echo $KEPT").stdout == "env\n"
    fresh = Sandbox.create(timeout=60, **opts)
    assert fresh.commands.run("echo new").stdout == "new\n"
    listed = [one.sandbox_id for one in Sandbox.list(**opts).next_items()]
    assert listed == [fresh.sandbox_id, box.sandbox_id]
    assert box.kill() and fresh.kill()
    wait_for(lambda: not [1 for _, line in server.processes() if box.sandbox_id in line], 20)


def test_a_stream_open_at_kill9_ends_and_the_client_can_come_back(own_server):
    server = own_server()
    box = Sandbox.create(timeout=600, **server.opts())
    handle = box.commands.run("for i in 1 2 3; do echo tick$i; read x; done; exit 6", background=True, stdin=True, timeout=0)
    seen, first = [], threading.Event()

    def follow():
        try:
            for out, _, _ in handle:
                seen.append(out)
                first.set()
        except Exception as e:
            seen.append(e)

    follower = threading.Thread(target=follow)
    follower.start()
    assert first.wait(15)
    server.kill9()
    follower.join(30)
    assert not follower.is_alive(), "the client hangs on a dead stream"
    server.start()
    again = box.commands.connect(handle.pid)
    for _ in range(3):
        box.commands.send_stdin(handle.pid, "\n")
    with pytest.raises(CommandExitException) as caught:
        again.wait()
    assert caught.value.exit_code == 6 and "tick3" in caught.value.stdout


def test_timers_go_on_over_a_restart(own_server):
    server = own_server()
    opts = server.opts()
    soon, past = Sandbox.create(timeout=300, **opts), Sandbox.create(timeout=300, **opts)
    soon.set_timeout(14)
    past.set_timeout(1)
    server.kill9()
    past_end = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=1.5)
    wait_for(lambda: datetime.datetime.now(datetime.timezone.utc) > past_end, 5)
    server.start()
    wait_for(lambda: not past.is_running(), 10, "what passed while the server was away ends at its start")
    assert soon.is_running(), "the other's time has not come"
    end = soon.get_info().end_at
    wait_for(lambda: not soon.is_running(), 40, "its time came")
    assert abs((datetime.datetime.now(datetime.timezone.utc) - end).total_seconds()) < 3
    with server.api() as api:
        for box in (soon, past):
            assert "its timeout passed" in api.get(f"/sandboxes/{box.sandbox_id}").json()["message"]


def test_a_killed_sandbox_stays_killed_over_a_restart(own_server):
    server = own_server()
    opts = server.opts()
    box = Sandbox.create(**opts)
    box.kill()
    server.kill9()
    server.start()
    with pytest.raises(SandboxNotFoundException):
        box.get_info()
    with server.api() as api:
        assert "killed on request" in api.get(f"/sandboxes/{box.sandbox_id}").json()["message"]
    assert Sandbox.list(**opts).next_items() == []


def test_what_belongs_to_nobody_is_removed_within_a_minute(own_server):
    """kill -9 in the middle of creates: what was half made is gone after the next start."""
    server = own_server()
    with httpx.Client(base_url=server.url, headers={"X-API-KEY": server.key()}, timeout=30) as api:
        kept = api.post("/v2/sandboxes", json={"templateID": "base", "timeout": 600}).json()["sandboxID"]
        answers = []

        def create():
            try:
                answers.append(httpx.post(f"{server.url}/v2/sandboxes", json={"templateID": "base", "timeout": 600},
                                          headers={"X-API-KEY": server.key()}, timeout=30))  # fmt: skip
            except httpx.HTTPError as e:
                answers.append(e)

        makers = [threading.Thread(target=create) for _ in range(6)]
        for one in makers:
            one.start()
        wait_for(lambda: len({i for _, line in server.processes() for i in re.findall(r"\bi[a-z0-9]{25}\b", line)}) > 1, 20)
        server.kill9()
        for one in makers:
            one.join()
    server.start()

    def settled():
        with server.api() as api:
            live = {one["sandboxID"] for one in api.get("/v2/sandboxes").json()}
        on_host = {i for _, line in server.processes() for i in re.findall(r"\bi[a-z0-9]{25}\b", line)}
        assert kept in live
        assert on_host <= live, f"processes of nobody: {on_host - live}"
        return True

    wait_for(settled, 60, "only what is listed runs")
    with server.api() as api:
        for one in api.get("/v2/sandboxes").json():
            with server.edge(one["sandboxID"]) as edge:
                assert edge.get("/health").status_code == 204, "listed, but not there"


def test_a_dead_sentry_ends_the_sandbox_with_its_reason(own_server):
    server = own_server()
    box = Sandbox.create(timeout=600, **server.opts())
    handle = box.commands.run("echo up; sleep 600", background=True, timeout=0)
    ended, up = [], threading.Event()

    def follow():
        try:
            for out, _, _ in handle:
                up.set()
        except Exception as e:
            ended.append(e)

    follower = threading.Thread(target=follow)
    follower.start()
    assert up.wait(10)
    victims = [pid for pid, line in server.processes() if box.sandbox_id in line and re.search(r"runsc-sandbox|\bboot\b", line)]
    assert victims, server.processes()
    for pid in victims:
        os.kill(pid, signal.SIGKILL)
    follower.join(20)
    assert not follower.is_alive(), "the stream was not cut"
    assert isinstance(ended[0], SandboxNotRunningException), ended
    with server.edge(box) as edge:
        wait_for(lambda: edge.get("/health").status_code == 502, 5, "/health answers 502")
        assert edge.get("/health").json()["message"] == "The sandbox was not found"
    with server.api() as api:
        answer = wait_for(lambda: (a := api.get(f"/sandboxes/{box.sandbox_id}")).status_code == 404 and a, 10)
        assert "ended unexpectedly" in answer.json()["message"]
        assert api.delete(f"/sandboxes/{box.sandbox_id}").status_code == 404
    wait_for(lambda: not [1 for _, line in server.processes() if box.sandbox_id in line], 20, "its processes are gone")
    wait_for(lambda: not [1 for line in open("/proc/self/mounts") if box.sandbox_id in line], 20, "its mounts are gone")


def test_a_sentry_that_died_while_the_server_was_away(own_server):
    server = own_server()
    box, other = (Sandbox.create(timeout=600, **server.opts()) for _ in range(2))
    server.kill9()
    for pid, line in server.processes():
        if box.sandbox_id in line:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
    server.start()
    wait_for(lambda: not box.is_running(), 20, "found dead")
    assert other.is_running() and other.commands.run("echo ok").stdout == "ok\n"
    with server.api() as api:
        answer = wait_for(lambda: (a := api.get(f"/sandboxes/{box.sandbox_id}")).status_code == 404 and a, 20)
        assert "were gone" in answer.json()["message"] or "ended unexpectedly" in answer.json()["message"]


def test_killing_pid_1_inside_ends_the_sandbox_or_changes_nothing(own_server):
    server = own_server()
    box = Sandbox.create(timeout=600, **server.opts())
    try:
        box.commands.run("kill -9 1; kill -9 -1; true", user="root", timeout=20)
    except Exception:
        pass
    wait_for(lambda: box.commands.run("echo ok").stdout == "ok\n" if box.is_running() else True, 20)


def test_two_servers_on_one_state_directory(own_server):
    """The second refuses; the first goes on."""
    server = own_server()
    args = [a.replace(f":{server.port}", f":{server.port + 500}") for a in server.serve_args()]
    second = subprocess.run(args, capture_output=True, text=True, timeout=30)
    assert second.returncode not in (0, None)
    assert str(server.state) in second.stderr + second.stdout
    assert httpx.get(f"{server.url}/health").status_code in (200, 204)
    assert Sandbox.create(timeout=30, **server.opts()).kill()


def test_a_taken_port_is_an_error_that_names_it(own_server):
    server = own_server()
    server.terminate()
    with socket.create_server(("127.0.0.1", server.port)):
        done = subprocess.run(server.serve_args(), capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    assert str(server.port) in done.stderr + done.stdout
    server.start()


def test_restarting_often_changes_nothing(own_server):
    server = own_server()
    box = Sandbox.create(timeout=900, **server.opts())
    pid = box.commands.run("sleep 7777", background=True, timeout=0).pid
    for i in range(4):
        stop_by(server, ("SIGKILL", "SIGTERM")[i % 2])
        server.start()
    assert pid in [p.pid for p in box.commands.list()]
    found = Sandbox.list(query=SandboxQuery(), **server.opts()).next_items()
    assert [one.sandbox_id for one in found] == [box.sandbox_id]


def test_down_leaves_nothing(own_server):
    server = own_server()
    boxes = [Sandbox.create(timeout=600, **server.opts()) for _ in range(3)]
    boxes[0].commands.run("sleep 1000", background=True, timeout=0)
    kinds = {line.split()[0] for line in leftovers.of(server)}
    assert {"process", "mount", "loop", "link", "control", "nft"} <= kinds, f"the check sees what is there: {kinds}"
    server.down()
    wait_for(lambda: not leftovers.of(server), 20, f"nothing is left: {leftovers.of(server)}")
    images = [p for p in server.state.rglob("*") if any(box.sandbox_id in str(p) for box in boxes)]
    assert not images, images


def test_down_works_while_the_server_runs_and_without_it(own_server):
    server = own_server()
    Sandbox.create(timeout=600, **server.opts())
    done = server.run("down")
    assert done.returncode == 0, done.stderr
    wait_for(lambda: not [1 for _, line in server.processes() if re.search(r"\bi[a-z0-9]{25}\b", line)], 30)
    server.kill9()
    assert server.run("down").returncode == 0, "down twice is fine"


def test_output_of_the_last_server_is_not_lost_to_the_agent(own_server):
    """What a process wrote while no server ran is in its ring; the process never blocked."""
    server = own_server()
    box = Sandbox.create(timeout=600, **server.opts())
    with server.edge(box) as edge, rpc.start(edge, "/bin/bash", ["-c", "read x; seq 1 100000; touch /tmp/done; sleep 600"], stdin=True) as response:
        pid = next(rpc.messages(response))[1]["event"]["start"]["pid"]
        data = base64.b64encode(b"\n").decode()
        rpc.unary(edge, "process.Process", "SendInput", {"process": {"pid": pid}, "input": {"stdin": data}})
        server.kill9()
    server.start()
    wait_for(lambda: box.files.exists("/tmp/done"), 20, "the process went on")
    assert pid in [p.pid for p in box.commands.list()]
