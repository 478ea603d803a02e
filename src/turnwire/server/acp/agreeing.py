"""`initialize`: what a client can take, and what it is offered.

Takes the client's params; gives its profile, its dialect and our answer. What is offered is the agent's own, in the
client's words, and what turnwire adds to every agent. An agent that cannot be had, or is slow to start, is no
reason to keep the client waiting: it is offered ours, and hears of the trouble when it opens a session.
"""

from __future__ import annotations

from typing import NamedTuple

from msgspec import DecodeError, Raw, Struct, field, json

from turnwire import __version__
from turnwire.core.face.dialect import Dialect, Emission
from turnwire.core.translate.capabilities import Host
from turnwire.core.translate.handshake import initialize_result, read_client
from turnwire.core.translate.profile import ClientProfile
from turnwire.server.daemon import Daemon
from turnwire.server.daemon.creation import profile_of


class Agreed(NamedTuple):
    """What holds for a connection from its `initialize` on."""

    client: ClientProfile
    dialect: Dialect
    shows_offsets: bool
    result: Raw


class _Ours(Struct, frozen=True, rename="camel"):
    event_ids: bool | dict[str, Raw] = False


class _Vendors(Struct, frozen=True):
    turnwire: _Ours = _Ours()


class _Capabilities(Struct):
    meta: _Vendors = field(default=_Vendors(), name="_meta")


async def agree(daemon: Daemon, params: Raw) -> Agreed:
    """The agreement. Raises `RemoteProtocolError` for a client that speaks no version of ours."""
    settings = daemon.settings
    client = read_client(params, newest=settings.protocol)
    emission = Emission(settings.turn_complete)
    dialect = Dialect(
        version=client.version,
        turn_complete=client.turn_complete,
        emission=emission,
        lifecycle=client.lifecycle,
        boolean_options=client.boolean_options,
    )
    host = Host(
        version=__version__,
        turn_complete=emission is not Emission.OFF,
        passed=frozenset({"additionalDirectories", "fork"}),
    )
    result = initialize_result(await profile_of(daemon), client, host)
    return Agreed(client, dialect, _wants_offsets(client.raw), result)


def _wants_offsets(capabilities: Raw) -> bool:
    """Whether the client asked to see the offsets of events, to resume by them where no transport has them."""
    try:
        return json.decode(capabilities, type=_Capabilities).meta.turnwire.event_ids is not False
    except DecodeError:
        return False
