"""What of a server is still on the machine: the lists that have to be empty after `down`."""

import os
import pathlib
import subprocess


def of(server):
    """Processes, mounts, loop devices, images, links and cgroups that belong to `server`."""
    state = str(server.state)
    left = [f"process {pid}: {line[:200]}" for pid, line in server.processes()]
    left += [f"mount {line}" for line in pathlib.Path("/proc/self/mounts").read_text().splitlines() if state in line]
    for entry in pathlib.Path("/sys/block").glob("loop*/loop/backing_file"):
        try:
            backing = entry.read_text().strip()
        except OSError:
            continue
        if backing.startswith(state):
            left.append(f"loop device {entry.parts[3]}: {backing}")
    left += [f"cgroup {path}" for path in cgroups(server)]
    return left


def links():
    """Links of the test's host namespace, apart from its own two: empty when every server is down."""
    lines = subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=True).stdout.splitlines()
    return [line for line in lines if ": lo:" not in line and ": world0@" not in line]


def cgroups(server):
    """Groups below the machine's hierarchies that carry an id of this server's sandboxes."""
    ids = getattr(server, "seen_ids", set())
    if not ids:
        return []
    return [top for top, _, _ in os.walk("/sys/fs/cgroup") if any(i in top for i in ids)]
