from __future__ import annotations

import io
import os
import pty
import termios
import time

from services.cli.keys import Keys


def test_keys_of_a_terminal_come_one_by_one_and_its_settings_come_back() -> None:
    master, slave = pty.openpty()
    with os.fdopen(slave, "r") as stream:
        before = termios.tcgetattr(stream)
        with Keys(stream) as keys:
            assert keys.read(0.01) == ""
            os.write(master, b"sq")
            assert [keys.read(1.0), keys.read(1.0)] == ["s", "q"]  # without Enter
            assert not termios.tcgetattr(stream)[3] & termios.ECHO
        assert termios.tcgetattr(stream) == before
    os.close(master)


def test_where_there_is_no_terminal_no_key_comes_and_it_waits() -> None:
    with Keys(io.StringIO("q")) as keys:
        began_s = time.monotonic()
        assert keys.read(0.05) == ""
        assert time.monotonic() - began_s >= 0.05
