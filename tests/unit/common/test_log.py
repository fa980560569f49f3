from __future__ import annotations

import io
import re

from services.common.log import make_log


def test_a_line_is_time_level_message_and_values() -> None:
    stream = io.StringIO()
    log = make_log(stream)
    log.info("replay listens", port=7401, rate=0.123456, reason="two words", empty="")
    log.warning("odd")
    first, second = stream.getvalue().splitlines()
    assert re.match(r"\d\d:\d\d:\d\d info +replay listens port=7401 rate=0\.1235 reason='two words' empty=''$", first)
    assert re.match(r"\d\d:\d\d:\d\d warning +odd$", second)
