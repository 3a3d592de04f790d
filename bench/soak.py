"""Bounded load for some minutes, then: is anything left, and has the server grown?

Run by `make soak` against a server of its own (scripts/scratch-server), whose state folder is HEARTH_STATE_DIR and
whose process is HEARTH_SERVER_PID. Workers create sandboxes, use them, and end them in the three ways there are for a
client: kill, timeout, and kill while a command streams. What the host holds for the instance is counted when the server
is warm and idle, and again at the end; a count that is higher then, memory that grew, or an operation that failed, is a
failure of the run.
"""

import argparse
import collections
import os
import pathlib
import random
import re
import subprocess
import sys
import threading
import time

from e2b import Sandbox
from e2b.exceptions import SandboxException

STATE = pathlib.Path(os.environ["HEARTH_STATE_DIR"])
PID = int(os.environ["HEARTH_SERVER_PID"])
# Memory may grow by this much between warm and end: allocators keep some of what a peak took.
GROWTH_MIB, GROWTH_SHARE = 24, 0.25
# How long the host may take to be as it was, once the last sandbox has ended.
SETTLE_S = 90
# A sandbox that is left to its timeout has to be gone this long after it.
LATE_S = 30


def tag():
    return (STATE / "instance").read_text().strip()


def held():
    """What the host holds for this instance, by kind."""
    state, mine = str(STATE), tag()
    counts = collections.Counter()
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (entry / "cmdline").read_bytes().decode(errors="replace")
            except OSError:
                continue
            counts["processes"] += state in line
    counts["mounts"] = sum(state in line for line in pathlib.Path("/proc/self/mounts").read_text().splitlines())
    for entry in pathlib.Path("/sys/block").glob("loop*/loop/backing_file"):
        try:
            counts["loop devices"] += entry.read_text().strip().startswith(state)
        except OSError:
            continue
    links = subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=True).stdout
    counts["links"] = len(re.findall(rf": h{mine}-", links))
    for depth in ("hearth-", "*/hearth-"):
        for group in pathlib.Path("/sys/fs/cgroup").glob(f"{depth}{mine}/*/"):
            counts["control groups"] += group.is_dir()
    counts["disk images"] = len(list((STATE / "store" / "sandboxes").iterdir()))
    for part in ("sandboxes", "disks", "netns"):
        folder = STATE / "run" / part
        counts[f"run/{part}"] = len(list(folder.iterdir())) if folder.is_dir() else 0
    counts["descriptors of the server"] = len(os.listdir(f"/proc/{PID}/fd"))
    counts["threads of the server"] = len(os.listdir(f"/proc/{PID}/task"))
    return counts


def rss_mib():
    text = pathlib.Path(f"/proc/{PID}/status").read_text()
    return int(re.search(r"^VmRSS:\s+(\d+) kB", text, re.M)[1]) / 1024


