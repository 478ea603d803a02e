"""After a restart: which closing events an interrupted session still owes.

Takes the state that the log folds to; records what the death of the old owner means: its agent is gone, its
clients have left, the open turn ends with `daemon_restarted`, and the queue goes on. Never looks at how the
old owner died, so a crash at any instant, also during an earlier recovery, ends in the same facts.
"""

from __future__ import annotations

from turnwire.core import events as ev
from turnwire.core.draft import Draft
from turnwire.core.ending import lose_agent
from turnwire.core.inputs import AgentGone, Recover

RESTARTED = "daemon_restarted"


def recover(draft: Draft, given: Recover) -> None:
    """Record what is owed; nothing if nothing is."""
    for client_id in draft.state.clients:
        draft.record(ev.ClientDetached(at=given.at, client_id=client_id, reason=RESTARTED))
    lose_agent(draft, AgentGone(at=given.at, code=RESTARTED, message="the daemon was restarted while the turn ran"))
