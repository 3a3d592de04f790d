"""Runs the tests of the JS SDK (`tests/js`) against the same server, in the same namespace."""

import os
import pathlib
import shutil
import subprocess

import pytest

JS = pathlib.Path(__file__).resolve().parents[1] / "js"
VENV_NODE = JS.parents[1] / "target" / "venv" / "bin"


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", sorted(path.name for path in JS.glob("*.test.mjs")))
def test_js_sdk(server, name):
    assert (JS / "node_modules" / "e2b").is_dir(), "run tests/js/run setup first"
    path = os.environ["PATH"] + (f":{VENV_NODE}" if shutil.which("node") is None else "")
    done = subprocess.run(
        ["node", "--test", "--test-reporter=spec", name],
        cwd=JS, capture_output=True, text=True, timeout=280, env={**os.environ, "PATH": path},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
