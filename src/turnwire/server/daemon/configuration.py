"""Agent settings that a client selects (options, the mode, the model), and their propagation to all other clients.

A selection is checked against the agent's offer, then sent to the agent; only a selection that the agent accepted
is recorded. If an agent has both modes and an option for them, the option is used, as ACP requires. The same holds
for models.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, cast

import anyio
import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from turnwire.errors import InvalidMode, InvalidOption, RemoteProtocolError
from turnwire.ids import ClientId, SessionId
from turnwire.server.daemon.daemon import Daemon
from turnwire.session.choices import option_params, options_update
from turnwire.session.inputs import AgentUpdate, ModelSet, ModeSet, OptionChosen
from turnwire.session.queue import CHOICES_LOST
from turnwire.wire.jsonrpc import UNREADABLE
from turnwire.wire.methods import SESSION_SET_CONFIG_OPTION, SESSION_SET_MODE, SESSION_SET_MODEL
from turnwire.wire.peek import peek_update


class Chooser(NamedTuple):
    """The client that selects, as recorded in the log."""

    author: str
    client_id: ClientId | None = None


NAMED = 20
"""Number of allowed values that an error message names; all of them are in its `allowed`."""


class Option(NamedTuple):
    """A configuration option that the agent offers."""

    config_id: str
    category: str | None
    current: str | bool | None
    allowed: tuple[str, ...]
    """The allowed values; empty for a switch."""


class _Taken(Struct, rename="camel"):
    config_options: Raw | UnsetType = UNSET


async def set_option(daemon: Daemon, session_id: SessionId, config_id: str, value: str | bool, who: Chooser) -> Raw:
    """Select a value and return all options with their current values.

    Raises `InvalidOption`, and the errors of `NodeAgents.configure`.
    """
    options = read_options((await daemon.node.newest(session_id))[0].latest.config_options)
    option = next((each for each in options if each.config_id == config_id), None)
    if option is None:
        allowed = tuple(each.config_id for each in options)
        raise InvalidOption(f"the agent offers no such option; {_offered(allowed)}", allowed=allowed)
    if isinstance(value, bool) != isinstance(option.current, bool) or (
        isinstance(value, str) and option.allowed and value not in option.allowed
    ):
        raise InvalidOption(
            f"the option does not take this value; {_offered(option.allowed)}", allowed=option.allowed
        )
    return await _ask_option(daemon, session_id, option, value, who)


async def set_mode(daemon: Daemon, session_id: SessionId, mode: str, who: Chooser) -> str | None:
    """Select a mode and return the previous one. Raises `InvalidMode`, and the errors of `NodeAgents.configure`."""
    latest = (await daemon.node.newest(session_id))[0].latest
    option = _of_category(latest.config_options, "mode")
    allowed = option.allowed if option is not None else _ids(latest.modes, "id")
    if mode not in allowed:
        raise InvalidMode(f"the agent does not offer this mode; {_offered(allowed)}", allowed=allowed)
    if option is not None:
        await _ask_option(daemon, session_id, option, mode, who)
        previous = _text(option.current)
    else:
        await _configure(daemon, session_id, SESSION_SET_MODE, {"modeId": mode})
        previous = latest.mode
    chosen = ModeSet(
        at=daemon.clock.now_ms(),
        mode=mode,
        previous=previous,
        author=who.author,
        client_id=who.client_id,
        config_id=None if option is None else option.config_id,
    )
    await daemon.node.submit(session_id, chosen)
    return previous


async def set_model(daemon: Daemon, session_id: SessionId, model_id: str, who: Chooser) -> str | None:
    """Select a model and return the previous one. Raises `InvalidOption`, and the errors of
    `NodeAgents.configure`.
    """
    latest = (await daemon.node.newest(session_id))[0].latest
    option = _of_category(latest.config_options, "model")
    allowed = option.allowed if option is not None else _ids(latest.models, "modelId")
    if model_id not in allowed:
        raise InvalidOption(f"the agent does not offer this model; {_offered(allowed)}", allowed=allowed)
    if option is not None:
        await _ask_option(daemon, session_id, option, model_id, who)
        previous = _text(option.current)
    else:
        await _configure(daemon, session_id, SESSION_SET_MODEL, {"modelId": model_id})
        previous = latest.model
    chosen = ModelSet(
        at=daemon.clock.now_ms(),
        model_id=model_id,
        previous=previous,
        author=who.author,
        client_id=who.client_id,
        config_id=None if option is None else option.config_id,
    )
    await daemon.node.submit(session_id, chosen)
    return previous


async def _ask_option(
    daemon: Daemon, session_id: SessionId, option: Option, value: str | bool, who: Chooser
) -> Raw:
    version = (await daemon.node.peek(session_id)).state.agent_version
    params = option_params(option.config_id, value, version)
    result = await _configure(daemon, session_id, SESSION_SET_CONFIG_OPTION, params)
    try:
        options = msgspec.json.decode(result, type=_Taken).config_options
    except UNREADABLE:
        options = UNSET
    if options is UNSET:
        raise RemoteProtocolError("the agent took the option and did not say what all options are now")
    # The agent notifies only the requesting client; this update reaches all clients.
    update = options_update(options)
    now = daemon.clock.now_ms()
    await daemon.node.submit(session_id, AgentUpdate(at=now, update=update, peek=peek_update(update)))
    chosen = OptionChosen(
        at=now, config_id=option.config_id, value=value, author=who.author, client_id=who.client_id
    )
    await daemon.node.submit(session_id, chosen)
    return options


async def _configure(daemon: Daemon, session_id: SessionId, method: str, params: dict[str, object]) -> Raw:
    state = (await daemon.node.peek(session_id)).state
    if state.held == CHOICES_LOST and state.agent is None:
        # Nothing else would bring the agent back: prompts wait for this choice.
        await daemon.node.agents.wake(session_id)
    with anyio.move_on_after(daemon.limits.initialize_s):
        return await daemon.node.agents.configure(session_id, method, params)
    raise RemoteProtocolError("the agent did not answer in time; look at the session's settings, then try again")


# -- what the agent offered ----------------------------------------------------------------------------------


def read_options(offered: Raw | UnsetType) -> list[Option]:
    """Return the well-formed options; others are not offered."""
    return [option for each in _objects(offered) if (option := _option(each)) is not None]


def _option(offered: dict[str, Any]) -> Option | None:
    # v1 uses `id` and v2 `configId`.
    config_id, category, current = (
        offered.get("configId", offered.get("id")),
        offered.get("category"),
        offered.get("currentValue"),
    )
    if not isinstance(config_id, str):
        return None
    values = tuple(_values(offered.get("options")))
    return Option(config_id, _text(category), current if isinstance(current, str | bool) else None, values)


def _values(choices: object) -> Iterator[str]:
    """Return the values of a select, grouped or not."""
    if not isinstance(choices, list):
        return
    for each in cast("list[object]", choices):
        if not isinstance(each, dict):
            continue
        entry = cast("dict[str, object]", each)
        value = entry.get("value")
        if isinstance(value, str):
            yield value
        yield from _values(entry.get("options"))


def _offered(allowed: tuple[str, ...]) -> str:
    """Return the allowed values as text, shortened: an agent may offer hundreds of models."""
    named = ", ".join(repr(each) for each in allowed[:NAMED])
    more = f" and {len(allowed) - NAMED} more" if len(allowed) > NAMED else ""
    return f"choose one of {named}{more}" if allowed else "it offers none"


def _of_category(offered: Raw | UnsetType, category: str) -> Option | None:
    return next((each for each in read_options(offered) if each.category == category and each.allowed), None)


def _ids(offered: Raw | UnsetType, key: str) -> tuple[str, ...]:
    return tuple(found for each in _objects(offered) if isinstance(found := each.get(key), str))


def _objects(offered: Raw | UnsetType) -> list[dict[str, Any]]:
    if offered is UNSET:
        return []
    try:
        return msgspec.json.decode(offered, type=list[dict[str, Any]])
    except UNREADABLE:
        return []


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
