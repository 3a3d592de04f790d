"""Measures what a client sees beside the floor of the same machine in the same minute.

Run by `make bench`. It talks to the server that E2B_API_KEY, E2B_API_URL and E2B_SANDBOX_URL name, with the
published Python SDK, and prints a table; `--json FILE` writes the raw figures too. Not a test: nothing here fails
because a machine is slow.

- create: `Sandbox.create()` until the first `commands.run("true")` has returned, one at a time, no stock of ready sandboxes.
- exec: `commands.run("true")` in a running sandbox, beside the tier's own floor: the same `/bin/bash -l -c true`
  spawned and waited for by a small program inside the same sandbox.
- peer: a bare `runsc run` of `/bin/true` with the same root and network mode, by hand, between the creates.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

from e2b import Sandbox

FLOOR = r"""
import json, subprocess, time
out = []
for _ in range(%d):
    t = time.perf_counter()
    subprocess.run(["/bin/bash", "-l", "-c", "true"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    out.append((time.perf_counter() - t) * 1000)
print(json.dumps(out))
"""


def timed(call):
    begun = time.perf_counter()
    value = call()
    return (time.perf_counter() - begun) * 1000, value


class Bare:
    """`runsc run` of /bin/true by hand: the peer of a create. Its root is a small tree of its own."""

    def __init__(self):
        self.dir = tempfile.mkdtemp(prefix="hearth-bench-")
        root = os.path.join(self.dir, "root")
        os.makedirs(os.path.join(root, "bin"))
        shutil.copy("/bin/true", os.path.join(root, "bin/true"))
        libraries = subprocess.run(["ldd", "/bin/true"], capture_output=True, text=True).stdout.split()
        for path in (word for word in libraries if word.startswith("/")):
            os.makedirs(root + os.path.dirname(path), exist_ok=True)
            shutil.copy(path, root + path)
        config = {
            "ociVersion": "1.0.2",
            "process": {"user": {"uid": 0, "gid": 0}, "args": ["/bin/true"], "cwd": "/", "env": []},
            "root": {"path": root, "readonly": False},
            "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"}],
            "linux": {"namespaces": [{"type": kind} for kind in ("pid", "ipc", "uts", "mount", "network")]},
        }
        with open(os.path.join(self.dir, "config.json"), "w") as file:
            json.dump(config, file)
        self.count = 0

    def run(self):
        self.count += 1
        flags = ["--root", self.dir + "/state", "--platform=systrap", "--network=none", "--ignore-cgroups", "--overlay2=none"]
        command = ["runsc", *flags, "run", "--bundle", self.dir, f"bench{self.count}"]
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)

    def close(self):
        shutil.rmtree(self.dir)


def percentile(values, share):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--creates", type=int, default=20)
    parser.add_argument("--execs", type=int, default=60)
    parser.add_argument("--json")
    args = parser.parse_args()
    figures = {name: [] for name in ("create to first command", "of it: create", "bare runsc run", "exec", "exec floor")}

    bare = Bare()
    try:
        for i in range(args.creates + 2):
            create_ms, sandbox = timed(Sandbox.create)
            first_ms, _ = timed(lambda: sandbox.commands.run("true"))
            sandbox.kill()
            bare_ms, _ = timed(bare.run)
            if i >= 2:  # the first two warm caches on both sides
                figures["create to first command"].append(create_ms + first_ms)
                figures["of it: create"].append(create_ms)
                figures["bare runsc run"].append(bare_ms)
    finally:
        bare.close()

    with Sandbox.create() as sandbox:
        for _ in range(3):
            sandbox.commands.run("true")
        # Round about, so that both see the same weather.
        for _ in range(3):
            for _ in range(args.execs // 3):
                figures["exec"].append(timed(lambda: sandbox.commands.run("true"))[0])
            program = FLOOR % (args.execs // 3)
            out = sandbox.commands.run("python3 - <<'END'\n" + program + "\nEND", timeout=120)
            figures["exec floor"].extend(json.loads(out.stdout))

    print(f"{'ms':28} {'min':>8} {'p50':>8} {'p95':>8} {'max':>8}   n")
    for name, values in figures.items():
        row = (min(values), statistics.median(values), percentile(values, 0.95), max(values))
        print(f"{name:28} " + " ".join(f"{v:8.1f}" for v in row) + f"   {len(values)}")
    median = {name: statistics.median(values) for name, values in figures.items()}
    print(f"\ncreate to first command / bare runsc run: {median['create to first command'] / median['bare runsc run']:.2f}")
    print(f"exec beyond its floor: {median['exec'] - median['exec floor']:.1f} ms")
    if args.json:
        with open(args.json, "w") as file:
            json.dump(figures, file)
    return 0


if __name__ == "__main__":
    sys.exit(main())
