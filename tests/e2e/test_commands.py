"""Commands: running, feeding, following, killing them, and all they can throw at a client."""

import asyncio
import base64
import hashlib
import json
import re
import threading
import time

import httpx
import pytest
from e2b import (
    AsyncSandbox,
    AuthenticationException,
    CommandExitException,
    InvalidArgumentException,
    NotFoundException,
    Sandbox,
    SandboxException,
    TimeoutException,
)

from harness import rpc
from harness.wait import wait_for


def listed(box, text):
    return [p for p in box.commands.list() if text in " ".join([p.cmd, *p.args])]


# -- the result ---------------------------------------------------------------------------


def test_stdout_stderr_and_exit_code(sbx):
    result = sbx.commands.run("echo out; echo err >&2")
    assert (result.stdout, result.stderr, result.exit_code, result.error) == ("out\n", "err\n", 0, None)


@pytest.mark.parametrize("code", [1, 2, 42, 126, 127, 255])
def test_exit_codes(sbx, code):
    with pytest.raises(CommandExitException) as caught:
        sbx.commands.run(f"echo before; echo why >&2; exit {code}")
    assert caught.value.exit_code == code
    assert (caught.value.stdout, caught.value.stderr) == ("before\n", "why\n")
    assert caught.value.error == f"exit status {code}"


def test_killed_by_a_signal(server, sbx):
    with server.edge(sbx) as edge:
        _, _, end, last = rpc.run(edge, "/bin/bash", ["-c", "kill -9 $$"])
    assert end["exitCode"] == -1 and not end.get("exited")
    assert end["status"] == "signal: killed" and end["error"] == "signal: killed"
    assert not last.get("error")


def test_command_not_found(sbx):
    with pytest.raises(CommandExitException) as caught:
        sbx.commands.run("no-such-program-anywhere")
    assert caught.value.exit_code == 127


def test_callbacks_get_what_the_result_has(sbx):
    out, err = [], []
    result = sbx.commands.run(
        "for i in 1 2 3; do echo o$i; echo e$i >&2; done", on_stdout=out.append, on_stderr=err.append
    )
    assert "".join(out) == result.stdout == "o1\no2\no3\n"
    assert "".join(err) == result.stderr == "e1\ne2\ne3\n"


def test_output_arrives_while_the_command_runs(sbx):
    """The second line waits for an answer that is only given after the first was seen."""
    handle = sbx.commands.run("echo one; read x; echo $x", background=True, stdin=True)
    seen = []
    for out, _, _ in handle:
        seen.append(out)
        if len(seen) == 1:
            assert out == "one\n"
            handle.send_stdin("two\n")
    assert "".join(seen) == "one\ntwo\n"


def test_without_retained_output(sbx):
    got = []
    result = sbx.commands.run("echo streamed", on_stdout=got.append, retain_output=False)
    assert got == ["streamed\n"] and result.stdout is None


# -- environment, user, directory ---------------------------------------------------------------


def test_default_user_home_and_environment(sbx):
    out = sbx.commands.run('id -un; id -u; pwd; echo $HOME $USER $LOGNAME; echo "$PATH"').stdout.splitlines()
    assert out[:3] == ["user", "1000", "/home/user"]
    assert out[3] == "/home/user user user"
    assert "/usr/bin" in out[4].split(":") and "/usr/local/bin" in out[4].split(":")


def test_root_user(sbx):
    out = sbx.commands.run("id -un; pwd; echo $HOME $USER", user="root").stdout.splitlines()
    assert out == ["root", "/root", "/root root"]


def test_sudo_needs_no_password(sbx):
    assert sbx.commands.run("sudo -n id -u").stdout == "0\n"


def test_unknown_user(sbx):
    with pytest.raises(AuthenticationException) as caught:
        sbx.commands.run("true", user="nobody-here")
    assert "invalid username: 'nobody-here'" in str(caught.value)


