from __future__ import annotations

import io
import json
import re
from pathlib import Path

import numpy as np
import pytest

from services.common.log import make_log


def test_a_line_is_time_level_message_and_values() -> None:
    stream = io.StringIO()
    log = make_log(stream)
    log.info("replay listens", port=7401, rate=0.123456, reason="two words", empty="")
    log.warning("odd")
    first, second = stream.getvalue().splitlines()
    assert re.match(r"\d\d:\d\d:\d\d info +replay listens port=7401 rate=0\.1235 reason='two words' empty=''$", first)
    assert re.match(r"\d\d:\d\d:\d\d warning +odd$", second)


def test_a_json_line_says_which_process_it_is_from() -> None:
    stream = io.StringIO()
    log = make_log(stream, style="json", service="replay", run="arm", incarnation="00ab")
    log.warning("an actor is silent", actor="actor-0", steps=np.int64(7), folder=Path("/ring"), rate=0.5)
    line = json.loads(stream.getvalue())
    assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z$", line.pop("time"))
    assert line == {
        "level": "warning",
        "message": "an actor is silent",
        "service": "replay",
        "run": "arm",
        "incarnation": "00ab",
        "actor": "actor-0",
        "steps": 7,
        "folder": "/ring",
        "rate": 0.5,
    }


@pytest.mark.parametrize("style", ["console", "json"])
def test_lines_below_the_level_are_left_out(style: str) -> None:
    stream = io.StringIO()
    log = make_log(stream, style=style, level="warning")
    log.debug("a"), log.info("b"), log.warning("c"), log.error("d")
    assert len(stream.getvalue().splitlines()) == 2


def test_what_a_peer_calls_itself_begins_no_line() -> None:
    stream = io.StringIO()
    make_log(stream).info("an actor comes", actor="a\n12:00:00 error   forged", other="\x1b[2J")
    (line,) = stream.getvalue().splitlines()
    assert r"actor='a\n12:00:00 error   forged'" in line
    assert "\x1b" not in line
