"""`hearth` on the command line, as an operator and a script use it."""

import json
import os
import re
import socket
import stat
import subprocess
import urllib.parse

import httpx
import pytest
from e2b import Sandbox

from harness import netns
from harness.server import BINARY
from harness.wait import wait_for


def hearth(*args, **more):
    env = {k: v for k, v in os.environ.items() if not k.startswith("E2B_")}
    return subprocess.run([str(BINARY), *args], capture_output=True, text=True, timeout=60, env=env, **more)


@pytest.fixture(scope="module")
def box(server):
    made = server.cli_json("sandbox", "create")
    yield made["sandboxID"]
    server.run("sandbox", "kill", made["sandboxID"])


# -- sandboxes ---------------------------------------------------------------------------


def test_create_has_the_apis_field_names(server):
    made = server.cli_json("sandbox", "create", "base")
    try:
        for field in ("sandboxID", "templateID", "envdVersion"):
            assert made[field], field
    finally:
        assert server.run("sandbox", "kill", made["sandboxID"]).returncode == 0


def test_list_and_info_agree_with_the_api(server, box):
    listed = server.cli_json("sandbox", "list")
    one = next(s for s in listed if s["sandboxID"] == box)
    info = server.cli_json("sandbox", "info", box)
    assert info["sandboxID"] == box and info["state"] == one["state"] == "running"
    for field in ("startedAt", "endAt", "cpuCount", "memoryMB", "diskSizeMB", "templateID"):
        assert info[field] == one[field], field
    table = server.cli("sandbox", "list")
    assert box in table
    assert box in server.cli("sandbox", "info", box)


@pytest.mark.parametrize("code", [0, 1, 3, 42, 127, 255])
def test_exec_passes_the_exit_code_through(server, box, code):
    done = server.run("sandbox", "exec", box, "--", "sh", "-c", f"echo out; echo err >&2; exit {code}")
    assert (done.returncode, done.stdout, done.stderr) == (code, b"out\n", b"err\n")


def test_exec_passes_arguments_as_they_are(server, box):
    args = ["a b", "", "$HOME", "'q'", '"d"', "*", "-n", "--json", "ü☃", "new\nline", "\\"]
    done = server.run("sandbox", "exec", box, "--", "python3", "-c", "import sys,json; print(json.dumps(sys.argv[1:]))", *args)
    assert json.loads(done.stdout) == args


def test_exec_passes_stdin_and_bytes(server, box):
    data = bytes(range(256)) * 1000
    done = server.run("sandbox", "exec", box, "--", "cat", input=data)
    assert done.returncode == 0 and done.stdout == data


def test_exec_killed_by_a_signal_is_a_failure(server, box):
    assert server.run("sandbox", "exec", box, "--", "sh", "-c", "kill -9 $$").returncode not in (0, None)


def test_exec_of_what_is_not_there(server, box):
    assert server.run("sandbox", "exec", box, "--", "no-such-program").returncode == 127
    gone = server.run("sandbox", "exec", "i" + "0" * 25, "--", "true")
    assert gone.returncode not in (0, None) and b"not found" in gone.stderr.lower()
    assert b"panicked" not in gone.stderr


def test_kill_and_the_reason_afterwards(server):
    made = server.cli_json("sandbox", "create")["sandboxID"]
    assert server.run("sandbox", "kill", made).returncode == 0
    again = server.run("sandbox", "kill", made)
    assert again.returncode == 1
    info = server.run("sandbox", "info", made)
    assert info.returncode == 1 and b"killed on request" in info.stderr + info.stdout


@pytest.mark.parametrize("bad", ["", "..", "../x", "x" * 70000, "i" + "0" * 25 + "\n", "і" + "0" * 25])
def test_odd_ids_on_the_command_line(server, bad):
    for verb in ("info", "kill"):
        done = server.run("sandbox", verb, bad)
        assert done.returncode not in (0, None) and done.stderr
        assert b"panicked" not in done.stderr


def test_timeout_and_metadata_of_a_create(server):
    made = server.cli_json("sandbox", "create", "--timeout", "77")
    try:
        info = server.cli_json("sandbox", "info", made["sandboxID"])
        assert info["endAt"] > info["startedAt"]
    finally:
        server.run("sandbox", "kill", made["sandboxID"])


# -- env and keys -----------------------------------------------------------------------------


def test_env_is_a_block_a_shell_can_eval(server):
    text = server.cli("env")
    out = subprocess.run(
        ["sh", "-c", 'eval "$1"; echo $E2B_API_KEY $E2B_API_URL $E2B_SANDBOX_URL', "sh", text], capture_output=True, text=True
    ).stdout.split()
    assert len(out) == 3 and re.fullmatch(r"e2b_[0-9a-f]{40}", out[0])
    assert [urllib.parse.urlsplit(url).port for url in out[1:]] == [server.port] * 2
    assert httpx.get(f"{out[1]}/v2/sandboxes", headers={"X-API-KEY": out[0]}).status_code == 200
    box = Sandbox.create(timeout=30, api_key=out[0], api_url=out[1], sandbox_url=out[2])
    assert box.commands.run("echo $((1+1))").stdout == "2\n"
    box.kill()


