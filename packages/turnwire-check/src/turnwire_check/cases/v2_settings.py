"""v2, a draft: authentication, options that a client chooses, vendor methods, and lists of messages."""

from __future__ import annotations

from typing import Any

from turnwire_check.case import IN_ORDER, Part, broken, holds, unscored
from turnwire_check.raw_client import RawClient
from turnwire_check.raw_peer import INVALID_PARAMS, METHOD_NOT_FOUND, is_answer_to
from turnwire_check.shapes import as_key, is_objects, is_text, values_of
from turnwire_check.tape import Frame, at, items

AUTH = Part("v2.auth", "v2 draft, authentication")
OPTION = Part("v2.option", "v2 draft, session config options")
OWN = Part("v2.own", "v2 draft, extensibility")
WIRE = Part("v2.wire", "v2 draft, transports")

INVALID_REQUEST = -32600


@AUTH.case(
    "login",
    "Who names a way to log in has a request for it, which refuses a way that is not named.",
    capability="authMethods",
    section="Advertising authentication",
)
async def login(client: RawClient) -> None:
    await client.initialize()
    # The request for logging out is not tested: it would log the user out.
    answer = await client.call("auth/login", {"methodId": "no such way to log in"})
    holds(at(answer.error, "code") != METHOD_NOT_FOUND, "there is no `auth/login`", answer)
    holds(answer.failed, "it succeeded", answer)


@AUTH.case(
    "terminal",
    "Logins that are programs are named only to clients that can run them.",
    section="Authentication method types",
)
async def terminal(client: RawClient) -> None:
    answer = await client.initialize()
    named = [each for each in items(at(answer.result, "authMethods")) if at(each, "type") == "terminal"]
    holds(not named, "it names a login by terminal to a client that offers none", answer)


# -- options ---------------------------------------------------------------------------------------------------


def _complaint(options: object) -> str:
    """Return the error in a list of options; empty if there is none."""
    if not is_objects(options):
        return "config options that are no list"
    for each in options:
        name, value = at(each, "configId"), at(each, "currentValue")
        if not is_text(name) or not is_text(at(each, "name")):
            return "an option without `configId` and `name`"
        if value is None:
            return f"the option {name!r} has no value"
        if at(each, "type") == "select" and value not in values_of(each):
            return f"the value of the option {name!r} is none of those it offers"
    return ""


async def _options(client: RawClient) -> tuple[str, Frame, list[dict[str, Any]]]:
    session = await client.open()
    answer = next(each for each in client.tape.heard() if at(each.result, "sessionId") == session)
    listed = at(answer.result, "configOptions")
    if not is_objects(listed) or not listed:
        unscored("it has no options")
    return session, answer, listed


async def _select(client: RawClient) -> tuple[str, list[dict[str, Any]], dict[str, Any]]:
    session, _, options = await _options(client)
    selects = [each for each in options if at(each, "type") == "select" and values_of(each)]
    if not selects:
        unscored("it has no option with values")
    return session, options, selects[0]


async def _set(client: RawClient, session: str, name: Any, value: Any) -> Frame:
    params = {"sessionId": session, "configId": name, "type": "id", "value": value}
    return await client.call("session/set_config_option", params)


@OPTION.case("value", "Every option has an id, a name and a value that it offers.")
async def value(client: RawClient) -> None:
    _, answer, options = await _options(client)
    if complaint := _complaint(options):
        broken(complaint, answer)


@OPTION.case(
    "set",
    "An option that is set is answered with all options and their values.",
    section="From the client",
)
async def option_set(client: RawClient) -> None:
    session, options, chosen = await _select(client)
    wanted = values_of(chosen)[-1]
    answer = await _set(client, session, at(chosen, "configId"), wanted)
    if answer.failed:
        broken("a value that is offered was refused", answer)
    told = at(answer.result, "configOptions")
    if not is_objects(told):
        broken("it was answered without options", answer)
    found = {as_key(at(each, "configId")): at(each, "currentValue") for each in told}
    missing = {as_key(at(each, "configId")) for each in options} - set(found)
    holds(not missing, f"the answer leaves {min(missing, default='')} out", answer)
    now = found[as_key(at(chosen, "configId"))]
    holds(now == wanted, f"it was set to {wanted!r} and is {now!r}", answer)


@OPTION.case("unknown", "An option that there is not is refused with -32602.", section="From the client")
async def unknown(client: RawClient) -> None:
    session, _, chosen = await _select(client)
    answer = await _set(client, session, "no such option", values_of(chosen)[0])
    found = at(answer.error, "code")
    holds(found == INVALID_PARAMS, f"it was answered with {found!r}", answer)


@OPTION.case(
    "unknown-value",
    "A value that an option does not offer is refused with -32602.",
    section="From the client",
)
async def unknown_value(client: RawClient) -> None:
    session, _, chosen = await _select(client)
    answer = await _set(client, session, at(chosen, "configId"), "no such value")
    found = at(answer.error, "code")
    holds(found == INVALID_PARAMS, f"it was answered with {found!r}", answer)


# -- vendor methods, lists of messages ---------------------------------------------------------------------------


@OWN.case("request", "A request of somebody's own is answered under its id.", section="Custom requests")
async def own_request(client: RawClient) -> None:
    await client.initialize()
    request = await client.ask("_example.org/no_such_method", {"a": 1})
    answer = await client.until(is_answer_to(request.id), request.frame.number)
    holds(answer, "it was not answered", request.frame)


@WIRE.case(
    "empty-batch",
    "An empty list of messages is refused once, with -32600 and no id.",
    section="JSON-RPC batch messages",
    carriers=IN_ORDER,
)
async def empty_batch(client: RawClient) -> None:
    await client.initialize()
    sent = await client.send([])
    barrier = await client.barrier()
    told = [each for each in client.tape.heard(sent.number) if each is not barrier]
    refused = [each for each in told if each.is_answer and each.id is None]
    codes = [at(each.error, "code") for each in refused]
    holds(codes == [INVALID_REQUEST], f"it was answered with {codes!r}", sent, *told)
