"""One `hearth serve` with a state directory of its own, driven as an operator drives it."""

import json
import os
import pathlib
import re
import signal
import subprocess
import time

import httpx

from .wait import wait_for

ROOT = pathlib.Path(__file__).resolve().parents[3]
BINARY = pathlib.Path(os.environ.get("HEARTH_BIN", ROOT / "target" / "release" / "hearth"))
CACHE = os.environ.get("HEARTH_TEST_CACHE", "/var/cache/hearth")


def state_root():
    """Where test servers keep their state: a real disk, because sandbox disks live there."""
    return pathlib.Path(os.environ.get("HEARTH_TEST_STATE", f"/var/lib/hearth-test-{os.getpid()}"))


class CliError(AssertionError):
    """A command of `hearth` failed where the test needed it to work."""


class Server:
    """A server of the tests. `start` and `stop` may alternate; `down` ends it for good."""

    def __init__(self, name, port, sandbox_net, dns="203.0.113.53:53", extra=()):
        self.name, self.port, self.sandbox_net, self.dns = name, port, sandbox_net, dns
        self.extra = list(extra)
        self.state = state_root() / name
        self.log_path = state_root() / f"{name}.log"
        self.url = f"http://127.0.0.1:{port}"
        self.proc = None
        self.keys = {}
        self.gone = False
        self._tag = None

    # -- the process ---------------------------------------------------------------

    def serve_args(self):
        return [
            str(BINARY), "serve",
            "--listen", f"127.0.0.1:{self.port}",
            "--state-dir", str(self.state),
            "--cache-dir", CACHE,
            "--sandbox-net", self.sandbox_net,
            "--dns-upstream", self.dns,
            *self.extra,
        ]  # fmt: skip

    def prepare(self):
        """Builds or imports the template; seconds when the cache has it."""
        self.state.mkdir(parents=True, exist_ok=True)
        sizes = [word for at, word in enumerate(self.extra) if {word, self.extra[at - 1]} & {"--vcpu", "--memory-mib", "--disk-mib"}]
        self.cli("prepare", "--cache-dir", CACHE, *sizes, timeout=1800)

    def start(self, deadline=60):
        self.state.mkdir(parents=True, exist_ok=True)
        with open(self.log_path, "ab") as log:
            self.proc = subprocess.Popen(
                self.serve_args(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, "RUST_BACKTRACE": "1"},
            )
        try:
            self.wait_healthy(deadline)
        except AssertionError as e:
            raise AssertionError(f"{e}\n--- end of {self.log_path}\n{self.log_tail()}") from None
        return self

    def wait_healthy(self, deadline=60):
        def healthy():
            if self.proc.poll() is not None:
                raise RuntimeError(f"serve exited with {self.proc.returncode}")
            return httpx.get(f"{self.url}/health", timeout=5).status_code in (200, 204)

        end = time.monotonic() + deadline
        while True:
            try:
                if healthy():
                    return
            except httpx.HTTPError as e:
                if time.monotonic() > end:
                    raise AssertionError(f"not healthy within {deadline} s: {e}") from None
            except RuntimeError as e:
                raise AssertionError(str(e)) from None
            time.sleep(0.05)

    def tag(self):
        """The four digits that mark what belongs to this instance on the host."""
        path = self.state / "instance"
        if self._tag is None and path.exists():
            self._tag = path.read_text().strip()
        return self._tag

    @property
    def pid(self):
        return self.proc.pid

    def _end(self, sig, deadline):
        if self.proc is None or self.proc.poll() is not None:
            return
        self.proc.send_signal(sig)
        try:
            self.proc.wait(deadline)
        except subprocess.TimeoutExpired:
            self.proc.kill()
            self.proc.wait()
            raise AssertionError(f"serve still ran {deadline} s after {sig!r}") from None

    def terminate(self, deadline=20):
        """SIGTERM: sandboxes stay."""
        self._end(signal.SIGTERM, deadline)

    def kill9(self):
        """SIGKILL: sandboxes stay."""
        self._end(signal.SIGKILL, 10)

    def down(self):
        """Ends every sandbox and everything else this server has on the host."""
        self.tag()
        if self.gone:
            return
        self.gone = True
        problem = None
        try:
            self.terminate()
        except AssertionError as e:
            problem = e
        done = subprocess.run(
            [str(BINARY), "down", "--state-dir", str(self.state)], capture_output=True, text=True, timeout=110
        )
        if done.returncode != 0:
            raise CliError(f"hearth down: {done.returncode}: {done.stderr[-2000:]}")
        if problem:
            raise problem

    # -- what it says ----------------------------------------------------------------

    def log(self):
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def log_tail(self, lines=40):
        return "\n".join(self.log().splitlines()[-lines:])

    # -- the command line --------------------------------------------------------------

    def run(self, *args, timeout=60, input=None):
        """Runs `hearth ARGS --state-dir ...`; `--` ends the place where options go."""
        args = list(args)
        at = args.index("--") if "--" in args else len(args)
        args[at:at] = ["--state-dir", str(self.state)]
        return subprocess.run(
            [str(BINARY), *args],
            capture_output=True,
            timeout=timeout,
            input=input,
            env={k: v for k, v in os.environ.items() if not k.startswith("E2B_")},
        )

    def cli(self, *args, timeout=60):
        done = self.run(*args, timeout=timeout)
        if done.returncode != 0:
            raise CliError(f"hearth {' '.join(args)}: {done.returncode}: {done.stderr.decode(errors='replace')[-3000:]}")
        return done.stdout.decode()

    def cli_json(self, *args, timeout=60):
        at = args.index("--") if "--" in args else len(args)
        return json.loads(self.cli(*args[:at], "--json", *args[at:], timeout=timeout))

    def env(self):
        """What `hearth env` tells a user to set."""
        found = re.findall(r"^export (\w+)=['\"]?([^'\"\n]*)['\"]?$", self.cli("env"), re.M)
        return dict(found)

    def key(self, team="main", limit=None):
        """A key of the team, made once per team and limit."""
        if (team, limit) not in self.keys:
            args = ["key", "create", "--team", team]
            if limit is not None:
                args += ["--limit", str(limit)]
            self.keys[team, limit] = self.cli_json(*args)["key"]
        return self.keys[team, limit]

    # -- clients ------------------------------------------------------------------------

    def opts(self, team="main", limit=None):
        """Connection options for the Python SDK, for a server that is not the default one."""
        return {"api_key": self.key(team, limit), "api_url": self.url, "sandbox_url": self.url}

    def api(self, team="main", timeout=30, limit=None):
        """Plain HTTP to the control API."""
        return httpx.Client(base_url=self.url, headers={"X-API-KEY": self.key(team, limit)}, timeout=timeout)

    def edge(self, sandbox, port=49983, token=None, timeout=30, **headers):
        """Plain HTTP to a port of a sandbox, routed by headers."""
        sandbox_id = getattr(sandbox, "sandbox_id", sandbox)
        head = {"E2b-Sandbox-Id": sandbox_id, "E2b-Sandbox-Port": str(port), **headers}
        if token is None and hasattr(sandbox, "_envd_access_token"):
            token = sandbox._envd_access_token
        if token and port == 49983:
            head["X-Access-Token"] = token
        return httpx.Client(base_url=self.url, headers=head, timeout=timeout)

    # -- the processes behind it -------------------------------------------------------------

    def processes(self):
        """Every process of the machine whose command line names this state directory."""
        found = []
        for entry in pathlib.Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if str(self.state) in line:
                found.append((int(entry.name), line.strip()))
        return found

    def rss_mib(self):
        """Resident memory of the server process, and the highest it has been, in MiB."""
        text = pathlib.Path(f"/proc/{self.pid}/status").read_text()
        now, peak = (int(re.search(rf"^{key}:\s+(\d+) kB", text, re.M)[1]) / 1024 for key in ("VmRSS", "VmHWM"))
        return now, peak

    def reset_peak(self):
        pathlib.Path(f"/proc/{self.pid}/clear_refs").write_text("5")


def wait_gone(server, sandbox_id, deadline=30):
    """Waits until the edge calls the sandbox gone."""
    wait_for(
        lambda: server.edge(sandbox_id).get("/health").status_code == 502, deadline, f"{sandbox_id} is gone"
    )
