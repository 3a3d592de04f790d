"""Enters the test namespaces, runs the servers, and sees that nothing of them is left.

The order matters: the template is prepared while the machine's own network is there, then
the process enters its namespace while it still has one thread, and only then are the test
modules (and with them the SDK, which starts threads) imported.
"""

import os
import shutil
import subprocess
import sys

import pytest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from harness import authority, leftovers  # noqa: E402
from harness.netns import Namespaces  # noqa: E402
from harness.server import BINARY, Server, state_root  # noqa: E402
from harness.wait import wait_for  # noqa: E402

NETS = iter(range(40, 200))
PORTS = iter(range(3001, 3200))


class Run:
    """What one test run holds."""

    namespaces = None
    servers = []


def pytest_sessionstart(session):
    if session.config.option.collectonly:
        return
    if os.geteuid() != 0:
        pytest.exit("the end-to-end tests need root: they make namespaces and sandboxes", 4)
    if not BINARY.exists():
        pytest.exit(f"{BINARY} is not built", 4)
    for key in [k for k in os.environ if k.startswith("E2B_")]:
        del os.environ[key]
    clear(state_root())
    Namespaces.clear()
    authority.clear()
    state_root().mkdir(parents=True, exist_ok=True)
    main = Server("main", 3000, "10.39.0.0/16")
    Run.servers.append(main)
    main.prepare()
    Run.namespaces = Namespaces()
    try:
        Run.namespaces.make()
        Run.namespaces.enter()
        authority.make(certificates())
        Run.namespaces.serve(certificates())
    except BaseException:
        Run.namespaces.close()
        raise


def certificates():
    """Folder of the run's own certificate authority."""
    return state_root() / "certificates"


@pytest.fixture
def private_authority():
    """A private certificate authority that the operator adds to the host. The world's HTTPS is signed by it."""
    with authority.installed(certificates()):
        yield


def clear(root):
    """Ends and removes what an earlier run left in the same place."""
    for instance in root.glob("*/instance"):
        subprocess.run([str(BINARY), "down", "--state-dir", str(instance.parent)], check=True, timeout=110)
    shutil.rmtree(root, ignore_errors=True)


def pytest_sessionfinish(session, exitstatus):
    if Run.namespaces is None:
        return
    problems = []
    for server in Run.servers:
        try:
            server.down()
        except Exception as e:
            problems.append(f"{server.name}: {e}")
    for server in Run.servers:
        try:
            wait_for(lambda: not leftovers.of(server), 20, "nothing is left")
        except AssertionError:
            problems += [f"{server.name} left {what}" for what in leftovers.of(server)]
    try:
        wait_for(lambda: not leftovers.links(), 20, "no link is left")
    except AssertionError:
        problems += [f"link {line}" for line in leftovers.links()]
    failed = session.testsfailed or problems
    Run.namespaces.close()
    if problems:
        session.exitstatus = 1
        for line in problems:
            print(f"LEFT BEHIND: {line}", file=sys.stderr)
    elif failed or os.environ.get("HEARTH_TEST_KEEP"):
        for server in Run.servers:
            shutil.rmtree(server.state, ignore_errors=True)
        print(f"\nserver logs are kept in {state_root()}", file=sys.stderr)
    else:
        shutil.rmtree(state_root())


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    """Shows what the server said during a test that failed."""
    report = (yield).get_result()
    if report.when == "call":
        marks = getattr(item, "log_marks", {})
        if report.failed:
            for server, at in marks.items():
                text = server.log()[at:]
                if text:
                    report.sections.append((f"log of server {server.name}", text[-6000:]))


@pytest.fixture(autouse=True)
def _log_marks(request):
    request.node.log_marks = {s: len(s.log()) for s in Run.servers}


@pytest.fixture(scope="session")
def server():
    """The server that most tests share. The SDK's environment points to it."""
    main = Run.servers[0]
    main.start()
    os.environ.update({"E2B_API_KEY": main.key(), "E2B_API_URL": main.url, "E2B_SANDBOX_URL": main.url})
    yield main
    main.down()


@pytest.fixture
def own_server(request):
    """Makes servers that a test may stop, kill or fill. They end with the test."""
    made = []

    def make(name=None, **more):
        number = next(NETS)
        one = Server(name or f"own{number}", next(PORTS), f"10.{number}.0.0/16", **more)
        Run.servers.append(one)
        made.append(one)
        one.prepare()
        return one.start()

    yield make
    for one in made:
        one.down()
        wait_for(lambda: not leftovers.of(one), 20, "nothing is left", every=0.2)


@pytest.fixture
def new_sandbox(server):
    """Creates sandboxes that end with the test."""
    from e2b import Sandbox

    made = []

    def make(*args, **more):
        one = Sandbox.create(*args, **more)
        made.append(one)
        return one

    yield make
    for one in made:
        one.kill()


@pytest.fixture(scope="module")
def sbx(server):
    """One sandbox for all tests of a file that leave it as they found it."""
    from e2b import Sandbox

    one = Sandbox.create(timeout=3600)
    yield one
    one.kill()
