"""Terminals: what a program sees of one, and what a client can do with it."""

import asyncio
import threading

import pytest
from e2b import AsyncSandbox, CommandExitException, NotFoundException, PtySize, Sandbox, SandboxException

from harness.wait import wait_for


class Screen:
    """Reads a terminal in a thread and waits for what it shows."""

    def __init__(self, box, handle):
        self.box, self.pid, self.data, self.error = box, handle.pid, b"", None
        self.handle = handle
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def _read(self):
        try:
            self.handle.wait(on_pty=self._add)
        except Exception as e:
            self.error = e

    def _add(self, data):
        self.data += data

    def type(self, text):
        self.box.pty.send_stdin(self.pid, text.encode())

    def shows(self, text, deadline=15):
        wait_for(lambda: text.encode() in self.data, deadline, f"{text!r} on the screen, which shows {self.data[-400:]!r}")
        return self

    def ask(self, command, answer):
        """Types a command whose text differs from its answer, so an echo does not count."""
        self.type(command + "\n")
        return self.shows(answer)


@pytest.fixture
def screen(sbx):
    made = []

    def make(**more):
        one = Screen(sbx, sbx.pty.create(PtySize(rows=24, cols=80), **more))
        made.append(one)
        return one

    yield make
    for one in made:
        sbx.pty.kill(one.pid)
        one.thread.join(10)


def test_it_is_a_terminal_of_the_asked_size(screen):
    screen().ask("tty; stty size; echo T$((1+1))=$TERM", "T2=xterm-256color").shows("/dev/pts/").shows("24 80")


def test_resize_reaches_the_program(sbx, screen):
    one = screen()
    one.ask("trap 'echo changed-$(stty size)' WINCH; echo tr$((0))ap", "tr0ap")
    sbx.pty.resize(one.pid, PtySize(rows=50, cols=132))
    one.ask("stty size; echo d$((0))one", "50 132")


def test_it_echoes_and_control_c_interrupts(screen):
    one = screen()
    one.ask("echo ready$((1))", "ready1")
    one.type("sleep 500\n")
    one.shows("sleep 500")
    one.type("\x03")
    one.ask("echo after$((2))", "after2")


def test_exit_code_of_the_shell(sbx):
    handle = sbx.pty.create(PtySize(rows=24, cols=80))
    sbx.pty.send_stdin(handle.pid, b"exit 3\n")
    with pytest.raises(CommandExitException) as caught:
        handle.wait()
    assert caught.value.exit_code == 3


def test_user_cwd_and_env(screen):
    screen(user="root", cwd="/tmp", envs={"X": "y"}).ask('echo "$(id -un) $PWD $X$X"', "root /tmp yy")


def test_utf8_and_binary_input(screen):
    one = screen()
    one.ask("echo 'gr\u00fc\u00df \u2603 \U0001f600' | rev", "\U0001f600 \u2603 \u00df\u00fcrg")


def test_kill_and_unknown(sbx):
    handle = sbx.pty.create(PtySize(rows=24, cols=80))
    assert sbx.pty.kill(handle.pid) is True
    with pytest.raises(CommandExitException):
        handle.wait()
    assert sbx.pty.kill(handle.pid) is False
    with pytest.raises(NotFoundException):
        sbx.pty.send_stdin(999_999, b"x")
    with pytest.raises(NotFoundException):
        sbx.pty.resize(999_999, PtySize(rows=1, cols=1))


def test_reconnect_to_a_terminal(sbx):
    handle, shown = sbx.pty.create(PtySize(rows=24, cols=80)), b""
    sbx.pty.send_stdin(handle.pid, b"VALUE=kept; echo s$((1))et\n")
    for _, _, data in handle:
        shown += data
        if b"s1et" in shown:
            break
    handle.disconnect()
    other = Screen(sbx, Sandbox.connect(sbx.sandbox_id).pty.connect(handle.pid))
    other.ask("echo it-is-$VALUE", "it-is-kept")
    assert sbx.pty.kill(handle.pid)
    other.thread.join(10)
    assert not other.thread.is_alive()


def test_terminal_is_listed_and_closing_its_stdin_is_refused(sbx, screen):
    one = screen()
    assert one.pid in [p.pid for p in sbx.commands.list()]
    with pytest.raises(SandboxException):
        sbx.commands.close_stdin(one.pid)


def test_stream_input(sbx, screen):
    one = screen()
    sbx.pty.stream_input(one.pid, ["echo str", "eam-$((40+2))\n"])
    one.shows("stream-42")


def test_odd_sizes(sbx, screen):
    one = screen()
    for rows, cols in ((1, 1), (65535, 65535), (24, 80)):
        sbx.pty.resize(one.pid, PtySize(rows=rows, cols=cols))
    for rows, cols in ((65536, 80), (0xFFFFFFFF, 0xFFFFFFFF), (0, 0)):
        try:  # larger than a terminal can be: refused, or cut to what it can be
            sbx.pty.resize(one.pid, PtySize(rows=rows, cols=cols))
        except SandboxException:
            pass
    sbx.pty.resize(one.pid, PtySize(rows=30, cols=90))
    one.ask("stty size; echo ok$((7))", "30 90")


def test_a_flood_is_followed_to_its_end(server, screen):
    """More output than any buffer holds, then the prompt again."""
    before = server.rss_mib()[0]
    server.reset_peak()
    one = screen(timeout=60)
    one.ask("seq 1 200000 | tail -c 1000000; echo flood$((1))end", "flood1end")
    assert len(one.data) > 1_000_000
    assert server.rss_mib()[1] - before < 64


def test_async_terminal(server, sbx):
    async def main():
        box = await AsyncSandbox.connect(sbx.sandbox_id)
        shown = bytearray()
        seen = asyncio.Event()

        def on_data(data):
            shown.extend(data)
            if b"async-5" in shown:
                seen.set()

        handle = await box.pty.create(PtySize(rows=10, cols=40), on_data=on_data)
        await box.pty.send_stdin(handle.pid, b"echo async-$((2+3))\n")
        await asyncio.wait_for(seen.wait(), 15)
        await box.pty.resize(handle.pid, PtySize(rows=20, cols=60))
        assert await box.pty.kill(handle.pid)

    asyncio.run(main())
