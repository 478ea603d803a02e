"""The program whose disk loses power: a daemon's credentials, issued and revoked.

Arguments: a folder, the path of the ledger, a seed. A line of the ledger is a call, with the ids of all credentials
after it, or an acknowledgement.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from random import Random

import msgspec

from turnwire.clock import SystemClock
from turnwire.server.access.token_file import NAME, TokenFile
from turnwire.server.access.tokens import Role, TokenRecord

CHANGES = 60


async def main(folder: str, ledger: str, seed: str) -> None:
    chance = Random(seed)
    tokens = TokenFile(Path(folder, "data", NAME), SystemClock())
    notes = os.open(ledger, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    current: list[str] = []
    for number in range(CHANGES):
        is_new = not current or chance.random() < 0.6
        token_id = f"token-{number}" if is_new else current.pop(chance.randrange(len(current)))
        if is_new:
            current.append(token_id)
        os.write(notes, msgspec.json.encode((number, sorted(current))) + b"\n")
        if is_new:
            digest = chance.randbytes(32).hex()
            record = TokenRecord(
                id=token_id, name="a" * chance.randint(1, 900), role=Role.OWNER, digest=digest, created_at=0
            )
            await tokens.add(record, CHANGES)
        else:
            tokens.forget(token_id)
            await tokens.remove(token_id)
        os.write(notes, msgspec.json.encode((number, None)) + b"\n")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
