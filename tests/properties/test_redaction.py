"""However an agent cuts what it says, a recording has nothing of a secret in it."""

from __future__ import annotations

import json
from io import FileIO
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnwire.limits import Limits
from turnwire.recording import pieces
from turnwire.recording.format import Entry, read_recording
from turnwire.recording.proxy import Recorder
from turnwire.recording.redaction import Redactor, Rule
from turnwire.recording.second_look import Spool

SECRETS = {
    "sk-proj-abcdefghijklmnopqrstuvwxyz0123456789": "***",
    "ghp_ABCDEFGHIJKLMNOPQRSTUVWX": "***",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJlLXBhcnQ": "***",
    "correct horse battery staple": "***",
    "the-value-of-a-named-member": "***",
    "annabel.lee@kingdom-by-the-sea.net": "user@example.org",
}
ENVIRONMENT = {"PASSPHRASE": "correct horse battery staple"}
LEAK = 8
"""Characters in a row that tell too much."""
WORDS = st.text("ab \n:", max_size=12)
CUTS = st.lists(st.integers(0, 200), max_size=12)


@pytest.fixture(autouse=True, scope="module")
def small_windows() -> Any:
    """So that texts are settled while they go on."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pieces, "WINDOW", 160)
        patch.setattr(pieces, "TAIL", 80)
        patch.setattr(pieces, "MOST_TEXTS", 2)
        yield


def frame(method: str, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": method, "params": {"sessionId": "s", **params}}


def pieces_of(text: str, cuts: list[int]) -> list[str]:
    places = sorted({0, len(text), *(each % (len(text) + 1) for each in cuts)})
    return [text[start:end] for start, end in pairwise(places)]


def streamed(texts: list[str], ids: bool, beside: list[str]) -> list[dict[str, Any]]:
    """Updates with these texts, with thoughts between."""
    frames: list[dict[str, Any]] = []
    for number, text in enumerate(texts):
        named = {"messageId": "m"} if ids else {}
        content = {"type": "text", "text": text}
        update = {"sessionUpdate": "agent_message_chunk", "content": content, **named}
        frames.append(frame("session/update", update=update))
        if number < len(beside):
            thought = {"sessionUpdate": "agent_thought_chunk", "content": {"type": "text", "text": beside[number]}}
            frames.append(frame("session/update", update=thought))
    return frames


def recorded(frames: list[dict[str, Any]]) -> tuple[str, list[Entry]]:
    """What is in the file at the end, and what of it the agent says."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "a.jsonl"
        with FileIO(path, "xb") as file:
            recorder = Recorder(file, Redactor(tuple(Rule), ENVIRONMENT), lambda: 0.0, Limits())
            for each in frames:
                recorder.took("agent", json.dumps(each).encode() + b"\n")
            recorder.ended(0)
        recorder.look_again(path)
        assert [each.name for each in path.parent.iterdir()] == [path.name]
        return path.read_text(), read_recording(path).entries


def said(entries: list[Entry]) -> str:
    updates = [each.update for each in entries if each.update.get("sessionUpdate") == "agent_message_chunk"]
    return "".join(each["content"]["text"] for each in updates)


def check_nothing_of(secret: str, text: str) -> None:
    for start in range(len(secret) - LEAK + 1):
        assert secret[start : start + LEAK] not in text


@settings(max_examples=150, deadline=None)
@given(
    secret=st.sampled_from(list(SECRETS)),
    before=WORDS,
    after=WORDS,
    cuts=CUTS,
    ids=st.booleans(),
    is_told_late=st.booleans(),
    beside=st.lists(WORDS, max_size=4),
    again=st.integers(1, 3),
)
def test_no_cut_leaks_a_part_of_a_secret(
    secret: str,
    before: str,
    after: str,
    cuts: list[int],
    ids: bool,
    is_told_late: bool,
    beside: list[str],
    again: int,
) -> None:
    text = f"{before} {secret} {after}" * again
    named = frame("x/y", apiKey="the-value-of-a-named-member")
    frames = streamed(pieces_of(text, cuts), ids, beside)
    written, entries = recorded([*frames, named] if is_told_late else [named, *frames])
    check_nothing_of(secret, written)
    assert said(entries) == text.replace(secret, SECRETS[secret])
    assert len(entries) == len(frames) + 2

    lines = [each.line for each in entries if each.line]
    repeated, same = recorded([json.loads(each) for each in lines])
    assert said(same) == said(entries), "what was taken out is not taken out again"
    check_nothing_of(secret, repeated)


@settings(max_examples=50, deadline=None)
@given(secret=st.sampled_from(list(SECRETS)), cuts=CUTS, chunks=CUTS)
def test_no_cut_leaks_a_part_of_a_secret_in_an_export(secret: str, cuts: list[int], chunks: list[int]) -> None:
    frames = streamed(pieces_of(f"it is {secret}.", cuts), True, [])
    events = [
        {"id": number, "type": "session_update", "data": each["params"]} for number, each in enumerate(frames, 1)
    ]
    named = {"id": 0, "type": "setup_changed", "data": {"apiKey": "the-value-of-a-named-member"}}
    spool = Spool(Redactor(tuple(Rule), ENVIRONMENT))
    for each in pieces_of("".join(json.dumps(each) + "\n" for each in (*events, named)), chunks):
        spool.write(each.encode())
    shown = list(spool.lines())
    spool.close()
    check_nothing_of(secret, b"".join(shown).decode())
    told = [json.loads(line)["data"].get("update") for line in shown]
    assert "".join(each["content"]["text"] for each in told if each) == f"it is {SECRETS[secret]}."
