"""The two network namespaces of a test run.

`host` is where the server, the SDKs and pytest itself live. `world` is everything else:
public servers, a metadata service, a private LAN, a DNS server. They are joined by one
veth pair, and nothing of either is connected to the machine's own network.
"""

import ctypes
import os
import pathlib
import re
import subprocess
import sys

HOST_ADDR = "198.51.100.2"
WORLD_ADDR = "198.51.100.1"
HOST_ADDR6 = "2001:db8:0:1::2"
WORLD_ADDR6 = "2001:db8:0:1::1"

PUBLIC = "203.0.113.10"
DNS = "203.0.113.53"
METADATA = "169.254.169.254"
LINK_LOCAL = "169.254.77.7"
LAN = ["10.250.0.10", "192.168.77.10", "172.20.0.10", "100.64.0.10"]
PUBLIC6 = "2001:db8:1::10"

CLONE_NEWNET = 0x40000000


def sh(*args, check=True):
    """Runs a command; its output is in the exception when it fails."""
    done = subprocess.run(args, capture_output=True, text=True)
    if check and done.returncode != 0:
        raise RuntimeError(f"{' '.join(args)}: {done.stderr.strip()}")
    return done.stdout


def setns(path):
    """Moves the calling thread into the namespace at `path`."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(fd, CLONE_NEWNET) != 0:
            err = ctypes.get_errno()
            raise OSError(err, os.strerror(err), path)
    finally:
        os.close(fd)


class Namespaces:
    """Makes the pair, enters `host`, runs the listeners, and takes all of it down again."""

    def __init__(self):
        tag = f"hte{os.getpid()}"
        self.host, self.world = f"{tag}h", f"{tag}w"
        self.procs = []
        self.made = []

    @staticmethod
    def clear():
        """Removes the namespaces of runs that were killed."""
        for line in sh("ip", "netns", "list").splitlines():
            found = re.fullmatch(r"hte(\d+)[hw]", line.split()[0]) if line.split() else None
            if found and not os.path.exists(f"/proc/{found[1]}"):
                for pid in sh("ip", "netns", "pids", line.split()[0], check=False).split():
                    command = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
                    if b"/harness/world.py" in command or b"/harness/hostside.py" in command:
                        os.kill(int(pid), 9)
                sh("ip", "netns", "del", line.split()[0])

    def make(self):
        for ns in (self.host, self.world):
            sh("ip", "netns", "add", ns)
            self.made.append(ns)
            sh("ip", "-n", ns, "link", "set", "lo", "up")
        h, w = self.host, self.world
        sh("ip", "-n", h, "link", "add", "world0", "type", "veth", "peer", "name", "host0", "netns", w)
        sh("ip", "-n", h, "addr", "add", f"{HOST_ADDR}/30", "dev", "world0")
        sh("ip", "-n", h, "addr", "add", f"{HOST_ADDR6}/64", "dev", "world0", "nodad")
        sh("ip", "-n", w, "addr", "add", f"{WORLD_ADDR}/30", "dev", "host0")
        sh("ip", "-n", w, "addr", "add", f"{WORLD_ADDR6}/64", "dev", "host0", "nodad")
        sh("ip", "-n", h, "link", "set", "world0", "up")
        sh("ip", "-n", w, "link", "set", "host0", "up")
        for addr in [PUBLIC, DNS, METADATA, LINK_LOCAL, *LAN]:
            sh("ip", "-n", w, "addr", "add", f"{addr}/32", "dev", "lo")
        sh("ip", "-n", w, "addr", "add", f"{PUBLIC6}/128", "dev", "lo", "nodad")
        sh("ip", "-n", h, "route", "add", "default", "via", WORLD_ADDR)
        sh("ip", "-n", h, "-6", "route", "add", "default", "via", WORLD_ADDR6)
        # The world answers whoever asks, so that a refusal is never a missing way back.
        sh("ip", "-n", w, "route", "add", "default", "via", HOST_ADDR)
        sh("ip", "-n", w, "-6", "route", "add", "default", "via", HOST_ADDR6)
        for key in ("all", "default", "host0", "lo"):
            sh("ip", "netns", "exec", w, "sh", "-c", f"echo 0 > /proc/sys/net/ipv4/conf/{key}/rp_filter")

    def enter(self):
        """Moves this process into `host`. Only sound while it has one thread."""
        threads = os.listdir("/proc/self/task")
        if len(threads) != 1:
            raise RuntimeError(f"{len(threads)} threads exist before the namespace was entered")
        setns(f"/run/netns/{self.host}")

    def serve(self, certificates):
        """Starts the listeners of both sides."""
        here = os.path.dirname(os.path.abspath(__file__))
        for ns, script in ((self.world, "world.py"), (self.host, "hostside.py")):
            # Not by `ip netns exec`: that keeps a copy of all mounts, and with it test disks, alive.
            proc = subprocess.Popen(
                [sys.executable, os.path.join(here, script), f"/run/netns/{ns}", str(certificates)],
                stdout=subprocess.PIPE,
                stdin=subprocess.DEVNULL,
                text=True,
            )
            self.procs.append(proc)
            line = proc.stdout.readline()
            if line.strip() != "ready":
                raise RuntimeError(f"{script} did not come up: {line!r}")

    def close(self):
        for proc in self.procs:
            proc.kill()
            proc.wait()
        for ns in self.made:
            sh("ip", "netns", "del", ns, check=False)
