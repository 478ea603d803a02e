"""REST: the form of a stream, its ids, and coming back to it."""

from __future__ import annotations

import re
from typing import Any

from turnwire_check.case import Part, holds, unscored
from turnwire_check.rest_client import ENDS, RestClient, RestEvent, RestStream, ends, text
from turnwire_check.tape import at

STREAM = Part("rest.stream", "Events")
REPLAY = Part("rest.replay", "Events")
READERS = Part("rest.readers", "Events")

EPOCH = "Turnwire-Epoch", "X-Qwen-RestEvent-Epoch"
HEARTBEAT_S = 15.0
AHEAD = 999_999_999
SEPARATORS = "one\ntwo\r\nthree\u2028four\n\ndata: five"
"""Characters that end a line for some readers."""


async def _two_turns(client: RestClient) -> tuple[str, RestStream]:
    """Return a session with some history, and the stream on which it was observed."""
    session, stream = await client.listen()
    await client.turn(stream, session)
    await client.turn(stream, session)
    return session, stream


def _ids(events: list[RestEvent]) -> list[Any]:
    return [each.id for each in events if at(each.value, "_meta", "partOf") is None]


def _seen(events: list[RestEvent]) -> list[tuple[str, ...]]:
    """Return a reader's events about turns: other events may precede the opening of another reader's stream."""
    return [each.lines for each in events if each.is_of_session and each.prompt is not None]


def _frames(*events: RestEvent | None) -> list[Any]:
    return [None if each is None else each.frame for each in events]


# -- the form ---------------------------------------------------------------------------------------------------


@STREAM.case("type", "A stream is `text/event-stream`.")
async def media(client: RestClient) -> None:
    _, stream = await client.listen()
    found = stream.body.headers.get("content-type", "").partition(";")[0].strip().lower()
    holds(found == "text/event-stream", f"it is {found!r}", stream.head)


@STREAM.case("no-cache", "No cache keeps a stream: `Cache-Control` says `no-cache` or `no-store`.")
async def no_cache(client: RestClient) -> None:
    _, stream = await client.listen()
    found = stream.body.headers.get("cache-control", "").lower()
    holds("no-cache" in found or "no-store" in found, f"it says {found!r}", stream.head)


@STREAM.case("no-buffer", "No proxy holds a stream back: `X-Accel-Buffering` is `no`.", severity="should")
async def no_buffer(client: RestClient) -> None:
    _, stream = await client.listen()
    found = stream.body.headers.get("x-accel-buffering", "").lower()
    holds(found == "no", f"it is {found!r}", stream.head)


@STREAM.case("plain", "A stream is not compressed, also for clients that could read that.")
async def plain(client: RestClient) -> None:
    _, stream = await client.listen()
    found = stream.body.headers.get("content-encoding", "identity").lower()
    holds(found == "identity", f"its encoding is {found!r}", stream.head)


@STREAM.case("epoch", "A stream names the epoch of its ids.")
async def epoch(client: RestClient) -> None:
    session, stream = await client.listen()
    answer = await client.post(session)
    wanted = at(answer.value, "eventEpoch")
    if not isinstance(wanted, str):
        unscored("the answer to a prompt names no epoch")
    found = [stream.body.headers[name.lower()] for name in EPOCH if name.lower() in stream.body.headers]
    holds(found and set(found) == {wanted}, f"it names {found}, a prompt {wanted!r}", stream.head, answer.frame)


@STREAM.case("at-once", "The head of a stream does not wait for the first event.")
async def at_once(client: RestClient) -> None:
    session = await client.session()
    stream = await client.open_stream(session)
    holds(stream, "nothing came while nothing happened")


@STREAM.case("head", "`HEAD` of a stream is answered with its headers, and ends.", severity="should")
async def head(client: RestClient) -> None:
    session, stream = await client.listen()
    answer = await client.call("HEAD", f"/session/{session}/events")
    if answer.status in (405, 501):
        unscored("it has no HEAD")
    same = answer.status == 200 and answer.headers.get("content-type") == stream.body.headers.get("content-type")
    holds(same, f"it is answered with {answer.status}, and another type", stream.head, answer.frame)
    after = await client.ask("GET", f"/session/{session}/status")
    holds(after, "nothing is answered after it", answer.frame)


@STREAM.case("lines", "A stream has lines `id`, `event`, `data` and `retry`, and comments.")
async def lines(client: RestClient) -> None:
    session, stream = await client.listen()
    await client.turn(stream, session)
    for each in stream.events:
        strange = [line for line in each.lines if not re.match(r"(id|event|data|retry)?:", line)]
        holds(not strange, f"there is the line {strange[:1]}", each.frame)


