"""v1: modes and options that a client chooses."""

from __future__ import annotations

from typing import Any

from turnwire_check.case import Part, broken, holds, unscored
from turnwire_check.raw_client import RawClient
from turnwire_check.shapes import as_key, is_objects, options_complaint, values_of
from turnwire_check.tape import Frame, at, items

MODE = Part("v1.mode", "Session modes")
OPTION = Part("v1.option", "Session config options")


async def _opened(client: RawClient) -> tuple[str, Frame]:
    session = await client.open()
    answer = next(each for each in client.tape.heard() if at(each.result, "sessionId") == session)
    return session, answer


async def _modes(client: RawClient) -> tuple[str, list[Any]]:
    session, answer = await _opened(client)
    listed = at(answer.result, "modes", "availableModes")
    if not is_objects(listed) or not listed:
        unscored("it has no modes")
    return session, [at(each, "id") for each in listed]


def _keys(values: list[Any]) -> set[str]:
    return {as_key(each) for each in values}


@MODE.case("set", "Every mode that is offered can be chosen.", section="Setting the current mode")
async def mode_set(client: RawClient) -> None:
    session, modes = await _modes(client)
    for each in modes:
        answer = await client.call("session/set_mode", {"sessionId": session, "modeId": each})
        holds(answer.succeeded, f"the mode {each!r} is offered and was refused", answer)


@MODE.case(
    "unknown", "A mode that is not offered is refused.", severity="should", section="Setting the current mode"
)
async def mode_unknown(client: RawClient) -> None:
    session, _ = await _modes(client)
    answer = await client.call("session/set_mode", {"sessionId": session, "modeId": "no such mode"})
    holds(answer.failed, "it was taken", answer)


@MODE.case(
    "agrees",
    "A mode that is also an option has one value in both places, also after it was set in one.",
    severity="should",
    section="Relationship to session modes",
)
async def mode_agrees(client: RawClient) -> None:
    session, modes = await _modes(client)
    answer = next(each for each in client.tape.heard() if at(each.result, "sessionId") == session)
    offered = at(answer.result, "configOptions")
    options = offered if is_objects(offered) else []
    same = [each for each in options if at(each, "category") == "mode" and _keys(values_of(each)) == _keys(modes)]
    current = at(answer.result, "modes", "currentModeId")
    if not same or current not in modes:
        unscored("no option offers the same modes, or the current one is none of them")
    holds(at(same[0], "currentValue") == current, "the two differ from the beginning", answer)
    other = next((each for each in modes if each != current), None)
    # The answer to setting an option contains all of them: set another one to its current value.
    beside = next((each for each in options if each is not same[0] and at(each, "type") == "select"), None)
    if other is None or beside is None:
        unscored("it has one mode, or no other option that could be set")
    chosen = await client.call("session/set_mode", {"sessionId": session, "modeId": other})
    params = {"sessionId": session, "configId": at(beside, "id"), "value": at(beside, "currentValue")}
    told = await client.call("session/set_config_option", params)
    listed = at(told.result, "configOptions")
    found = [at(each, "currentValue") for each in items(listed) if at(each, "id") == at(same[0], "id")]
    if chosen.failed or not found:
        unscored("the mode could not be set, or the option is not told")
    holds(found == [other], f"the mode is {other!r}, and its option {found[0]!r}", chosen, told)


async def _options(client: RawClient) -> tuple[str, list[dict[str, Any]]]:
    session, answer = await _opened(client)
    listed = at(answer.result, "configOptions")
    if not is_objects(listed) or not listed:
        unscored("it has no options")
    return session, listed


@OPTION.case("set", "An option that is set is answered with all options.", section="From the client")
async def option_set(client: RawClient) -> None:
    session, options = await _options(client)
    selects = [each for each in options if at(each, "type") == "select" and values_of(each)]
    if not selects:
        unscored("it has no option with values")
    value = values_of(selects[0])[-1]
    params = {"sessionId": session, "configId": selects[0]["id"], "value": value}
    answer = await client.call("session/set_config_option", params)
    if answer.failed:
        broken("a value that is offered was refused", answer)
    found = at(answer.result, "configOptions")
    if complaint := options_complaint(found):
        broken(complaint, answer)
    missing = {as_key(at(each, "id")) for each in options} - {as_key(at(each, "id")) for each in found}
    holds(not missing, f"the answer leaves {min(missing, default='')} out", answer)


@OPTION.case("in-force", "An option that is set has the value it was given.", section="From the client")
async def option_in_force(client: RawClient) -> None:
    session, options = await _options(client)
    wanted = [
        (each["id"], value)
        for each in options
        if at(each, "type") == "select"
        for value in values_of(each)
        if value != at(each, "currentValue")
    ]
    if not wanted:
        unscored("it has no option with another value to choose")
    name, value = wanted[0]
    params = {"sessionId": session, "configId": name, "value": value}
    answer = await client.call("session/set_config_option", params)
    listed = at(answer.result, "configOptions")
    if not is_objects(listed):
        unscored("it was not answered with options")
    chosen = [at(each, "currentValue") for each in listed if at(each, "id") == name]
    holds(chosen == [value], f"{name!r} was set to {value!r} and is {chosen!r}", answer)


@OPTION.case("unknown", "An option that there is not is refused.", severity="should", section="From the client")
async def option_unknown(client: RawClient) -> None:
    session, _ = await _options(client)
    params = {"sessionId": session, "configId": "no such option", "value": "x"}
    answer = await client.call("session/set_config_option", params)
    holds(answer.failed, "it was taken", answer)


@OPTION.case(
    "unknown-value",
    "A value that an option does not offer is refused.",
    severity="should",
    section="From the client",
)
async def option_unknown_value(client: RawClient) -> None:
    session, options = await _options(client)
    selects = [each["id"] for each in options if at(each, "type") == "select"]
    if not selects:
        unscored("it has no option with values")
    params = {"sessionId": session, "configId": selects[0], "value": "no such value"}
    answer = await client.call("session/set_config_option", params)
    holds(answer.failed, "it was taken", answer)