@pytest.mark.parametrize("user", ["", "../root", "root\n", "0", "a" * 65536, "root:x", "rооt", "%72oot"], ids=repr)
def test_odd_user_names(server, sbx, user):
    head = base64.b64encode(f"{user}:".encode()).decode()
    with server.edge(sbx) as edge:
        try:
            answer = rpc.start(edge, "/usr/bin/id", headers={"Authorization": f"Basic {head}"})
            with answer as response:
                body = list(rpc.messages(response)) if response.status_code == 200 else response.read()
        except httpx.HTTPError:
            body = b""  # cut off for its size
        assert "uid=0" not in json.dumps(body, default=repr)
        assert edge.get("/health").status_code == 204


def test_cwd_absolute_relative_and_tilde(sbx):
    sbx.files.make_dir("/home/user/dir/sub")
    for cwd, expected in (
        ("/tmp", "/tmp"), ("dir", "/home/user/dir"), ("dir/sub/..", "/home/user/dir"),
        ("~/dir", "/home/user/dir"), ("~", "/home/user"), ("/", "/"),
    ):  # fmt: skip
        assert sbx.commands.run("pwd -P", cwd=cwd).stdout.strip() == expected, cwd


def test_cwd_missing_or_a_file(sbx):
    with pytest.raises(InvalidArgumentException) as caught:
        sbx.commands.run("true", cwd="/no/such/dir")
    assert "cwd '/no/such/dir' does not exist" in str(caught.value)
    with pytest.raises(InvalidArgumentException):
        sbx.commands.run("true", cwd="/etc/passwd")


def test_request_env_overrides(sbx):
    assert sbx.commands.run("echo $A-$HOME", envs={"A": "b c", "HOME": "/x"}).stdout == "b c-/x\n"


def test_environment_of_one_megabyte(sbx):
    """Many values and one as large as the kernel lets a single string be."""
    envs = {f"V{i}": "x" * 3000 for i in range(200)} | {"BIG": "y" * 120_000}
    out = sbx.commands.run('echo ${#V7} ${#BIG}; env | wc -c', envs=envs).stdout.split()
    assert out[:2] == ["3000", "120000"] and int(out[2]) > 700_000


def test_environment_beyond_the_kernels_limit_is_an_error(sbx):
    with pytest.raises((SandboxException, CommandExitException)):
        sbx.commands.run("true", envs={f"V{i}": "x" * 100_000 for i in range(200)})
    assert sbx.commands.run("echo still here").stdout == "still here\n"


@pytest.mark.parametrize("name", ["", "A=B", "A\0B"], ids=repr)
def test_bad_environment_names_do_no_harm(sbx, name):
    try:
        out = sbx.commands.run("env", envs={name: "evil", "GOOD": "1"}).stdout
        assert "GOOD=1" in out
    except SandboxException:
        pass
    assert sbx.commands.run("echo ok").stdout == "ok\n"


def test_supplementary_groups_are_set(sbx):
    assert sbx.commands.run("id -Gn").stdout == sbx.commands.run("id -Gn user").stdout


def test_own_process_group_and_no_inherited_descriptors(sbx):
    out = sbx.commands.run("ls /proc/self/fd | tr '\\n' ' '").stdout.split()
    assert set(out) <= {"0", "1", "2", "3"}, out


# -- stdin ----------------------------------------------------------------------------------------


def test_stdin_is_closed_by_default(sbx):
    assert sbx.commands.run("cat; echo done", timeout=10).stdout == "done\n"


def test_stdin_send_and_close(sbx):
    handle = sbx.commands.run("cat", background=True, stdin=True)
    handle.send_stdin("text ")
    handle.send_stdin(b"\x62ytes\n")
    sbx.commands.send_stdin(handle.pid, "more\n")
    handle.close_stdin()
    assert handle.wait().stdout == "text bytes\nmore\n"


def test_stdin_stream_input(sbx):
    handle = sbx.commands.run("sha256sum", background=True, stdin=True)
    sbx.commands.stream_input(handle.pid, (b"x" * 65536 for _ in range(32)))
    sbx.commands.close_stdin(handle.pid)
    assert handle.wait().stdout.split()[0] == (
        hashlib.sha256(b"x" * 65536 * 32).hexdigest()
    )


def test_stdin_async_stream_input(server, sbx):
    async def main():
        box = await AsyncSandbox.connect(sbx.sandbox_id)
        handle = await box.commands.run("wc -c", background=True, stdin=True)
        async with box.commands.stream_input(handle.pid) as stream:
            for _ in range(10):
                await stream.send(b"z" * 1000)
        await handle.close_stdin()
        assert (await handle.wait()).stdout.strip() == "10000"

    asyncio.run(main())


