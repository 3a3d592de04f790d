"""`sudo` in a sandbox: the agent under another name (docs/decisions/0002-sudo.md)."""

import json
import pathlib

import pytest
from e2b import CommandExitException

from harness.wait import wait_for

CALLER = (pathlib.Path(__file__).parent / "guest" / "sudo_caller.py").read_text()


def run(sbx, command, **more):
    return sbx.commands.run(command, **more).stdout


def failure(sbx, command, **more):
    with pytest.raises(CommandExitException) as caught:
        sbx.commands.run(command, **more)
    return caught.value


@pytest.fixture(scope="module")
def stranger(sbx):
    """A user who administers nothing."""
    run(sbx, "useradd -m stranger", user="root")
    yield "stranger"
    run(sbx, "userdel -r stranger 2>/dev/null", user="root")


def test_it_is_root_and_needs_no_password(sbx):
    assert run(sbx, "sudo id -un; sudo -n id -u; sudo whoami") == "root\n0\nroot\n"
    assert run(sbx, "sudo touch /root/made && sudo stat -c %U /root/made; sudo rm /root/made") == "root\n"


@pytest.mark.parametrize("code", [0, 1, 42, 255])
def test_exit_codes_pass(sbx, code):
    assert run(sbx, f"sudo sh -c 'exit {code}'; echo $?") == f"{code}\n"


def test_signals_pass(sbx):
    assert run(sbx, "sudo sh -c 'kill -9 $$'; echo $?") == "137\n"
    # To the caller, and on to the command, which may catch it.
    script = """sudo bash -c 'trap "echo caught; exit 7" TERM; echo up; while :; do sleep 0.05; done' > /tmp/said &
        until grep -q up /tmp/said; do sleep 0.05; done; kill -TERM $!; wait $!; echo $?; cat /tmp/said; rm -f /tmp/said"""
    assert run(sbx, script) == "7\nup\ncaught\n"


def test_bytes_pass_both_ways(sbx):
    assert run(sbx, "head -c 3000000 /dev/urandom > /tmp/a; sudo cat < /tmp/a | cmp - /tmp/a && echo same; rm /tmp/a") == "same\n"
    done = sbx.commands.run("sudo sh -c 'echo out; echo err >&2'")
    assert (done.stdout, done.stderr) == ("out\n", "err\n")
    assert run(sbx, "seq 3 | sudo tee /root/t >/dev/null; sudo cat /root/t; sudo rm /root/t") == "1\n2\n3\n"


def test_what_a_killed_caller_ran_ends_too(sbx):
    run(sbx, "sudo sleep 4711 & p=$!; until pgrep -fx 'sleep 4711' >/dev/null; do sleep 0.05; done; kill -9 $p")
    wait_for(lambda: "gone" in run(sbx, "pgrep -fx 'sleep 4711' >/dev/null || echo gone"), 10, "the command ended")


def test_users_and_groups(sbx):
    assert run(sbx, "sudo -u user id -un; sudo -u '#1000' id -u; sudo -g sudo id -gn") == "user\n1000\nsudo\n"
    assert failure(sbx, "sudo -u nobody-here id").stderr == "sudo: unknown user nobody-here\n"
    assert failure(sbx, "sudo -g nothing-here id").stderr == "sudo: unknown group nothing-here\n"


def test_environment_and_folder(sbx):
    out = run(sbx, "cd /tmp; sudo env", envs={"MINE": "1", "LC_TIME": "C"}).splitlines()
    assert {"HOME=/root", "USER=root", "LOGNAME=root", "SUDO_USER=user", "SUDO_UID=1000", "LC_TIME=C"} <= set(out)
    assert not [line for line in out if line.startswith("MINE=")]
    assert "MINE=1" in run(sbx, "sudo -E env", envs={"MINE": "1"}).splitlines()
    assert run(sbx, "sudo A=1 B='x y' sh -c 'echo $A $B'") == "1 x y\n"
    assert run(sbx, "cd /tmp; sudo pwd; sudo -i pwd; sudo -D /etc pwd") == "/tmp\n/root\n/etc\n"
    assert run(sbx, """sudo -i sh -c 'echo "a b"'; sudo -s echo "it's" 'a  b'""") == "a b\nit's a  b\n"


def test_not_found_and_usage(sbx):
    said = failure(sbx, "sudo no-such-program")
    assert (said.exit_code, said.stderr) == (1, "sudo: no-such-program: command not found\n")
    assert "usage:" in failure(sbx, "sudo").stderr
    assert "unknown option" in failure(sbx, "sudo --nonsense x").stderr


def test_with_a_terminal_it_gets_one_of_its_own(sbx):
    inside = "import os; print(os.isatty(0), os.ttyname(0), os.get_terminal_size().columns, os.tcgetpgrp(0) == os.getpgrp())"
    program = f"""import pty, fcntl, termios, struct, os
pid, fd = pty.fork()
if pid == 0:
    fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 111, 0, 0))
    print(os.ttyname(0), flush=True)
    os.execvp("sudo", ["sudo", "python3", "-c", {inside!r}])
out = b""
while True:
    try:
        part = os.read(fd, 4096)
    except OSError:
        break
    if not part:
        break
    out += part
print(out.decode(), os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))"""
    outer, said, status = run(sbx, f"python3 - <<'END'\n{program}\nEND").split("\n")[:3]
    is_tty, inner, columns, in_front = said.split()
    assert (is_tty, columns, in_front, status.strip()) == ("True", "111", "True", "0")
    assert inner != outer.strip()


def test_a_stranger_is_refused_and_a_member_is_not(sbx, stranger):
    said = failure(sbx, "sudo id", user=stranger)
    assert "stranger is not in the sudoers" in said.stderr and said.stdout == ""
    run(sbx, f"usermod -aG sudo {stranger}", user="root")
    assert run(sbx, "sudo id -u", user=stranger) == "0\n"
    run(sbx, f"gpasswd -d {stranger} sudo", user="root")
    failure(sbx, "sudo id", user=stranger)


def test_nobody_becomes_root_by_what_he_says(sbx, stranger):
    sbx.files.write("/tmp/caller.py", CALLER)
    def call(user):
        return json.loads(run(sbx, "python3 /tmp/caller.py good forged </dev/null", user=user))

    assert call("user")["good"] == "S"
    assert call(stranger) == {"good": "E", "forged": "forgery refused"}


def test_rubbish_is_refused_and_the_next_is_served(sbx):
    sbx.files.write("/tmp/caller.py", CALLER)
    said = json.loads(run(sbx, "python3 /tmp/caller.py </dev/null", timeout=90))
    assert said.pop("good") == "S"
    # An honest user may not forge either.
    assert said.pop("forged") == "forgery refused"
    assert set(said.values()) <= {"E", "closed"}, said
    assert run(sbx, "sudo id -u") == "0\n"


def test_many_at_once(sbx):
    out = run(sbx, "for i in $(seq 60); do sudo echo $i & done; wait", timeout=120)
    assert sorted(map(int, out.split())) == list(range(1, 61))


def test_an_upgrade_does_not_bring_the_other_one_back(sbx):
    assert run(sbx, "readlink /usr/bin/sudo; dpkg-divert --listpackage /usr/bin/sudo") == "/.hearth/agent\nLOCAL\n"