@STREAM.case("envelope", "`data` is an object with `v` 1, `type` and `data`, an object.")
async def envelope(client: RestClient) -> None:
    session, stream = await client.listen()
    await client.turn(stream, session)
    for each in stream.events:
        sound = at(each.value, "v") == 1 and isinstance(each.type, str) and isinstance(each.says, dict)
        holds(sound, "it is not", each.frame)


@STREAM.case("one-line", "`data` is on one line.")
async def one_line(client: RestClient) -> None:
    session, stream = await client.listen()
    await client.turn(stream, session)
    for each in stream.events:
        holds(len(each.field("data")) == 1, "it is on several", each.frame)


@STREAM.case("event-line", "The line `event` names the type.")
async def event_line(client: RestClient) -> None:
    session, stream = await client.listen()
    await client.turn(stream, session)
    for each in stream.events:
        found = each.field("event")
        holds(found == [each.type], f"the line has {found}, the type is {each.type!r}", each.frame)


@STREAM.case("id-line", "The line `id` has the id of the event.")
async def id_line(client: RestClient) -> None:
    session, stream = await client.listen()
    await client.turn(stream, session)
    for each in stream.events:
        wanted = [] if each.id is None else [str(each.id)]
        found = each.field("id")
        holds(found == wanted, f"the line has {found}, the id is {each.id!r}", each.frame)


@STREAM.case("separators", "Whatever characters a text has, its event is one, and has it as it was.")
async def separators(client: RestClient) -> None:
    session, stream = await client.listen()
    await client.turn(stream, session)
    body = {"prompt": [text(f"{client.words('plain')} {SEPARATORS}")]}
    answer = await client.call("POST", f"/session/{session}/prompt", body)
    prompt = client.new(answer)
    await stream.end_of(prompt)
    found = next((each for each in stream.of_prompt(prompt) if each.kind == "user_message_chunk"), None)
    if found is None:
        unscored("the prompt is not in the stream")
    told = at(found.says, "update", "content", "text")
    holds(told == body["prompt"][0]["text"], f"it has {told!r}", answer.frame, found.frame)


@STREAM.case("ascii", "A stream is ASCII, so that it can be cut anywhere.", severity="should")
async def ascii_only(client: RestClient) -> None:
    session, stream = await client.listen()
    body = {
        "prompt": [
            text(f"{client.words('plain')} \N{LATIN SMALL LETTER U WITH DIAERESIS}\N{SLIGHTLY SMILING FACE}")
        ]
    }
    prompt = client.new(await client.call("POST", f"/session/{session}/prompt", body))
    end = await stream.end_of(prompt)
    strange = next((each for each in stream.events if any(not line.isascii() for line in each.lines)), None)
    holds(stream.body.received.isascii(), "it is not", *_frames(strange, end))


@STREAM.case("heartbeat", "A comment comes at least every 15 s when nothing else does.", severity="should")
async def heartbeat(client: RestClient) -> None:
    _, stream = await client.listen()
    await stream.pause()
    before = stream.comments
    # A little more, for the way.
    await stream.until(lambda event: stream.comments > before, within=client.subject.silence_s)
    length = len(stream.body.received)
    came = stream.comments > before or await stream.body.more(length, HEARTBEAT_S + client.subject.patience_s / 2)
    holds(came, f"nothing came for more than {HEARTBEAT_S:g} s", stream.head)


@STREAM.case("news", "A stream without a cursor has what happens from then on, and nothing older.")
async def news(client: RestClient) -> None:
    session, first = await client.listen()
    old, _ = await client.turn(first, session)
    stream = await client.stream(session)
    new, _ = await client.turn(first, session)
    holds(await stream.until(ends(new)), "it does not have the end of a turn that began later")
    older = stream.of_prompt(old)
    holds(not older, "it has what was before", *_frames(*older[:2]))


@STREAM.case("apart", "A stream has its own session's events alone.")
async def apart(client: RestClient) -> None:
    first, second = await client.two_sessions()
    streams = await client.stream(first), await client.stream(second)
    prompts = await client.prompt(first), await client.prompt(second)
    for stream, prompt in zip(streams, prompts, strict=True):
        await stream.end_of(prompt)
    await streams[0].pause()
    for stream, prompt in zip(streams, reversed(prompts), strict=True):
        strays = stream.of_prompt(prompt)
        holds(not strays, "it has an event of another session", *_frames(*strays[:2]))


# -- ids, and coming back -----------------------------------------------------------------------------------------


@REPLAY.case("ids", "The ids of a session's events are 1, 2, 3, without a gap.")
async def ids(client: RestClient) -> None:
    _, stream = await _two_turns(client)
    found = [each for each in _ids(stream.of_session) if each is not None]
    if not found:
        unscored("there are no ids")
    wanted = list(range(found[0], found[0] + len(found)))
    holds(found == wanted, f"they are {found}", *_frames(stream.events[0], stream.events[-1]))


