"""`hearth sandbox exec` when something ends early, and what the command line prints of what strangers wrote."""

import json
import os
import subprocess
import threading

import pytest

from harness.server import BINARY
from harness.wait import wait_for


@pytest.fixture(scope="module")
def box(server):
    made = server.cli_json("sandbox", "create", "--template", "base", "--timeout", "600")["sandboxID"]
    yield made
    server.run("sandbox", "kill", made)


def processes(server, box, name):
    done = server.run("sandbox", "exec", box, "--", "pgrep", "-cx", name)
    return int(done.stdout or 0)


def test_a_timeout_kills_the_command(server, box):
    assert server.run("sandbox", "exec", "--timeout", "30", box, "--", "sleep", "0.1").returncode == 0
    done = server.run("sandbox", "exec", "--timeout", "1", box, "--", "sleep", "1000")
    assert done.returncode == 124 and b"--timeout" in done.stderr
    wait_for(lambda: processes(server, box, "sleep") == 0, 10, "the command is gone")


def test_signals_become_128_and_their_number(server, box):
    for number in (9, 15):
        done = server.run("sandbox", "exec", box, "--", "sh", "-c", f"kill -{number} $$")
        assert done.returncode == 128 + number


def test_what_cannot_be_started_is_a_shells_126_or_127(server, box):
    assert server.run("sandbox", "exec", box, "--", "/etc/passwd").returncode == 126
    assert server.run("sandbox", "exec", box, "--", "/no/such").returncode == 127


def test_a_reader_that_goes_away_ends_the_command(server, box):
    command = [str(BINARY), "sandbox", "exec", "--state-dir", str(server.state), box, "--", "yes"]
    proc = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert proc.stdout.read(2) == b"y\n"
    proc.stdout.close()
    assert proc.wait(30) == 141
    assert b"panicked" not in proc.stderr.read()
    wait_for(lambda: processes(server, box, "yes") == 0, 10, "the command is gone")


def test_input_that_nobody_reads_is_no_failure(server, box):
    done = server.run("sandbox", "exec", box, "--", "head", "-c1", input=b"x" * 3_000_000)
    assert (done.returncode, done.stdout) == (0, b"x")


def test_an_interrupt_reaches_the_command(server, box):
    command = [str(BINARY), "sandbox", "exec", "--state-dir", str(server.state), box, "--"]
    command += ["bash", "-c", "trap 'echo caught; exit 7' TERM; echo ready; while :; do sleep 0.05; done"]
    proc = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert proc.stdout.readline() == b"ready\n"
    proc.terminate()
    assert proc.stdout.read() == b"caught\n"
    assert proc.wait(30) == 7


def test_a_sandbox_that_dies_is_told_with_its_reason(server):
    made = server.cli_json("sandbox", "create")["sandboxID"]
    done = []
    thread = threading.Thread(target=lambda: done.append(server.run("sandbox", "exec", made, "--", "sleep", "1000")))
    thread.start()
    wait_for(lambda: processes(server, made, "sleep") == 1, 20, "the command runs")
    assert server.run("sandbox", "kill", made).returncode == 0
    thread.join(30)
    assert done[0].returncode == 125 and b"killed on request" in done[0].stderr, done[0]


def test_hostile_metadata_does_not_reach_the_terminal(server):
    made = server.cli_json("sandbox", "create", "--metadata", "a=\x1b[2J\nfake\tline\u202e")["sandboxID"]
    try:
        assert server.cli_json("sandbox", "info", made)["metadata"]["a"] == "\x1b[2J\nfake\tline\u202e"
        text = server.cli("sandbox", "info", made)
        assert "fake" in text and not set(text) & set("\x1b\t\u202e")
        assert len(text.splitlines()) == len(server.cli("sandbox", "info", made).splitlines())
        assert not any(line.startswith("fake") for line in text.splitlines())
    finally:
        server.run("sandbox", "kill", made)


def test_lists_are_limited_and_filtered(server):
    made = [server.cli_json("sandbox", "create", "--metadata", f"n={n}")["sandboxID"] for n in range(3)]
    try:
        rows = server.cli("sandbox", "list").splitlines()
        assert {*made} <= {row.split("\t")[0] for row in rows}
        newest = server.cli_json("sandbox", "list", "--limit", "2")
        assert [one["sandboxID"] for one in newest] == [made[2], made[1]]
        assert [one["sandboxID"] for one in server.cli_json("sandbox", "list", "--metadata", "n=0")] == [made[0]]
        assert server.cli_json("sandbox", "list", "--state", "paused") == []
    finally:
        assert server.run("sandbox", "kill", *made).returncode == 0


def test_the_folder_on_the_command_line_beats_the_environment(server):
    lost = {**os.environ, "E2B_API_KEY": "e2b_" + "0" * 40, "E2B_API_URL": server.url}
    command = [str(BINARY), "sandbox", "list", "--json"]
    refused = subprocess.run(command, env=lost, capture_output=True, text=True, timeout=30)
    assert refused.returncode == 1 and "401" in refused.stderr
    named = subprocess.run([*command, "--state-dir", str(server.state)], env=lost, capture_output=True, text=True, timeout=30)
    assert named.returncode == 0 and isinstance(json.loads(named.stdout), list)


def test_a_pipe_that_closes_early_is_no_panic(server):
    for command in ("doctor", "env", "sandbox list --json", "key list"):
        line = f"{BINARY} {command} --state-dir {server.state} | true"
        done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, timeout=60)
        assert "panicked" not in done.stderr, command
