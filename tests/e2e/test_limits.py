"""Hard limits: what one sandbox may use, and that a greedy one hurts nobody else.

Every test keeps a neighbour busy meanwhile and looks at how it fares.
"""

import os
import pathlib
import re
import threading
import time

import pytest
from e2b import CommandExitException, NotEnoughSpaceException, Sandbox, SandboxException, TimeoutException

from harness.wait import wait_for


@pytest.fixture(scope="module")
def neighbour(server):
    box = Sandbox.create(timeout=3600)
    yield box
    box.kill()


class Undisturbed:
    """Runs small commands in the neighbour all the while; every one must succeed in time."""

    def __init__(self, box, within=10.0):
        self.box, self.within, self.stop = box, within, threading.Event()
        self.count, self.slowest, self.problem = 0, 0.0, None
        self.thread = threading.Thread(target=self._work)

    def _work(self):
        while not self.stop.is_set():
            began = time.monotonic()
            try:
                assert self.box.commands.run("echo $((21*2)) | tee /tmp/x", timeout=30).stdout == "42\n"
                assert self.box.files.read("/tmp/x") == "42\n"
            except BaseException as e:
                self.problem = e
                return
            self.count += 1
            self.slowest = max(self.slowest, time.monotonic() - began)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, kind, value, trace):
        self.stop.set()
        self.thread.join(60)
        if kind is None:
            assert self.problem is None, f"the neighbour was disturbed: {self.problem!r}"
            assert self.count > 0 and self.slowest < self.within, f"slowest of {self.count}: {self.slowest:.1f} s"


def sentry(server, box):
    """The host process that is the sandbox's kernel."""
    found = [pid for pid, line in server.processes() if box.sandbox_id in line and re.search(r"runsc-sandbox|boot", line)]
    assert found, server.processes()
    return found[0]


def groups(pid):
    """The cgroup directories of a process, by controller (v1) or '' (v2)."""
    mounts = {}
    for line in pathlib.Path("/proc/self/mounts").read_text().splitlines():
        _, where, kind, options, *_ = line.split()
        if kind == "cgroup2":
            mounts[""] = where
        elif kind == "cgroup":
            for option in options.split(","):
                mounts.setdefault(option, where)
    found = {}
    for line in pathlib.Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        for one in controllers.split(","):
            where = mounts.get(one)
            if where and path != "/":
                found[one] = pathlib.Path(where + path)
    return found


def knob(found, v1, v2):
    """The value of a limit, from whichever layout the host has."""
    controller, name = v1
    if controller in found and (found[controller] / name).exists():
        return (found[controller] / name).read_text().strip()
    return (found[""] / v2).read_text().strip()


def test_limits_are_set_in_the_hosts_cgroups(server, new_sandbox):
    box = new_sandbox()
    info = box.get_info()
    found = groups(sentry(server, box))
    memory = int(knob(found, ("memory", "memory.limit_in_bytes"), "memory.max"))
    assert info.memory_mb << 20 <= memory <= (info.memory_mb << 20) * 1.5 + (256 << 20), memory
    if "cpu" in found and (found["cpu"] / "cpu.cfs_quota_us").exists():
        quota = int((found["cpu"] / "cpu.cfs_quota_us").read_text())
        period = int((found["cpu"] / "cpu.cfs_period_us").read_text())
    else:
        quota, period = (int(x) for x in (found[""] / "cpu.max").read_text().split())
    assert info.cpu_count <= quota / period <= info.cpu_count + 1
    pids = knob(found, ("pids", "pids.max"), "pids.max")
    assert pids != "max" and 4096 < int(pids) <= 1 << 17, pids
    everyone = [pid for pid, line in server.processes() if box.sandbox_id in line]
    for pid in everyone:
        for controller, path in groups(pid).items():
            if controller in ("memory", "cpu", "pids"):
                assert path == found[controller], f"{pid} is outside: {path}"


def test_fork_bomb_gets_eagain_and_the_sandbox_lives(server, new_sandbox, neighbour):
    box = new_sandbox(timeout=600)
    script = (
        "import os,errno\nkids=[]\nseen=None\n"
        "while len(kids)<6000:\n"
        " try:\n  kids.append(os.posix_spawn('/bin/sleep',['sleep','600'],{}))\n"
        " except OSError as e:\n  seen=e.errno; break\n"
        "print(seen==errno.EAGAIN, len(kids), flush=True)\n"
        "for k in kids: os.kill(k,9)\n"
        "for k in kids: os.waitpid(k,0)\n"
    )
    with Undisturbed(neighbour):
        box.files.write("/tmp/bomb.py", script)
        out = box.commands.run("python3 -S /tmp/bomb.py", timeout=110).stdout.split()
    assert out[0] == "True", f"no EAGAIN: {out}"
    assert 900 < int(out[1]) <= 4200
    assert box.is_running()
    assert box.commands.run("echo alive").stdout == "alive\n"