def test_stdin_of_a_process_without_one(sbx):
    handle = sbx.commands.run("sleep 600", background=True)
    try:
        with pytest.raises(SandboxException):
            handle.send_stdin("x")
    finally:
        assert handle.kill()


def test_stdin_nobody_reads_is_bounded(server, sbx):
    """A full pipe must hold the sender back or refuse, not pile up in the agent."""
    handle = sbx.commands.run("sleep 600", background=True, stdin=True)
    try:
        with pytest.raises((SandboxException, TimeoutException)):
            for _ in range(64):
                handle.send_stdin(b"q" * (1 << 20), request_timeout=1.5)
        rss = int(re.search(r"VmRSS:\s+(\d+)", sbx.commands.run("cat /proc/1/status").stdout)[1])
        assert rss < 64 * 1024, f"agent holds {rss} KiB"
    finally:
        assert handle.kill()


# -- background, list, connect, kill ----------------------------------------------------------------


def test_background_list_and_kill(sbx):
    handle = sbx.commands.run("sleep 3141", background=True)
    (entry,) = listed(sbx, "sleep 3141")
    assert entry.pid == handle.pid
    assert entry.cmd == "/bin/bash" and entry.args == ["-l", "-c", "sleep 3141"]
    assert handle.kill() is True
    with pytest.raises(CommandExitException) as caught:
        handle.wait()
    assert caught.value.exit_code == -1 and "killed" in caught.value.error
    wait_for(lambda: not listed(sbx, "sleep 3141"), 5, "it left the list")
    assert sbx.commands.kill(handle.pid) is False
    assert sbx.commands.kill(999_999) is False


def test_kill_ends_a_process_that_ignores_signals(sbx):
    handle = sbx.commands.run("trap '' TERM INT HUP; while :; do sleep 0.1; done", background=True)
    assert handle.kill()
    with pytest.raises(CommandExitException):
        handle.wait()


def test_connect_from_several_clients(server, sbx):
    handle = sbx.commands.run("read go; echo shared; exit 7", background=True, stdin=True)
    results, connected = [], threading.Barrier(4)

    def follow():
        other = Sandbox.connect(sbx.sandbox_id).commands.connect(handle.pid)
        connected.wait(20)
        try:
            other.wait()
        except CommandExitException as e:
            results.append((e.stdout, e.exit_code))

    followers = [threading.Thread(target=follow) for _ in range(3)]
    for one in followers:
        one.start()
    connected.wait(20)
    handle.send_stdin("\n")
    with pytest.raises(CommandExitException) as caught:
        handle.wait()
    for one in followers:
        one.join(20)
    assert (caught.value.stdout, caught.value.exit_code) == ("shared\n", 7)
    assert results == [("shared\n", 7)] * 3


def test_a_process_outlives_its_client(sbx):
    handle = sbx.commands.run("sleep 2718; true", background=True)
    handle.disconnect()
    assert listed(sbx, "sleep 2718")
    again = sbx.commands.connect(handle.pid)
    assert again.pid == handle.pid
    assert again.kill()
    with pytest.raises(CommandExitException):
        again.wait()


def test_late_connect_still_gets_the_end(sbx):
    handle = sbx.commands.run("exit 5", background=True)
    with pytest.raises(CommandExitException):
        handle.wait()
    with pytest.raises(CommandExitException) as caught:
        sbx.commands.connect(handle.pid).wait()
    assert caught.value.exit_code == 5


def test_connect_to_nothing(sbx):
    with pytest.raises(NotFoundException):
        sbx.commands.connect(999_999)
    with pytest.raises(NotFoundException):
        sbx.commands.send_stdin(999_999, "x")


