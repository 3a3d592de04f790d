"""What is in a sandbox of the template `base`, and that it starts as users expect it to."""

import datetime
import re

import pytest
from e2b import Sandbox

HTTPS = [
    "curl -sS -m 10 https://public.test/",
    "python3 -c \"import urllib.request as u; print(u.urlopen('https://public.test/', timeout=10).read().decode())\"",
    "node -e \"require('https').get('https://public.test/', r => r.pipe(process.stdout)).on('error', e => { console.error(e); process.exit(1) })\"",
    "git ls-remote https://public.test/x.git 2>&1 | grep -v -i certificate; echo world",
]


def test_tools_are_there_and_run(sbx):
    for command, expected in (
        ("bash --version | head -1", "GNU bash"),
        ("python3 -c 'import ssl, sqlite3, json; print(40 + 2)'", "42"),
        ("python3 -m pip --version", "pip"),
        ("node -e 'console.log(6*7)'", "42"),
        ("git --version", "git version"),
        ("curl --version | head -1", "curl"),
        ("ps ax | head -1", "PID"),
        ("ip -V", "iproute2"),
        ("sudo -n id -un", "root"),
        ("test -s /etc/ssl/certs/ca-certificates.crt && echo certificates", "certificates"),
    ):
        assert expected in sbx.commands.run(command).stdout, command


def test_a_login_shell_forks_nothing(sbx):
    """Consecutive shells get consecutive pids: nothing was started in between by a profile."""
    sbx.files.write("/tmp/shells", "for i in 1 2 3 4 5 6; do bash -l -c 'echo $$'; done\n")
    for user in ("user", "root"):
        pids = [int(line) for line in sbx.commands.run("exec bash /tmp/shells", user=user).stdout.split()]
        steps = {b - a for a, b in zip(pids, pids[1:])}
        assert steps == {1}, f"{user}: pids {pids}"


def test_home_and_users(sbx):
    out = sbx.commands.run("getent passwd user; stat -c '%U %G %a' /home/user; touch /home/user/x /tmp/x && echo writable").stdout
    assert "user:x:1000:" in out and ":/home/user:" in out and "writable" in out
    assert re.search(r"^user user 7[05][05]$", out, re.M)


def test_clock_locale_and_hostname(sbx):
    seconds = int(sbx.commands.run("date +%s").stdout)
    assert abs(seconds - datetime.datetime.now().timestamp()) < 5
    assert sbx.commands.run("hostname").stdout.strip() == sbx.files.read("/etc/hostname").strip() == sbx.sandbox_id
    assert sbx.commands.run("python3 -c 'print(\"gr\\u00fc\u00df\")'").stdout == "gr\u00fc\u00df\n"


def test_two_sandboxes_are_not_twins(sbx, new_sandbox):
    """Random numbers, ids of the machine and keys differ from the first moment."""
    other = new_sandbox()
    for command in ("head -c 16 /dev/urandom | od -An -tx1", "cat /etc/machine-id", "hostname"):
        a, b = sbx.commands.run(command).stdout, other.commands.run(command).stdout
        assert a.strip() and a != b, command


def test_sizes_seen_inside_are_the_sandboxs_own(sbx):
    info = sbx.get_info()
    assert int(sbx.commands.run("nproc").stdout) == info.cpu_count
    total = int(sbx.commands.run("free -m | awk '/^Mem/ {print $2}'").stdout)
    assert info.memory_mb * 0.9 <= total <= info.memory_mb * 1.1


def test_the_disk_is_on_disk_and_not_in_memory(sbx):
    """200 MB of file leave the free memory as it was."""
    out = sbx.commands.run(
        "a=$(awk '/^MemFree/ {print $2}' /proc/meminfo); dd if=/dev/zero of=/home/user/big bs=1M count=200 status=none; sync; "
        "b=$(awk '/^MemFree/ {print $2}' /proc/meminfo); rm /home/user/big; echo $((a - b))"
    ).stdout
    assert int(out) < 100 * 1024, f"{out} KiB of memory went into a file"


def test_nothing_of_the_host_shows_inside(server, sbx):
    """No path, address of the mirror or program of the host in mounts, environment and package sources."""
    out = sbx.commands.run("cat /proc/mounts /proc/self/mountinfo; env; cat /etc/apt/sources.list* /etc/apt/sources.list.d/* /etc/apt/apt.conf.d/* 2>/dev/null || true", user="root").stdout
    assert str(server.state) not in out
    for name in ("E2B_API_KEY", "HEARTH_", "http_proxy", "HTTPS_PROXY"):
        assert name not in out, name


def test_the_operators_authorities_are_trusted_inside(own_server, private_authority):
    """HTTPS to a server with a private authority: by curl, Python, Node and git."""
    server = own_server()
    box = Sandbox.create(timeout=600, **server.opts())
    for command in HTTPS:
        assert "world" in box.commands.run(command, timeout=40).stdout, command


def test_the_operator_may_keep_them_out(own_server, private_authority):
    server = own_server(extra=["--no-host-cas"])
    box = Sandbox.create(timeout=600, **server.opts())
    assert "world" in box.commands.run("curl -sSk -m 10 https://public.test/").stdout
    for command in HTTPS[:3]:
        out = box.commands.run(f"{command} 2>&1 || true", timeout=40).stdout
        assert '"world"' not in out and "certificate" in out.lower(), out


@pytest.mark.parametrize("packages", ["python3-venv", "openssh-client"])
def test_small_helpers(sbx, packages):
    command = {"python3-venv": "python3 -m venv --without-pip /tmp/v && /tmp/v/bin/python -c 'print(1)'", "openssh-client": "ssh -V 2>&1"}[packages]
    assert sbx.commands.run(command).stdout
