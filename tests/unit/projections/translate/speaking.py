"""Short functions for updates and their translations, and validation against ACP's own schema.

Input and output are Python values, so that a test reads like the table it shows. The schema comes from the
published JavaScript SDK, where it is installed.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import jsonschema_rs
import msgspec
from msgspec import Raw
from tests.interop.peers import PEERS, ROOT, absent

from turnwire.ids import PromptId
from turnwire.projections.translate.updates import Translator

SCHEMAS = PEERS / "node/node_modules/@agentclientprotocol/sdk/schema"


def raw(value: object) -> Raw:
    return Raw(msgspec.json.encode(value))


def plain(value: Raw) -> Any:
    return msgspec.json.decode(value)


def update(kind: str, /, **members: object) -> dict[str, object]:
    return {"sessionUpdate": kind, **members}


def text(words: str) -> dict[str, str]:
    return {"type": "text", "text": words}


def say(translator: Translator, kind: str, /, *, turn: str | None = "p1", **members: object) -> list[Any]:
    """Translate one update of the agent; return the client's updates."""
    told = translator.take(raw(update(kind, **members)), turn=None if turn is None else PromptId(turn))
    return [plain(each) for each in told]


@cache
def _validator(version: int, name: str) -> jsonschema_rs.Validator:
    path = SCHEMAS / f"v{version}" / "schema.json"
    if not path.exists():
        absent(f"{path.relative_to(ROOT)} is not there; run: make peers")
    definitions = msgspec.json.decode(path.read_bytes())["$defs"]
    return jsonschema_rs.validator_for({"$ref": f"#/$defs/{name}", "$defs": definitions})


def complaints(version: int, name: str, value: object) -> list[str]:
    """Return the violations of ACP's schema of that version in a value. Skips where the schema is not installed."""
    return [each.message for each in _validator(version, name).iter_errors(value)]
