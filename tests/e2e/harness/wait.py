"""Waiting for states. No test sleeps for a time and hopes."""

import time


def wait_for(probe, deadline=15.0, what=None, every=0.05):
    """Calls `probe` until it returns something true, and returns that.

    An exception of the probe counts as "not yet" and is shown when the deadline passes.
    """
    end = time.monotonic() + deadline
    last = None
    while True:
        try:
            value = probe()
            if value:
                return value
            last = f"last answer: {value!r}"
        except AssertionError as e:
            last = f"last assertion: {e}"
        except Exception as e:  # the probe talks to things that are just coming up
            last = f"last error: {type(e).__name__}: {e}"
        if time.monotonic() >= end:
            raise AssertionError(f"not within {deadline} s: {what or probe}; {last}")
        time.sleep(every)


def stays(probe, seconds, what=None, every=0.1):
    """Asserts that `probe` stays true for the whole span: for things that must not happen."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        assert probe(), f"stopped being true within {seconds} s: {what or probe}"
        time.sleep(every)