class Load:
    def __init__(self):
        self.stop = threading.Event()
        self.lock = threading.Lock()
        self.done = collections.Counter()
        self.faults = []

    def count(self, what):
        with self.lock:
            self.done[what] += 1

    def worker(self, seed):
        dice = random.Random(seed)
        while not self.stop.is_set():
            end = dice.choice(["kill", "kill", "timeout", "kill in a stream"])
            try:
                self.one(dice, end)
                self.count(end)
            except Exception as e:  # whatever it is, the run has to tell it
                with self.lock:
                    self.faults.append(f"{end}: {type(e).__name__}: {str(e)[:300]}")
                if len(self.faults) > 20:
                    self.stop.set()

    def one(self, dice, end):
        sandbox = Sandbox.create(timeout=120, metadata={"soak": end.replace(" ", "-")})
        self.use(sandbox, dice)
        if end == "timeout":
            sandbox.set_timeout(1)
            deadline = time.monotonic() + LATE_S
            while sandbox.is_running():
                if time.monotonic() > deadline:
                    raise AssertionError(f"it still runs {LATE_S} s after its timeout")
                time.sleep(0.2)
            return
        stream = sandbox.commands.run("while :; do echo x; sleep 0.05; done", background=True) if "stream" in end else None
        sandbox.kill()
        if stream is not None:
            try:
                stream.wait()
            except SandboxException:
                return
            except Exception as e:
                # Whatever the client makes of a stream that was cut is the client's; that it ends is ours.
                self.count(f"cut streams seen as {type(e).__name__}")
                return
            raise AssertionError("a command of a killed sandbox ended well")

    @staticmethod
    def use(sandbox, dice):
        token = f"{dice.random()}"
        assert sandbox.commands.run(f"echo {token}").stdout == token + "\n"
        data = dice.randbytes(dice.choice([0, 1, 4096, 1 << 20]))
        sandbox.files.write("soak.bin", data)
        assert bytes(sandbox.files.read("soak.bin", format="bytes")) == data
        assert any(entry.name == "soak.bin" for entry in sandbox.files.list("."))
        size = dice.choice([10, 100_000, 1_000_000])
        assert len(sandbox.commands.run(f"head -c {size} /dev/zero | tr '\\0' x").stdout) == size
        handle = sandbox.commands.run("sleep 1000", background=True)
        assert handle.kill()


def run_load(load, workers, seconds):
    load.stop.clear()
    threads = [threading.Thread(target=load.worker, args=(time.monotonic_ns() + i,), daemon=True) for i in range(workers)]
    for thread in threads:
        thread.start()
    end, told = time.monotonic() + seconds, time.monotonic()
    while time.monotonic() < end and not load.stop.wait(1):
        if time.monotonic() - told > 30:
            told = time.monotonic()
            print(f"  {sum(load.done.values())} sandboxes, {len(load.faults)} faults, server {rss_mib():.0f} MiB", flush=True)
    load.stop.set()
    for thread in threads:
        thread.join(180)
        if thread.is_alive():
            load.faults.append("a worker hangs")


def settled(at_most=None):
    """Waits until no count is above `at_most`, or, without it, until the counts stay as they are for some seconds."""
    end, last, since = time.monotonic() + SETTLE_S, None, time.monotonic()
    while True:
        now = held()
        if at_most is not None and all(now[kind] <= at_most[kind] for kind in now):
            return now
        if now != last:
            last, since = now, time.monotonic()
        if (at_most is None and time.monotonic() - since > 8) or time.monotonic() > end:
            return now
        time.sleep(0.5)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--workers", type=int, default=3)
    args = parser.parse_args()
    seconds = args.minutes * 60

    print(f"soak: {args.workers} workers for {args.minutes:g} minutes", flush=True)
    load = Load()
    run_load(load, args.workers, max(20, seconds * 0.2))
    warm, warm_mib = settled(), rss_mib()
    print(f"  warm and idle: {dict(warm)}, server {warm_mib:.0f} MiB", flush=True)
    if not load.faults:
        run_load(load, args.workers, seconds * 0.8)
    # Threads and descriptors of pools come and go by a few.
    allowed = collections.Counter(warm)
    for kind in ("descriptors of the server", "threads of the server"):
        allowed[kind] += 16
    end, end_mib = settled(allowed), rss_mib()

    faults = list(load.faults)
    faults += [f"left behind: {end[kind]} {kind}, {warm[kind]} when warm" for kind in end if end[kind] > allowed[kind]]
    alive = Sandbox.list().next_items()
    faults += [f"still listed: {one.sandbox_id}" for one in alive]
    limit = warm_mib + max(GROWTH_MIB, warm_mib * GROWTH_SHARE)
    if end_mib > limit:
        faults.append(f"the server has {end_mib:.0f} MiB, {warm_mib:.0f} when warm; {limit:.0f} are allowed")
    if not any(load.done.values()):
        faults.append("not one sandbox went its whole way")
    print(f"done: {dict(load.done)}, server {warm_mib:.0f} -> {end_mib:.0f} MiB")
    for fault in faults:
        print(f"FAULT: {fault}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