def test_the_shells_own_bomb(server, new_sandbox, neighbour):
    """It never stops by itself: the sandbox stays killable and the neighbour does not notice."""
    box = new_sandbox(timeout=600)
    with Undisturbed(neighbour):
        handle = box.commands.run("b() { b | b & }; b; sleep 300", background=True, timeout=0)
        handle.disconnect()
        found = groups(sentry(server, box))
        usage = lambda: int(knob(found, ("pids", "pids.current"), "pids.current"))  # noqa: E731
        wait_for(lambda: usage() > 100, 20, "the bomb went off")
        wait_for(lambda: box.is_running(), 30, "the agent still answers")
        began = time.monotonic()
        assert box.kill()
        assert time.monotonic() - began < 20
    wait_for(lambda: not [1 for _, line in server.processes() if box.sandbox_id in line], 30, "all of it is gone")


def test_many_small_hogs_are_taken_together(server, new_sandbox, neighbour):
    """Hundreds of children, each small, all of them too much: the sandbox outlives them."""
    box = new_sandbox(timeout=600)
    with Undisturbed(neighbour):
        try:
            box.commands.run("perl -e 'for (1..800) { if (fork() == 0) { sleep 600; exit } } sleep 600'", timeout=60)
        except (CommandExitException, SandboxException, TimeoutException):
            pass
    assert box.is_running(), "it took the whole sandbox with it"
    assert box.commands.run("echo alive").stdout == "alive\n"


def test_memory_hog_hits_its_own_limit(server, new_sandbox, neighbour):
    """It ends the hog or the whole sandbox, with the reason shown; never the neighbour."""
    box = new_sandbox(timeout=600)
    hog = "python3 -S -c \"b=[]\nwhile 1: b.append(bytearray(b'x')*(16<<20)); print(len(b)*16, flush=True)\""
    last = []
    with Undisturbed(neighbour):
        with pytest.raises((CommandExitException, SandboxException)):
            box.commands.run(hog, timeout=100, on_stdout=last.append)
    reached = int("".join(last).split()[-1])
    assert 128 <= reached <= box_memory(server, box) * 1.5 + 256, f"{reached} MiB"

    def settled():
        if box.is_running():
            return box.commands.run("echo alive", timeout=10).stdout == "alive\n"
        with server.api() as api:
            return "memory limit" in api.get(f"/sandboxes/{box.sandbox_id}").json()["message"]

    wait_for(settled, 30, "either it lives on, or its end says why")


def box_memory(server, box):
    with server.api() as api:
        answer = api.get(f"/sandboxes/{box.sandbox_id}")
        if answer.status_code == 200:
            return answer.json()["memoryMB"]
        return api.get("/templates").json()[0]["memoryMB"]


def test_full_disk_is_enospc_inside_and_507_outside(server, new_sandbox, neighbour):
    box = new_sandbox(timeout=600)
    free = int(box.commands.run("df -B1 --output=avail /home/user | tail -1").stdout)
    total = int(box.commands.run("df -B1 --output=size /home/user | tail -1").stdout)
    assert 18 << 30 <= total <= 22 << 30, f"the quota is 20 GB, df says {total}"
    host_before = os.statvfs(server.state).f_bavail * os.statvfs(server.state).f_frsize
    with Undisturbed(neighbour, within=20):
        box.commands.run(f"fallocate -l {free - (200 << 20)} /home/user/filler", timeout=60)
        with pytest.raises(CommandExitException) as caught:
            box.commands.run("dd if=/dev/zero of=/home/user/more bs=1M count=2000", timeout=90)
        assert "No space left on device" in caught.value.stderr
        with pytest.raises(NotEnoughSpaceException):
            box.files.write("/home/user/x", os.urandom(1 << 20) * 8)
        with server.edge(box) as edge:
            answer = edge.post("/files", params={"path": "/home/user/y"}, content=bytes(8 << 20), headers={"Content-Type": "application/octet-stream"})
            assert (answer.status_code, answer.json()["code"]) == (507, 507)
            assert edge.get("/health").status_code == 204
        assert box.commands.run("echo alive; cat /etc/hostname").stdout.startswith("alive\n")
        assert box.commands.run("sudo -n dd if=/dev/zero of=/root-more bs=1M count=2000 2>&1 || true", timeout=60).stdout.count("No space left")
        box.commands.run("rm -f /home/user/filler /home/user/more; sync", timeout=60)
        box.files.write("/home/user/x", "room again")
    host_after = os.statvfs(server.state).f_bavail * os.statvfs(server.state).f_frsize
    assert host_before - host_after < 4 << 30, "a reserved file took the host's disk"


