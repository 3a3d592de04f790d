"""The README's first programs do what it says, with nothing but the three variables set."""

import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()


def block(language, containing):
    """The one block of code in a language that contains a word."""
    found = [b for b in re.findall(rf"^```{language}\n(.*?)^```$", README, re.M | re.S) if containing in b]
    assert len(found) == 1, found
    return found[0]


def run(command, folder):
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_python_program(server, tmp_path):
    (tmp_path / "hello.py").write_text(block("python", "Sandbox.create"))
    assert re.fullmatch(r"hello from \S+\n\n", run([sys.executable, "hello.py"], tmp_path))


def test_the_typescript_program(server, tmp_path):
    node = shutil.which("node", path=f"{ROOT / 'target' / 'venv' / 'bin'}:{os.environ['PATH']}")
    # It has no type in it, so it is JavaScript as it stands.
    (tmp_path / "hello.mjs").write_text(block("ts", "Sandbox.create"))
    (tmp_path / "node_modules").symlink_to(ROOT / "tests" / "js" / "node_modules")
    assert run([node, "hello.mjs"], tmp_path) == "42\n\n"


@pytest.mark.parametrize("name", re.findall(r"\]\(([A-Za-z][\w./]*)\)", README))
def test_its_links_lead_somewhere(name):
    assert (ROOT / name).exists()


def test_its_commands_exist(server):
    block_of_commands = block("sh", "hearth sandbox create")
    commands = re.findall(r"^(?:id=\$\()?hearth ((?:sandbox |key )?\w+)", block_of_commands, re.M)
    assert len(commands) >= 8
    for command in commands:
        assert server.run(*command.split(), "--help").returncode == 0, command