@REPLAY.case("whole", "From cursor 0 all comes, from id 1 on.")
async def whole(client: RestClient) -> None:
    session, stream = await _two_turns(client)
    events = await client.history(session)
    found = _ids(events)
    holds(found[:1] == [1], f"it begins with {found[:1]}", *_frames(*events[:1]))
    end = stream.cursor()
    holds(found[-1] >= end, f"it ends with {found[-1]}, and there is {end}", *_frames(*events[-1:]))


@REPLAY.case("middle", "From a cursor in the middle everything behind it comes, and nothing else.")
async def middle(client: RestClient) -> None:
    session, stream = await _two_turns(client)
    seen = stream.of_session
    place = len(seen) // 2
    cursor = seen[place].id
    if not isinstance(cursor, int):
        unscored("there are no ids")
    events = await client.history(session, cursor)
    found, wanted = _ids(events), _ids(seen[place + 1 :])
    holds(found == wanted, f"after {cursor} came {found}", *_frames(*events[:1], *events[-1:]))


@REPLAY.case("same", "What is replayed is what was told, event for event.")
async def same(client: RestClient) -> None:
    session, stream = await _two_turns(client)
    told = {each.id: each for each in stream.of_session}
    for each in await client.history(session):
        if each.id in told:
            before = told[each.id]
            holds(each.value == before.value, f"event {each.id} is another now", before.frame, each.frame)


@REPLAY.case("newest", "From the newest cursor nothing is replayed, and what is new comes.")
async def newest(client: RestClient) -> None:
    session, stream = await _two_turns(client)
    behind = await client.stream(session, stream.cursor())
    replayed = await behind.replayed()
    holds(not replayed, "something old came", *_frames(*replayed[:2]))
    prompt, _ = await client.turn(stream, session)
    holds(await behind.until(ends(prompt)), "the end of the next turn does not come")


@REPLAY.case("complete", "Behind the last event that is replayed comes `replay_complete`, which has no id.")
async def complete(client: RestClient) -> None:
    session, _ = await _two_turns(client)
    stream = await client.stream(session, 0)
    found = await stream.until(lambda event: event.type == "replay_complete")
    holds(found, "it does not come", *_frames(*stream.events[-1:]))
    holds(found is None or (found.id is None and not found.field("id")), "it has one", *_frames(found))


@REPLAY.case("count", "`replay_complete` says how many events were replayed, and which was the last.")
async def count(client: RestClient) -> None:
    session, _ = await _two_turns(client)
    stream = await client.stream(session, 0)
    events = await stream.replayed()
    told = next(each for each in stream.events if each.type == "replay_complete")
    found = at(told.says, "replayedCount"), at(told.says, "lastReplayedEventId")
    wanted = len(_ids(events)), _ids(events)[-1]
    holds(found == wanted, f"it says {found}, there were {wanted}", *_frames(*events[-1:], told))


@REPLAY.case("receipt", "A stream from the `lastEventId` of a prompt's answer has the whole turn.")
async def receipt(client: RestClient) -> None:
    session, first = await client.listen()
    answer = await client.post(session)
    prompt = client.new(answer)
    await first.end_of(prompt)
    stands = at(answer.value, "lastEventId")
    if not isinstance(stands, int):
        unscored("the answer has no `lastEventId`")
    stream = await client.stream(session, stands)
    end = await stream.until(ends(prompt))
    found, wanted = _ids(stream.of_prompt(prompt)), _ids(first.of_prompt(prompt))
    holds(found == wanted, f"it has {found} of {wanted}", answer.frame, *_frames(end))


@REPLAY.case("query", "`?after=` is a cursor, too, for clients that cannot send the header.")
async def query(client: RestClient) -> None:
    session, seen = await _two_turns(client)
    cursor = seen.of_session[0].id
    stream = await client.stream(session, query=f"?after={cursor}")
    await stream.until(lambda event: event.id == seen.cursor())
    found, wanted = _ids(stream.of_session), _ids(seen.of_session[1:])
    holds(found == wanted, f"after {cursor} came {found}", stream.head, *_frames(*stream.events[:1]))


@REPLAY.case("cut", "Who was cut in the middle of a turn and comes back has each event once.", scenes=("wait",))
async def cut(client: RestClient) -> None:
    session, whole_time = await client.listen()
    stream = await client.stream(session)
    prompt = await client.running(stream, session)
    await stream.cut()
    cursor = stream.cursor()
    await client.cancel(session)
    await whole_time.end_of(prompt)
    again = await client.stream(session, cursor)
    holds(await again.until(ends(prompt)), "the end of the turn does not come", again.head)
    found = _ids([*stream.of_session, *again.of_session])
    wanted = _ids(whole_time.of_session)[: len(found)]
    holds(found == wanted, f"there came {found}", *_frames(*again.events[:1]))