def test_tag_selects_a_process(server, sbx):
    with server.edge(sbx) as edge:
        with rpc.start(edge, "/bin/cat", tag="my tag", stdin=True) as response:
            events = rpc.messages(response)
            next(events)
            listing = rpc.unary(edge, "process.Process", "List", {}).json()["processes"]
            assert [p["tag"] for p in listing if p.get("tag")] == ["my tag"]
            selector = {"process": {"tag": "my tag"}}
            data = base64.b64encode(b"tagged").decode()
            assert rpc.unary(edge, "process.Process", "SendInput", {**selector, "input": {"stdin": data}}).status_code == 200
            assert base64.b64decode(next(events)[1]["event"]["data"]["stdout"]) == b"tagged"
            assert rpc.unary(edge, "process.Process", "CloseStdin", selector).status_code == 200
            assert "end" in next(events)[1]["event"]
        assert rpc.unary(edge, "process.Process", "SendSignal", {"process": {"tag": "none"}, "signal": "SIGNAL_SIGKILL"}).status_code == 404


def test_sigterm_can_be_handled(server, sbx):
    with server.edge(sbx) as edge:
        with rpc.start(edge, "/bin/bash", ["-c", "trap 'echo bye; exit 3' TERM; echo up; while :; do sleep 0.05; done"]) as response:
            events = rpc.messages(response)
            pid = next(events)[1]["event"]["start"]["pid"]
            next(events)
            answer = rpc.unary(edge, "process.Process", "SendSignal", {"process": {"pid": pid}, "signal": "SIGNAL_SIGTERM"})
            assert answer.status_code == 200, answer.text
            rest = [m for _, m in events]
        assert rest[-2]["event"]["end"]["exitCode"] == 3
        assert rpc.unary(edge, "process.Process", "SendSignal", {"process": {"pid": 1}, "signal": "SIGNAL_SIGKILL"}).status_code == 404


# -- timeouts ---------------------------------------------------------------------------------------------


def test_timeout_kills_the_process(sbx):
    began = time.monotonic()
    with pytest.raises(TimeoutException):
        sbx.commands.run("echo before; sleep 1618", timeout=1.5)
    assert time.monotonic() - began < 10
    wait_for(lambda: not listed(sbx, "sleep 1618"), 5, "the process is gone too")
    wait_for(lambda: "sleep 1618" not in sbx.commands.run("ps axo args").stdout.replace("ps axo", ""), 5)


def test_timeout_zero_means_none(sbx):
    assert sbx.commands.run("sleep 1; echo end", timeout=0).stdout == "end\n"


def test_keepalives_on_a_silent_stream(server, sbx):
    with server.edge(sbx) as edge:
        with rpc.start(edge, "/bin/sleep", ["600"], headers={"Keepalive-Ping-Interval": "1"}) as response:
            events = rpc.messages(response)
            pid = next(events)[1]["event"]["start"]["pid"]
            kinds = [list(next(events)[1]["event"]) for _ in range(2)]
            assert kinds == [["keepalive"], ["keepalive"]]
            assert sbx.commands.kill(pid)


# -- what processes can do to a client ------------------------------------------------------------------------


def test_output_in_the_last_microsecond(sbx):
    """Nothing written before the exit may be lost, however close to it."""
    script = "import os; os.write(1, b'x' * 60000 + b'END'); os.write(2, b'LAST'); os._exit(9)"
    for _ in range(10):
        with pytest.raises(CommandExitException) as caught:
            sbx.commands.run(f'python3 -S -c "{script}"')
        assert caught.value.exit_code == 9
        assert caught.value.stdout.endswith("END") and len(caught.value.stdout) == 60003
        assert caught.value.stderr == "LAST"


def test_ten_megabytes_in_one_line(server, sbx):
    server.reset_peak()
    before = server.rss_mib()[0]
    got = []
    result = sbx.commands.run(
        "python3 -c \"import sys; sys.stdout.write('ab' * 5 * 1024 * 1024)\"", on_stdout=lambda s: got.append(len(s))
    )
    assert len(result.stdout) == 10 * 1024 * 1024 and result.stdout == "ab" * (5 << 20)
    assert sum(got) == 10 * 1024 * 1024
    assert server.rss_mib()[1] - before < 64


def test_invalid_utf8_and_cut_characters(server, sbx):
    result = sbx.commands.run("printf '\\377\\376ok\\300\\n'; printf 'gr\\303'; sleep 0.2; printf '\\274n'")
    assert result.stdout == "\ufffd\ufffdok\ufffd\ngr\u00fcn"
    with server.edge(sbx) as edge:
        out, _, _, _ = rpc.run(edge, "/bin/bash", ["-c", "head -c 300000 /dev/urandom | tee /tmp/r; sha256sum </tmp/r >&2"])
        assert len(out) == 300000
        assert sbx.commands.run("sha256sum </tmp/r").stdout.split()[0] == hashlib.sha256(out).hexdigest()


