"""Puts the programs of `guest/` into a sandbox and runs them there."""

import json
import pathlib
import subprocess
import sys

from .wait import wait_for

PROGRAMS = pathlib.Path(__file__).resolve().parents[1] / "guest"


def install(box, name):
    path = f"/tmp/{name}"
    box.files.write(path, (PROGRAMS / name).read_bytes())
    return path


def serve(box, name, *args, user=None):
    """Starts a server in the sandbox and returns when it listens."""
    path = install(box, name)
    handle = box.commands.run(
        f"exec python3 -u {path} {' '.join(str(a) for a in args)}", background=True, timeout=0, user=user
    )
    for out, err, _ in handle:
        if out and "listening" in out:
            return handle
        assert not err, err
    raise AssertionError(f"{name} ended before it listened")


def probe(box, *args, user="user"):
    """Runs `probe.py` in a sandbox; the answer as an object."""
    if not box.files.exists("/tmp/probe.py"):
        install(box, "probe.py")
    out = box.commands.run("python3 -S /tmp/probe.py " + " ".join(f"'{a}'" for a in args), user=user, timeout=40).stdout
    return json.loads(out)


def probe_many(box, requests, user="user"):
    """Several probes at the same time; their answers in order."""
    return probe(box, "many", json.dumps(requests), user=user)


def probe_here(*args):
    """The same probe, run in the host namespace: what shows that a target is there at all."""
    done = subprocess.run(
        [sys.executable, str(PROGRAMS / "probe.py"), *map(str, args)], capture_output=True, text=True, timeout=40, check=True
    )
    return json.loads(done.stdout)


def all_allowed_here(requests):
    """The same for several requests at once."""

    def ask():
        answers = probe_here("many", json.dumps(requests))
        assert all(a["ok"] for a in answers), [r for r, a in zip(requests, answers) if not a["ok"]]
        return answers

    return wait_for(ask, 15, "they work from the host namespace")


def allowed_here(*args):
    """Asserts that the request succeeds where nothing forbids it."""
    answer = wait_for(lambda: (a := probe_here(*args))["ok"] and a, 15, f"{args} works from the host namespace")
    return answer["got"]
