"""REST: getting in, sessions, how requests are refused, and the end of a session."""

from __future__ import annotations

from turnwire_check.case import Part, holds, unscored
from turnwire_check.http_client import Answer
from turnwire_check.rest_client import ENDS, RestClient, text
from turnwire_check.tape import at

ACCESS = Part("rest.access", "Getting in")
SESSION = Part("rest.session", "Sessions")
REFUSAL = Part("rest.refusal", "A prompt")
CLOSE = Part("rest.close", "Sessions")

NOWHERE = "no-such-session"
WRONG = {"Authorization": "Bearer nobody-has-this-token"}


# -- getting in -------------------------------------------------------------------------------------------------


@ACCESS.case("health", "`GET /health` is answered with 200 and `status`, which is `ok`.", section="Everything else")
async def health(client: RestClient) -> None:
    answer = await client.call("GET", "/health")
    holds(answer.status == 200 and at(answer.value, "status") == "ok", f"{answer.status}", answer.frame)


@ACCESS.case("capabilities", "`GET /capabilities` lists the features.", section="Everything else")
async def capabilities(client: RestClient) -> None:
    answer = await client.call("GET", "/capabilities")
    listed = at(answer.value, "features")
    holds(answer.status == 200 and isinstance(listed, list), "there is no list `features`", answer.frame)


@ACCESS.case("stranger", "Who sends no credential is refused with 401.", capability="require_auth")
async def stranger(client: RestClient) -> None:
    session = await client.session()
    for method, path in (
        ("GET", f"/session/{session}/status"),
        ("GET", f"/session/{session}/events"),
        ("POST", f"/session/{session}/cancel"),
    ):
        answer = await client.call(method, path, stranger=True)
        holds(answer.status == 401, f"a stranger got {answer.status} from {method} {path}", answer.frame)


@ACCESS.case("wrong-token", "A token that nobody gave out is refused with 401.", capability="require_auth")
async def wrong_token(client: RestClient) -> None:
    session = await client.session()
    answer = await client.call("GET", f"/session/{session}/status", stranger=True, headers=WRONG)
    holds(answer.status == 401, f"it got {answer.status}", answer.frame)


@ACCESS.case(
    "no-leak",
    "A stranger hears the same of a session that there is and of one that there is not.",
    capability="require_auth",
)
async def no_leak(client: RestClient) -> None:
    session = await client.session()
    known = await client.call("GET", f"/session/{session}/turns/current", stranger=True)
    unknown = await client.call("GET", f"/session/{NOWHERE}/turns/current", stranger=True)
    same = (known.status, known.raw) == (unknown.status, unknown.raw)
    holds(same, "the two answers differ", known.frame, unknown.frame)


@ACCESS.case(
    "challenge", "401 says how to get in, by `WWW-Authenticate`.", severity="should", capability="require_auth"
)
async def challenge(client: RestClient) -> None:
    answer = await client.call("GET", "/capabilities", stranger=True)
    if answer.status != 401:
        unscored(f"a stranger got {answer.status}")
    holds("www-authenticate" in answer.headers, "the header is not there", answer.frame)


# -- sessions ---------------------------------------------------------------------------------------------------


@SESSION.case("created", "`POST /session` is answered with 200, a `sessionId` and a `clientId`.")
async def created(client: RestClient) -> None:
    await client.session()
    answer = await client.call("POST", "/session", {})
    for name in ("sessionId", "clientId"):
        found = at(answer.value, name)
        holds(isinstance(found, str) and found, f"`{name}` is {found!r}", answer.frame)
    await client.call("DELETE", f"/session/{at(answer.value, 'sessionId')}")


@SESSION.case("unique", "Two sessions have two ids.")
async def unique(client: RestClient) -> None:
    first, second = await client.session(), await client.session()
    holds(first != second, f"both are {first!r}")


@SESSION.case("status", "`…/status` of a session is answered with 200 and `hasActivePrompt`, a boolean.")
async def status(client: RestClient) -> None:
    answer = await client.call("GET", f"/session/{await client.session()}/status")
    found = at(answer.value, "hasActivePrompt")
    holds(answer.status == 200 and isinstance(found, bool), f"{answer.status}, and {found!r}", answer.frame)


@SESSION.case("busy", "`hasActivePrompt` is true while a turn runs, and false behind its end.", scenes=("wait",))
async def busy(client: RestClient) -> None:
    session, stream = await client.listen()
    prompt = await client.running(stream, session)
    during = await client.call("GET", f"/session/{session}/status")
    await client.cancel(session)
    await stream.end_of(prompt)
    after = await client.call("GET", f"/session/{session}/status")
    for answer, wanted in ((during, True), (after, False)):
        found = at(answer.value, "hasActivePrompt")
        if not isinstance(found, bool):
            unscored("`hasActivePrompt` is no boolean")
        holds(found is wanted, f"it is {found}", answer.frame)