@REPLAY.case("left", "A turn goes on when its readers leave.", scenes=("wait",))
async def left(client: RestClient) -> None:
    session, stream = await client.listen()
    prompt = await client.running(stream, session)
    cursor = stream.cursor()
    await stream.cut()
    again = await client.stream(session, cursor)
    await again.replayed()
    await again.pause()
    ended = next((each for each in again.events if ends(prompt)(each)), None)
    holds(ended is None, "it ended", *_frames(ended))


@REPLAY.case("ahead", "A cursor beyond the end is told by `state_resync_required`, with `epoch_reset` as reason.")
async def ahead(client: RestClient) -> None:
    session, _ = await _two_turns(client)
    stream = await client.stream(session, AHEAD)
    found = await stream.until(lambda event: event.is_of_session or event.type == "state_resync_required")
    told = found is not None and found.type == "state_resync_required"
    holds(told, "it is not told", stream.head, *_frames(found))
    reason = found and at(found.says, "reason")
    holds(reason == "epoch_reset", f"the reason is {reason!r}", *_frames(found))


@REPLAY.case("other-epoch", "A cursor of another epoch is told by `state_resync_required`.")
async def other_epoch(client: RestClient) -> None:
    session, _ = await _two_turns(client)
    stream = await client.stream(session, 1, headers=dict.fromkeys(EPOCH, "another-epoch"))
    found = await stream.until(lambda event: event.is_of_session or event.type == "state_resync_required")
    told = found is not None and found.type == "state_resync_required"
    holds(told, "it is not told", stream.head, *_frames(found))


@REPLAY.case("resync", "After `state_resync_required`, which comes once, the stream goes on from the oldest event.")
async def resync(client: RestClient) -> None:
    session, seen = await _two_turns(client)
    stream = await client.stream(session, AHEAD)
    first = await stream.until(lambda event: event.type == "state_resync_required")
    if first is None:
        unscored("a cursor that cannot be honoured is not told")
    events = await stream.replayed()
    oldest = at(first.says, "earliestAvailableId")
    holds(_ids(events)[:1] == [oldest], f"it goes on from {_ids(events)[:1]}", *_frames(first, *events[:1]))
    prompt, _ = await client.turn(seen, session)
    holds(await stream.until(ends(prompt)), "what is new does not come", *_frames(first))
    told = [each for each in stream.events if each.type == "state_resync_required"]
    holds(len(told) == 1, f"it comes {len(told)} times", *_frames(*told))


@REPLAY.case("garbled", "A cursor that is no whole number is refused with 400, before the stream begins.")
async def garbled(client: RestClient) -> None:
    session = await client.session()
    for cursor in ("yesterday", "-1", "1.5"):
        found = await client.open_stream(session, cursor)
        if found is None:
            unscored("there is no answer")
        holds(found.body.status == 400, f"{cursor!r} is answered with {found.body.status}", found.head)


# -- several readers ----------------------------------------------------------------------------------------------


@READERS.case("same", "Several readers of a session see the same events in the same order.")
async def readers_same(client: RestClient) -> None:
    session = await client.session()
    streams = [await client.stream(session) for _ in range(4)]
    for _ in range(2):
        prompt = await client.prompt(session)
        for each in streams:
            await each.end_of(prompt)
    first, *others = streams
    for each in others:
        same_order = _seen(each.events) == _seen(first.events)
        holds(same_order, "two readers saw something else", *_frames(first.events[-1], each.events[-1]))


@READERS.case(
    "late", "Who joins in the middle of a turn has what was before, and then what comes.", scenes=("wait",)
)
async def late(client: RestClient) -> None:
    session, first = await client.listen()
    prompt = await client.running(first, session)
    stream = await client.stream(session, 0)
    await stream.replayed()
    await client.cancel(session)
    await first.end_of(prompt)
    holds(await stream.until(ends(prompt)), "the end of the turn does not come", stream.head)
    found = _ids(stream.of_prompt(prompt))
    wanted = _ids(first.of_prompt(prompt))
    holds(found == wanted, f"of {wanted} it has {found}", *_frames(*stream.events[-1:]))


@READERS.case("leaving", "Who leaves takes nothing from those who stay.")
async def leaving(client: RestClient) -> None:
    session, stays = await client.listen()
    first = await client.prompt(session)
    if not await stays.until(ends(first)):
        unscored("a turn had no end")
    goes = await client.stream(session)
    await goes.cut()
    prompt = await client.prompt(session)
    end = await stays.until(lambda event: event.type in ENDS and event.prompt == prompt)
    holds(end, "the other reader has nothing of the next turn")
