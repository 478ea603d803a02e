"""The store of an adapted agent: what the object keeps itself is listed by the object.

Takes and gives what `turnwire.agent.store` says; everything but the list is another store's. Never asks the object
for a list that it does not offer.
"""

from __future__ import annotations

from collections.abc import Sequence

from turnwire.agent.adapt_sessions import AdaptedSessions
from turnwire.agent.store import PAGE, Kept, Page, SessionStore
from turnwire.agent.words import Json


class AdaptedStore:
    """A store whose list is the object's, if it has one."""

    def __init__(self, inner: SessionStore, sessions: AdaptedSessions) -> None:
        self._inner = inner
        self._sessions = sessions

    async def save(self, record: Kept) -> None:
        """Keep a session."""
        await self._inner.save(record)

    async def append(self, session_id: str, updates: Sequence[bytes]) -> None:
        """Add to a history. Raises `SessionNotFound`."""
        await self._inner.append(session_id, updates)

    async def load(self, session_id: str) -> Kept | None:
        """A session with its history."""
        return await self._inner.load(session_id)

    async def list(self, cwd: str | None = None, cursor: str | None = None, limit: int = PAGE) -> Page:
        """A page of sessions. Raises `RequestRefused`, `AgentFailure` for a bad cursor."""
        if not self._sessions.abilities.list:
            return await self._inner.list(cwd, cursor, limit)
        asked = {name: value for name, value in (("cwd", cwd), ("cursor", cursor)) if value is not None}
        answer = await self._sessions.ask("session/list", asked)
        return Page([_kept(each) for each in answer.get("sessions") or ()], answer.get("nextCursor"))

    async def delete(self, session_id: str) -> None:
        """Forget a session. v1 has no word for it, so the object keeps what it keeps."""
        await self._inner.delete(session_id)


def _kept(listed: Json) -> Kept:
    return Kept(
        id=listed["sessionId"],
        cwd=listed["cwd"],
        directories=tuple(listed.get("additionalDirectories") or ()),
        title=listed.get("title"),
        updated_at=listed.get("updatedAt") or "",
    )