def test_inodes_do_not_run_the_host_out(server, new_sandbox, neighbour):
    """A million names are the sandbox's own trouble: the host's inodes stay."""
    box = new_sandbox(timeout=600)
    before = os.statvfs(server.state).f_favail
    box.commands.run("mkdir -p /tmp/i && cd /tmp/i && seq 20000 | xargs touch", timeout=90)
    assert before - os.statvfs(server.state).f_favail < 1000


def test_cpu_hog_is_held_to_its_share(server, new_sandbox, neighbour):
    box = new_sandbox(timeout=600)
    count = box.get_info().cpu_count
    with Undisturbed(neighbour, within=15):
        handle = box.commands.run(f"for i in $(seq {count * 4}); do (while :; do :; done) & done; wait", background=True, timeout=60)
        found = groups(sentry(server, box))

        def used():
            if "cpuacct" in found:
                return int((found["cpuacct"] / "cpuacct.usage").read_text()) / 1e9
            return int(re.search(r"usage_usec (\d+)", (found[""] / "cpu.stat").read_text())[1]) / 1e6

        start, began = used(), time.monotonic()
        wait_for(lambda: time.monotonic() - began > 5, 10)
        share = (used() - start) / (time.monotonic() - began)
        assert 0.3 < share <= count * 1.15 + 0.1, f"{share:.2f} CPUs of {count}"
        handle.kill()
    wait_for(lambda: used_in_a_second(used) < 0.3, 20, "the loops ended with their command")


def used_in_a_second(used):
    start, began = used(), time.monotonic()
    time.sleep(1)
    return (used() - start) / (time.monotonic() - began)


def test_disk_throughput_is_held(own_server):
    """Writing through to the disk takes the time the operator's limit says."""
    server = own_server(extra=["--disk-mib-per-second", "10"])
    box = Sandbox.create(timeout=600, **server.opts())
    found = groups(sentry(server, box))
    if "blkio" in found:
        values = [(found["blkio"] / f"blkio.throttle.{way}_bps_device").read_text() for way in ("read", "write")]
    else:
        values = [(found[""] / "io.max").read_text()] * 2
    assert all(str(10 << 20) in value for value in values), values
    began = time.monotonic()
    box.commands.run("dd if=/dev/zero of=/home/user/x bs=1M count=50 oflag=direct conv=fsync status=none", timeout=60)
    assert time.monotonic() - began > 3, "50 MiB at 10 MiB/s"


def test_sizes_are_what_the_operator_says(own_server):
    """--vcpu and --memory-mib reach the API, the host's limits and the inside."""
    server = own_server(extra=["--vcpu", "1", "--memory-mib", "512"])
    box = Sandbox.create(timeout=600, **server.opts())
    info = box.get_info()
    assert (info.cpu_count, info.memory_mb) == (1, 512)
    assert box.commands.run("nproc").stdout == "1\n"
    assert 450 < int(box.commands.run("free -m | awk '/^Mem/ {print $2}'").stdout) <= 550
    found = groups(sentry(server, box))
    assert int(knob(found, ("memory", "memory.limit_in_bytes"), "memory.max")) < 1200 << 20


def test_memory_files_count_too(new_sandbox, neighbour):
    """/dev/shm and a memory file system are memory: they must not be a way past the limit."""
    box = new_sandbox(timeout=600)
    size = box.get_info().memory_mb * 2
    with Undisturbed(neighbour):
        try:
            out = box.commands.run(f"sudo -n dd if=/dev/zero of=/dev/shm/x bs=1M count={size} 2>&1; echo $?", timeout=90).stdout
            assert not out.rstrip().endswith("\n0"), f"{size} MiB went into /dev/shm"
        except (SandboxException, TimeoutException):
            pass  # the sandbox was ended for it


def test_open_files_are_bounded_in_the_agent(server, new_sandbox):
    """Many watchers and streams: refused at some point, and the agent still answers."""
    box = new_sandbox()
    handles, refused = [], None
    for _ in range(1100):
        try:
            handles.append(box.files.watch_dir("/home/user"))
        except SandboxException as e:
            refused = e
            break
    assert box.commands.run("echo alive").stdout == "alive\n"
    rss = int(re.search(r"VmRSS:\s+(\d+)", box.commands.run("cat /proc/1/status").stdout)[1])
    assert rss < 64 * 1024, f"agent holds {rss} KiB for {len(handles)} watchers ({refused!r})"
