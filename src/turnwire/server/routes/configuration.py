"""The agent's settings for a session: options, the mode, the model. See `server.daemon.configuration`."""

from __future__ import annotations

from collections import Counter
from typing import Any

from msgspec import Struct

from turnwire.errors import (
    InvalidMode,
    InvalidOption,
    LinkBroken,
    LinkClosed,
    LocalProtocolError,
    RemoteProtocolError,
    SessionClosed,
    UnknownClient,
)
from turnwire.ids import SessionId
from turnwire.projections.translate.offers import Modes
from turnwire.projections.translate.sessions import current_offers
from turnwire.projections.translate.views import latest_in
from turnwire.server.access.tokens import Role
from turnwire.server.daemon import configuration
from turnwire.server.endpoint import Call, Endpoint, Reply, ShapeQuery


class ConfigChoice(Struct, frozen=True, rename="camel"):
    """An option and its value: one of the offered values, or true or false for a switch."""

    config_id: str
    value: str | bool


class ConfigOptions(Struct, frozen=True, rename="camel"):
    """All options with their current values."""

    config_options: list[dict[str, Any]]


class ModeChoice(Struct, frozen=True, rename="camel"):
    mode_id: str


class ApprovalMode(Struct, frozen=True):
    mode: str


class ModeChosen(Struct, frozen=True, kw_only=True, rename="camel"):
    """The chosen mode; `mode` and `modeId` are equal. It holds for this session and is not persisted elsewhere."""

    session_id: SessionId
    mode: str
    mode_id: str
    previous: str | None
    persisted: bool


class ModelChoice(Struct, frozen=True, rename="camel"):
    model_id: str


class ModelChosen(Struct, frozen=True, kw_only=True, rename="camel"):
    session_id: SessionId
    model_id: str
    previous: str | None


async def set_option(call: Call) -> Reply:
    daemon, session_id, version = call.daemon, call.session_id, call.query.shape.version
    who = await _chooser(call)
    choice: ConfigChoice = call.body
    offers = current_offers((await daemon.node.newest(session_id))[0].latest)
    if version == 2 and choice.config_id == Modes(Counter(), offers).standing_id:
        # In ACP v2 the modes of a v1 agent are one of its options.
        await configuration.set_mode(daemon, session_id, str(choice.value), who)
    else:
        await configuration.set_option(daemon, session_id, choice.config_id, choice.value, who)
    return Reply({"configOptions": latest_in((await daemon.node.newest(session_id))[0], version).config_options})


async def set_mode(call: Call) -> Reply:
    return await _set_mode(call, call.body.mode_id)


async def set_approval_mode(call: Call) -> Reply:
    return await _set_mode(call, call.body.mode)


async def _set_mode(call: Call, mode: str) -> Reply:
    previous = await configuration.set_mode(call.daemon, call.session_id, mode, await _chooser(call))
    return Reply(
        ModeChosen(session_id=call.session_id, mode=mode, mode_id=mode, previous=previous, persisted=False)
    )


async def set_model(call: Call) -> Reply:
    model_id: str = call.body.model_id
    previous = await configuration.set_model(call.daemon, call.session_id, model_id, await _chooser(call))
    return Reply(ModelChosen(session_id=call.session_id, model_id=model_id, previous=previous))


async def _chooser(call: Call) -> configuration.Chooser:
    client_id = await call.daemon.clients.known(call.session_id, call.client_id, call.who)
    return configuration.Chooser(call.who.name, client_id)


_ASKS_AGENT = (LinkBroken, LinkClosed, LocalProtocolError, RemoteProtocolError, SessionClosed, UnknownClient)

ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint(
        method="POST",
        path="/session/{session_id}/config",
        act=set_option,
        summary="Choose a value of one of the agent's options",
        role=Role.CONTROLLER,
        takes=ConfigChoice,
        query=ShapeQuery,
        gives=ConfigOptions,
        refuses=(InvalidOption, InvalidMode, *_ASKS_AGENT),
        tag="configuration",
    ),
    Endpoint(
        method="POST",
        path="/session/{session_id}/mode",
        act=set_mode,
        summary="Choose one of the agent's modes",
        role=Role.CONTROLLER,
        takes=ModeChoice,
        gives=ModeChosen,
        refuses=(InvalidMode, *_ASKS_AGENT),
        tag="configuration",
    ),
    Endpoint(
        method="POST",
        path="/session/{session_id}/approval-mode",
        act=set_approval_mode,
        summary="Choose one of the agent's modes",
        role=Role.CONTROLLER,
        takes=ApprovalMode,
        gives=ModeChosen,
        refuses=(InvalidMode, *_ASKS_AGENT),
        tag="configuration",
    ),
    Endpoint(
        method="POST",
        path="/session/{session_id}/model",
        act=set_model,
        summary="Choose one of the agent's models",
        role=Role.CONTROLLER,
        takes=ModelChoice,
        gives=ModelChosen,
        refuses=(InvalidOption, *_ASKS_AGENT),
        tag="configuration",
    ),
)
"""The routes of the agent's settings."""