@SESSION.case(
    "load",
    "`…/load` gives the session, where its log stands, and the lists `compactedReplay` and `liveJournal`.",
    capability="session_load",
)
async def load(client: RestClient) -> None:
    session = await client.session()
    answer = await client.call("POST", f"/session/{session}/load", {})
    holds(answer.status == 200 and at(answer.value, "sessionId") == session, f"{answer.status}", answer.frame)
    holds(isinstance(at(answer.value, "lastEventId"), int), "`lastEventId` is no number", answer.frame)
    for name in ("compactedReplay", "liveJournal"):
        holds(isinstance(at(answer.value, name), list), f"`{name}` is no list", answer.frame)


@SESSION.case("resume", "`…/resume` gives a client id of its own.", capability="session_resume")
async def resume(client: RestClient) -> None:
    session = await client.session()
    first = await client.call("POST", f"/session/{session}/resume", {})
    second = await client.call("POST", f"/session/{session}/resume", {})
    for answer in (first, second):
        found = at(answer.value, "clientId")
        holds(answer.status == 200 and isinstance(found, str), f"{answer.status}, and {found!r}", answer.frame)
    ids = [at(each.value, "clientId") for each in (first, second)]
    holds(ids[0] != ids[1], "two clients have one id", first.frame, second.frame)


# -- refusals ---------------------------------------------------------------------------------------------------


def refused(answer: Answer, *wanted: int) -> None:
    holds(answer.status in wanted, f"the answer is {answer.status}", answer.frame)


@REFUSAL.case("no-json", "A body that is no JSON is refused with 400.")
async def no_json(client: RestClient) -> None:
    session = await client.session()
    refused(await client.call("POST", f"/session/{session}/prompt", raw=b'{"prompt": ['), 400)


@REFUSAL.case("media-type", "A body that is not said to be JSON is refused with 415.")
async def media_type(client: RestClient) -> None:
    session = await client.session()
    headers = {"Content-Type": "text/plain"}
    refused(await client.call("POST", f"/session/{session}/prompt", {"prompt": []}, headers=headers), 415)


@REFUSAL.case("parameters", "A media type may have parameters, and is written in any case.")
async def parameters(client: RestClient) -> None:
    session = await client.session()
    plain = await client.post(session)
    if plain.status != 202:
        unscored(f"a prompt is answered with {plain.status}")
    answer = await client.post(session, headers={"Content-Type": "Application/JSON; charset=utf-8"})
    holds(answer.status in (202, 409), f"the answer is {answer.status}", answer.frame)


@REFUSAL.case("too-large", "A body that is larger than its route takes is refused with 413.")
async def too_large(client: RestClient) -> None:
    session = await client.session()
    body = {"_meta": {"padding": "a" * 100_000}}
    refused(await client.call("POST", f"/session/{session}/cancel", body), 413)


@REFUSAL.case("no-blocks", "A prompt without content is refused with 400.")
async def no_blocks(client: RestClient) -> None:
    session = await client.session()
    refused(await client.call("POST", f"/session/{session}/prompt", {"prompt": []}), 400)


@REFUSAL.case("no-list", "A prompt that is no list of objects is refused with 400.")
async def no_list(client: RestClient) -> None:
    session = await client.session()
    for prompt in ("hello", ["hello"], {"type": "text", "text": "hello"}):
        refused(await client.call("POST", f"/session/{session}/prompt", {"prompt": prompt}), 400)


@REFUSAL.case("block", "A text without `text` is refused with 400.")
async def block(client: RestClient) -> None:
    session = await client.session()
    refused(await client.call("POST", f"/session/{session}/prompt", {"prompt": [{"type": "text"}]}), 400)


@REFUSAL.case("unknown-prompted", "A prompt to a session that there is not is refused with 404.")
async def unknown_prompted(client: RestClient) -> None:
    refused(await client.post(NOWHERE), 404)


@REFUSAL.case("unknown-streamed", "A stream of a session that there is not is refused with 404.")
async def unknown_streamed(client: RestClient) -> None:
    refused(await client.call("GET", f"/session/{NOWHERE}/events"), 404)


@REFUSAL.case("unknown-cancelled", "A cancel in a session that there is not is refused with 404.")
async def unknown_cancelled(client: RestClient) -> None:
    refused(await client.cancel(NOWHERE), 404)


@REFUSAL.case(
    "unknown-client",
    "A prompt of a client that the session does not know is refused with 400 or 403.",
    capability="client_identity",
    section="Getting in",
)
async def unknown_client(client: RestClient) -> None:
    session = await client.session()
    stranger = {"X-Qwen-Client-Id": "nobody", "Turnwire-Client-Id": "nobody"}
    refused(await client.post(session, headers=stranger), 400, 403)


@REFUSAL.case("no-route", "What there is not is refused with 404.")
async def no_route(client: RestClient) -> None:
    refused(await client.call("GET", "/no-such-route"), 404)


@REFUSAL.case("method", "A method that a route does not have is refused with 405, and `Allow` says which it has.")
async def method(client: RestClient) -> None:
    session = await client.session()
    answer = await client.call("PUT", f"/session/{session}/prompt", {"prompt": [text("hello")]})
    refused(answer, 405)
    holds("POST" in answer.headers.get("allow", ""), "`Allow` does not name POST", answer.frame)