def test_nul_bytes_and_escapes_pass(sbx):
    assert sbx.commands.run("printf 'a\\0b\\033[31m'").stdout == "a\0b\033[31m"


def test_output_nobody_reads_does_not_stop_the_process(server, new_sandbox):
    """The client is gone: output is dropped, the process ends, the agent stays small."""
    box = new_sandbox()
    handle = box.commands.run("yes 0123456789abcdef | head -c 200000000; touch /tmp/finished", background=True)
    handle.disconnect()
    wait_for(lambda: box.files.exists("/tmp/finished"), 60, "the process ran to its end")
    rss = int(re.search(r"VmRSS:\s+(\d+)", box.commands.run("cat /proc/1/status").stdout)[1])
    assert rss < 64 * 1024, f"agent holds {rss} KiB"


def test_a_child_that_keeps_the_pipe_does_not_hold_the_result(sbx):
    """The shell ends at once; what it left running has the output pipe open."""
    began = time.monotonic()
    result = sbx.commands.run("(sleep 30; echo late) & echo now", timeout=25)
    assert result.stdout == "now\n" and time.monotonic() - began < 15
    sbx.commands.run("pkill sleep || true")


def test_zombies_are_reaped(sbx):
    """Orphans come to PID 1, which has to collect them."""
    sbx.commands.run("for i in $(seq 20); do (sh -c 'sleep 0.1 &' &); done")
    assert sbx.commands.run("ps axo stat= | wc -l").stdout.strip() != "0"
    wait_for(lambda: sbx.commands.run("ps axo stat= | grep -c ^Z || true").stdout.strip() == "0", 10)


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_thousand_processes(server, new_sandbox):
    box = new_sandbox(timeout=600)
    server.reset_peak()
    before = server.rss_mib()[0]

    async def main():
        client = await AsyncSandbox.connect(box.sandbox_id)
        gate = asyncio.Semaphore(16)

        async def one():
            async with gate:
                handle = await client.commands.run("exec sleep 1234", background=True, timeout=0)
                await handle.disconnect()
                return handle.pid

        pids = await asyncio.gather(*(one() for _ in range(1000)))
        assert len(set(pids)) == 1000
        running = await client.commands.list()
        assert {p.pid for p in running} >= set(pids)
        assert (await client.commands.run("echo responsive")).stdout == "responsive\n"
        await client.commands.run("pkill -x sleep")
        for _ in range(100):
            if not await client.commands.list():
                return
            await asyncio.sleep(0.1)
        raise AssertionError("processes are still listed")

    asyncio.run(main())
    assert server.rss_mib()[1] - before < 128


def test_hundred_commands_at_once(server, sbx):
    async def main():
        box = await AsyncSandbox.connect(sbx.sandbox_id)
        out = await asyncio.gather(*(box.commands.run(f"echo {i}; exit 0") for i in range(100)))
        assert [o.stdout for o in out] == [f"{i}\n" for i in range(100)]

    asyncio.run(main())


# -- bad input to the process service ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"null", b'"x"', b'{"process":', b'{"process":{"pid":"abc"}}', b'{"process":{"pid":-1}}',
     b'{"process":{"pid":99999999999999}}', b'{"process":{"pid":1,"tag":"x"}}', b"\xff\xfe", b"{" * 100_000,
     b'{"process":{"pid":1},"process":{"pid":2}}'],
    ids=lambda b: repr(b[:24]),
)  # fmt: skip
def test_malformed_unary_bodies(server, sbx, body):
    with server.edge(sbx) as edge:
        answer = rpc.unary(edge, "process.Process", "SendSignal", body)
        assert 400 <= answer.status_code < 500, (answer.status_code, answer.text)
        assert answer.json()["code"] in ("invalid_argument", "not_found", "resource_exhausted", "unimplemented"), answer.text
        assert edge.get("/health").status_code == 204