def test_keys_are_made_listed_and_revoked(server):
    made = server.cli_json("key", "create", "--team", "keyring")
    key = made["key"]
    assert re.fullmatch(r"e2b_[0-9a-f]{40}", key)
    head = {"X-API-KEY": key}
    assert httpx.get(f"{server.url}/v2/sandboxes", headers=head).status_code == 200
    listed = server.cli("key", "list", "--json")
    assert "keyring" in listed and key not in listed, "a key is shown once"
    entry = next(k for k in json.loads(listed) if k["team"] == "keyring")
    done = server.run("key", "revoke", str(entry["id"]))
    assert done.returncode == 0, done.stderr
    wait_for(lambda: httpx.get(f"{server.url}/v2/sandboxes", headers=head).status_code == 401, 10, "revoked")


def test_keys_are_stored_hashed(server):
    key = server.key("hashed")
    looked = 0
    for path in server.state.iterdir():
        if path.is_file() and path.stat().st_size < 64 << 20 and path.name != "client.json":
            looked += 1
            assert key.encode() not in path.read_bytes(), path
    assert looked, "the database is somewhere else"


def test_the_first_key_is_for_root_alone(server):
    path = server.state / "client.json"
    assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0
    assert stat.S_IMODE(server.state.stat().st_mode) & 0o002 == 0


@pytest.mark.parametrize("team", ["", "..", "UPPER", "a" * 41, "a b", "тeam", "a/b", "a\n"])
def test_odd_team_names(server, team):
    done = server.run("key", "create", "--team", team)
    assert done.returncode not in (0, None) and b"team" in done.stderr and b"panicked" not in done.stderr


# -- the server's own ----------------------------------------------------------------------------


def test_doctor_checks_the_host(server):
    done = server.run("doctor", "--json")
    findings = json.loads(done.stdout)
    rows = findings if isinstance(findings, list) else findings.get("checks") or findings.get("findings")
    assert rows and all(isinstance(row, dict) for row in rows)
    text = done.stdout.decode()
    for word in ("runsc", "cgroup"):
        assert word in text, word
    assert done.returncode in (0, 1)
    assert server.run("doctor").stdout


@pytest.mark.parametrize("addr", ["0.0.0.0", netns.HOST_ADDR, "::"])
def test_it_refuses_to_listen_beyond_loopback(server, tmp_path, addr):
    """First the same server on loopback: that one does listen (it is the one under test)."""
    assert httpx.get(f"{server.url}/health").status_code in (200, 204)
    listen = f"[{addr}]:3777" if ":" in addr else f"{addr}:3777"
    done = hearth("serve", "--listen", listen, "--state-dir", str(tmp_path / "s"), "--cache-dir", str(tmp_path / "c"))
    assert done.returncode not in (0, None)
    assert "loopback" in done.stderr.lower() + done.stdout.lower()
    with pytest.raises(OSError):
        socket.create_connection((netns.HOST_ADDR, 3777), 1)


@pytest.mark.parametrize(
    "args", [[], ["nonsense"], ["serve", "--listen", "nowhere"], ["serve", "--listen", "127.0.0.1:99999"], ["serve", "--sandbox-net", "10.0.0.0/33"],
             ["sandbox", "exec"], ["key", "create", "--limit", "-1"], ["key", "create", "--limit", "many"]],
    ids=" ".join,
)  # fmt: skip
def test_wrong_usage_is_an_error_and_says_how(args, tmp_path):
    done = hearth(*args, *(["--state-dir", str(tmp_path)] if args and args[0] in ("serve", "key") else []))
    assert done.returncode in (1, 2, 64), done
    assert done.stderr and "panicked" not in done.stderr


def test_help_and_version():
    assert hearth("--help").returncode == 0
    assert re.search(r"\d+\.\d+\.\d+", hearth("--version").stdout)
    for command in ("serve", "sandbox", "key", "env", "doctor", "down", "prepare"):
        assert hearth(command, "--help").returncode == 0, command


def test_a_client_without_its_server(tmp_path):
    done = hearth("sandbox", "list", "--state-dir", str(tmp_path / "nothing"))
    assert done.returncode not in (0, None) and done.stderr and "panicked" not in done.stderr


def test_a_server_that_is_down_is_said_plainly(own_server):
    server = own_server()
    assert server.run("sandbox", "list").returncode == 0
    server.terminate()
    done = server.run("sandbox", "list")
    assert done.returncode not in (0, None)
    assert b"panicked" not in done.stderr and done.stderr
