"""A script without an event loop: the blocking client."""

from __future__ import annotations

import sys

from turnwire.client import blocking

AGENT = [sys.executable, "-m", "turnwire_testing.agent"]

with blocking.connect(AGENT) as client:
    session = client.new_session(".")
    texts: list[str] = []
    session.on_update(lambda update: texts.append(update.text))
    result = session.prompt("hello").result(timeout=30)
    assert result.text == "".join(texts) == "hello"
    assert result.stop_reason == "end_turn"
    sys.stdout.write(f"{result.text} ({result.stop_reason})\n")