def test_oversized_unary_body_is_refused(server, sbx):
    with server.edge(sbx) as edge:
        try:
            answer = rpc.unary(edge, "process.Process", "List", b'{"x":"' + b"a" * (80 << 20) + b'"}')
            assert answer.status_code in (400, 413, 429), answer.status_code
        except httpx.HTTPError:
            pass  # cut off while sending is as good
    with server.edge(sbx) as edge:
        assert edge.get("/health").status_code == 204


@pytest.mark.parametrize(
    "content",
    [b"", b"\0\0\0", b"\0\0\0\0\5{", b"\0\xff\xff\xff\xff{}", b"\1\0\0\0\2{}", b"\2\0\0\0\2{}", b"\x80\0\0\0\2{}",
     rpc.envelope(b"{"), rpc.envelope({"process": {}}), rpc.envelope({"process": {"cmd": ""}}),
     rpc.envelope({"process": {"cmd": "/no/such/program"}}), rpc.envelope({"process": {"cmd": "/etc"}}),
     rpc.envelope({"process": {"cmd": "/bin/true\0"}}), rpc.envelope({"process": {"cmd": "/bin/true", "args": ["\0"]}}),
     rpc.envelope({"process": {"cmd": "x" * 65536}}),
     rpc.envelope({"process": {"cmd": "/bin/true", "cwd": "/\0"}})],
    ids=lambda b: repr(b[:40]),
)  # fmt: skip
def test_malformed_streams(server, sbx, content):
    with server.edge(sbx, timeout=15) as edge:
        head = {"Content-Type": "application/connect+json", "Connect-Protocol-Version": "1"}
        with edge.stream("POST", "/process.Process/Start", content=content, headers=head) as response:
            if response.status_code == 200:
                got = list(rpc.messages(response))
                assert got and got[-1][0] & 2 and got[-1][1]["error"]["code"], got
                assert not any("start" in m.get("event", {}) for _, m in got)
            else:
                assert 400 <= response.status_code < 500
        assert edge.get("/health").status_code == 204


@pytest.mark.parametrize(
    ("path", "kind", "status"),
    [
        ("/process.Process/NoSuch", "application/json", (404, 501)),
        ("/no.Such/Method", "application/json", (404, 501)),
        ("/process.Process/List", "text/plain", (415,)),
        ("/process.Process/../process.Process/List", "application/json", (200, 400, 404)),
        ("/process.Process%2FList", "application/json", (400, 404, 501)),
    ],
)
def test_odd_rpc_routes(server, sbx, path, kind, status):
    with server.edge(sbx) as edge:
        answer = edge.post(path, content=b"{}", headers={"Content-Type": kind})
        assert answer.status_code in status, (answer.status_code, answer.text)
        assert edge.get("/health").status_code == 204


def test_the_token_is_needed(server, sbx):
    for token in (None, "", "x", sbx._envd_access_token[:-1], sbx._envd_access_token + "0"):
        head = {"E2b-Sandbox-Id": sbx.sandbox_id, "E2b-Sandbox-Port": "49983"}
        if token is not None:
            head["X-Access-Token"] = token
        with httpx.Client(base_url=server.url, headers=head) as edge:
            assert rpc.unary(edge, "process.Process", "List", {}).status_code == 401
            assert rpc.unary(edge, "filesystem.Filesystem", "Stat", {"path": "/"}).status_code == 401
            assert edge.get("/files", params={"path": "/etc/passwd"}).status_code == 401
            assert edge.post("/files", params={"path": "/tmp/x"}, content=b"").status_code == 401
            assert edge.get("/envs").status_code == 401
            assert edge.get("/metrics").status_code == 401
            assert edge.get("/health").status_code == 204
    with server.edge(sbx) as edge:
        assert rpc.unary(edge, "process.Process", "List", {}).status_code == 200


def test_client_disconnects_leave_nothing_behind(server, sbx):
    """Streams dropped at every stage; afterwards the agent and the server hold no more than before."""
    with server.edge(sbx) as edge:
        for _ in range(30):
            with rpc.start(edge, "/bin/sleep", ["0.1"]) as response:
                next(rpc.messages(response))
    wait_for(lambda: not listed(sbx, "sleep 0.1"), 10, "all of them ended")
    assert sbx.commands.run("echo ok").stdout == "ok\n"
