"""A client that decodes each chunk of a stream as text separately, however the network splits it.

Released clients do so (the Python SDK 0.12.1 decodes every chunk alone), and a chunk may end inside a character.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from threading import Thread

import pytest
from tests.literal.agents import PLAIN
from tests.literal.clients import NAMELESS, V2, is_update
from tests.literal.heard import Frame, Heard, member
from tests.literal.links import EventStream, HttpLink, HttpOrigin, sse
from tests.literal.stages import TOKEN, House, Talk

WORDS = 'naïve Ж 你好 😀 \\ \\u00e9 "“ \u2028 end'


def in_single_bytes(lines: Iterable[bytes]) -> Iterable[bytes]:
    """Return the lines as this client decodes them: joined from chunks of one byte, each decoded separately."""
    for line in lines:
        yield "".join(bytes([each]).decode() for each in line).encode()


class NaiveLink(HttpLink):
    def _read(self, stream: EventStream) -> None:
        for event in sse(in_single_bytes(stream.lines())):
            self.heard.add(json.loads(event["data"]))


@pytest.mark.parametrize("client", [NAMELESS, V2], ids=["v1", "v2"])
def test_words_of_any_script_are_heard_in_pieces_of_one_byte(house: House, client: Frame) -> None:
    served = house.served(PLAIN)
    raw = house.connect(NaiveLink(HttpOrigin(served.daemon.url), TOKEN), client)
    cwd = house.folder()
    talk = Talk(raw, raw.new_session(cwd), cwd, served.agents)
    talk.prompt("go")
    prompt = talk.agent.asked()
    talk.agent.say(talk.agent.chunk(WORDS))
    question = talk.agent.agent.ask("_example.com/é", {"sessionId": talk.agent.id, "é": WORDS})
    request = talk.client.asked("_example.com/é", talk.id)
    assert request["params"]["é"] == WORDS
    talk.client.answer(request, {})
    talk.agent.agent.told(question)
    talk.agent.end(prompt)
    chunks = [each for each in talk.client.frames(talk.id) if is_update(each)]
    assert WORDS in [member(each, "params", "update", "content", "text") for each in chunks]


def test_words_of_any_script_are_heard_so_over_rest(house: House) -> None:
    talk = house.rest_talk(PLAIN)
    prompt_id = talk.prompt(WORDS)
    prompt = talk.agent.asked()
    talk.agent.say(talk.agent.chunk(WORDS))
    talk.agent.end(prompt)
    heard = Heard()
    url = house.served(PLAIN).daemon.url
    path = f"/session/{talk.id}/events?snapshot=1&after=0"
    stream = HttpOrigin(url).stream(path, {"Authorization": f"Bearer {TOKEN}"})

    def read() -> None:
        for event in sse(in_single_bytes(stream.lines())):
            heard.add(json.loads(event["data"]))

    Thread(target=read, daemon=True).start()
    try:
        heard.until(lambda event: event["type"] == "turn_complete" and event["data"]["promptId"] == prompt_id)
        texts = [member(each, "data", "update", "content", "text") for each in heard.all()]
        assert texts.count(WORDS) == 2, "the prompt, and the agent's words"
    finally:
        stream.close()
