"""What of a server is still on the machine: the lists that have to be empty after `down`."""

import pathlib
import subprocess


def of(server):
    """Processes, mounts, loop devices, links, rules and control groups that belong to `server`."""
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
    tag = server.tag()
    if tag:
        left += [f"link {line}" for line in links() if f": h{tag}-" in line or f": hd{tag}" in line]
        left += [f"control group {path}" for path in groups(tag)]
        rules = subprocess.run(["nft", "list", "tables"], capture_output=True, text=True, check=True).stdout
        left += [f"nft {line}" for line in rules.splitlines() if tag in line]
    return left


def links():
    """Links of the test's host namespace, apart from its own two: empty when every server is down."""
    lines = subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=True).stdout.splitlines()
    return [line for line in lines if ": lo:" not in line and ": world0@" not in line]


def groups(tag):
    """Control groups of the instance, in whichever hierarchy."""
    return [str(path) for depth in ("*", "*/*", "*/*/*") for path in pathlib.Path("/sys/fs/cgroup").glob(f"{depth}/hearth-{tag}")]
