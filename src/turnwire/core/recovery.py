"""After a restart: which closing events an interrupted session still owes.

Takes the state that the log folds to; records what the death of the old owner means: its agent is gone, the open
turn ends with `daemon_restarted`, and the queue goes on, also one that was held for the stop. Clients keep their
ids: they come back with them. Never looks at how the old owner died, so a crash at any instant, also during an
earlier recovery, ends in the same facts.
"""

from __future__ import annotations

from turnwire.core import events as ev
from turnwire.core.draft import Draft
from turnwire.core.ending import RESTARTED, lose_agent
from turnwire.core.inputs import AgentGone, Recover
from turnwire.core.queue import STOPPING, arm_time_limit


def recover(draft: Draft, given: Recover) -> None:
    """Record what is owed; nothing if nothing is."""
    if draft.state.held == STOPPING:
        draft.record(ev.QueueReleased(at=given.at))
    during = "" if draft.state.turn is None else " while the turn ran"
    lose_agent(draft, AgentGone(at=given.at, code=RESTARTED, message=f"the daemon was restarted{during}"))
    for each in (draft.state.turn, *draft.state.queue):
        if each is not None:
            arm_time_limit(draft, given.at, each)