async def _refusals(client: RestClient) -> list[Answer]:
    """Return sample rejections for rules about all rejections. Requests that are accepted wrongly are left to their
    cases.
    """
    session = await client.session()
    path = f"/session/{session}/prompt"
    found = [
        await client.call("POST", path, raw=b"{"),
        await client.call("POST", path, {"prompt": []}),
        await client.post(NOWHERE),
        await client.call("GET", f"/session/{NOWHERE}/events"),
    ]
    found = [each for each in found if each.status >= 400]
    return found or unscored("nothing was refused")


@REFUSAL.case("media", "A refusal is `application/problem+json`.")
async def media(client: RestClient) -> None:
    for each in await _refusals(client):
        holds(each.media == "application/problem+json", f"it is {each.media!r}", each.frame)


@REFUSAL.case("words", "A refusal has `error` and `code`, which are texts.")
async def words(client: RestClient) -> None:
    for each in await _refusals(client):
        for name in ("error", "code"):
            found = at(each.value, name)
            holds(isinstance(found, str) and found, f"`{name}` is {found!r}", each.frame)


@REFUSAL.case("members", "A refusal has the `status` of the answer, and `title` and `type` of RFC 9457.")
async def members(client: RestClient) -> None:
    for each in await _refusals(client):
        found = at(each.value, "status")
        holds(found == each.status, f"`status` is {found!r}, the answer is {each.status}", each.frame)
        for name in ("title", "type"):
            holds(isinstance(at(each.value, name), str), f"`{name}` is no text", each.frame)


@REFUSAL.case("code", "The code for a session that there is not is `session_not_found`.")
async def code(client: RestClient) -> None:
    answer = await client.post(NOWHERE)
    found = at(answer.value, "code")
    if answer.status != 404 or not isinstance(found, str):
        unscored("it is not refused with a code")
    holds(found == "session_not_found", f"the code is {found!r}", answer.frame)


@REFUSAL.case("nothing-started", "What is refused starts nothing: no event tells of it.")
async def nothing_started(client: RestClient) -> None:
    session, stream = await client.listen()
    path = f"/session/{session}/prompt"
    told = [
        await client.call("POST", path, {"prompt": [text(client.words("plain")), {"type": "text"}]}),
        await client.call("POST", path, {"prompt": []}),
    ]
    if any(each.status < 400 for each in told):
        unscored("it was not refused")
    prompt, _ = await client.turn(stream, session)
    strays = [each for each in stream.of_session if each.prompt not in (None, prompt)]
    holds(not strays, "an event tells of a prompt that was refused", *(each.frame for each in (*told, *strays[:2])))


# -- the end of a session ---------------------------------------------------------------------------------------


@CLOSE.case("answered", "`DELETE /session/{id}` is answered with 204, and no body.", capability="session_close")
async def answered(client: RestClient) -> None:
    answer = await client.call("DELETE", f"/session/{await client.session()}")
    holds(answer.status == 204 and not answer.raw, f"the answer is {answer.status}", answer.frame)


@CLOSE.case("told", "The last event of a session that is closed is `session_closed`.", capability="session_close")
async def told(client: RestClient) -> None:
    session, stream = await client.listen()
    answer = await client.call("DELETE", f"/session/{session}")
    await stream.until(lambda event: event.type == "session_closed")
    await stream.pause()
    last = stream.of_session[-1:]
    holds(last and last[0].type == "session_closed", "it is not", answer.frame, *(each.frame for each in last))


@CLOSE.case("ends", "The streams of a session that is closed end.", capability="session_close")
async def ends(client: RestClient) -> None:
    session, stream = await client.listen()
    answer = await client.call("DELETE", f"/session/{session}")
    holds(await stream.is_ended(), "the stream is still open", answer.frame)


@CLOSE.case("twice", "Closing a session again is answered with 204, 404 or 410.", capability="session_close")
async def twice(client: RestClient) -> None:
    session = await client.session()
    await client.call("DELETE", f"/session/{session}")
    answer = await client.call("DELETE", f"/session/{session}")
    holds(answer.status in (204, 404, 410), f"the answer is {answer.status}", answer.frame)


@CLOSE.case(
    "prompted",
    "A prompt to a session that is closed is refused with 404 or 410.",
    capability="session_close",
    section="A prompt",
)
async def prompted(client: RestClient) -> None:
    session = await client.session()
    await client.call("DELETE", f"/session/{session}")
    answer = await client.post(session)
    holds(answer.status in (404, 410), f"the answer is {answer.status}", answer.frame)


@CLOSE.case(
    "turn",
    "A turn that runs when its session is closed has its end before that.",
    scenes=("wait",),
    section="Events",
)
async def turn(client: RestClient) -> None:
    session, stream = await client.listen()
    prompt = await client.running(stream, session)
    answer = await client.call("DELETE", f"/session/{session}")
    closed = await stream.until(lambda event: event.type == "session_closed")
    if closed is None:
        unscored("the close is not told")
    before = stream.events[: stream.events.index(closed)]
    end = [each for each in before if each.type in ENDS and each.prompt == prompt]
    holds(end, "the turn has no end", answer.frame, closed.frame)
