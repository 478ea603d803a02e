"""Conditions after a fault run in addition to those of ledger and witness: of agents, owners and fences."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import anyio
from anyio import to_thread
from tests.cluster.nodes import Cluster, Mark
from tests.support.postgres import schema_of

LOOK_S = 0.3
WRITERS = """
create table if not exists seen_writers (
    pid integer, started timestamptz, owner bigint, name text, head bigint, primary key (pid, started, owner)
);
create or replace function note_writer() returns trigger language plpgsql as $$
begin
    insert into seen_writers
    select pid, backend_start, coalesce(new.owner, 0), new.name, new.head
    from pg_stat_get_activity(pg_backend_pid()) on conflict do nothing;
    return null;
end $$;
drop trigger if exists note_writer on tw_sessions;
create trigger note_writer after update on tw_sessions
for each row when (new.head <> old.head) execute function note_writer();
"""
"""The owner for which each connection appends. A connection belongs to one incarnation, so it appends for one owner
only.
"""
SEEN = """
select 'gone', id::text, '', '', '' from tw_nodes where gone
union all select 'owned', name, fence::text, coalesce(owner, 0)::text, '' from tw_sessions
union all select 'stranger', name, head::text, owner::text, began::text from (
    select *, first_value(owner) over (partition by pid, started order by owner) as began from seen_writers
) w where owner <> began
"""
"""One query for one instant: each query is a separate process."""


def one_agent_at_a_time(marks: Sequence[Mark]) -> Iterator[str]:
    """Check that no process works for a session after another one has begun to, on any node.

    Sessions are those of clients: the agent's own id for one may change when another process takes over.
    """
    last: dict[str, tuple[int, int, str]] = {}
    over: dict[str, dict[int, int]] = {}
    for when, pid, node, _, _, tag in sorted(marks):
        session = tag.rpartition("-")[0]
        _, current, _ = last.get(session, (0, pid, node))
        left = over.setdefault(session, {})
        if pid in left:
            after_ms = (when - left[pid]) / 1e6
            yield f"{node} acts for {session} ({tag}) {after_ms:.1f} ms after process {current} began to"
            continue
        if pid != current:
            left[current] = when
        last[session] = when, pid, node


@dataclass
class Owners:
    """Observer of session owners during a run."""

    cluster: Cluster
    fences: dict[str, int] = field(default_factory=dict[str, int])
    gone: set[str] = field(default_factory=set[str])
    changes: int = 0
    """Number of observed changes of owner."""
    _owned: dict[str, str] = field(default_factory=dict[str, str])
    complaints: list[str] = field(default_factory=list[str])

    async def watch(self) -> None:
        """Until cancelled. While the database is away there is nothing to see."""
        are_noted = False
        while True:
            with anyio.CancelScope(shield=True):
                are_noted = are_noted or await to_thread.run_sync(self._note_writers)
                if are_noted:
                    await to_thread.run_sync(self.look)
            await anyio.sleep(LOOK_S)

    def _note_writers(self) -> bool:
        try:
            self.cluster.server.ask(WRITERS, schema_of(self.cluster.log))
        except (subprocess.SubprocessError, OSError):
            # There are no tables yet.
            return False
        return True

    def look(self) -> None:
        try:
            seen = self.cluster.server.ask(SEEN, schema_of(self.cluster.log))
        except (subprocess.SubprocessError, OSError):
            return
        gone = {row[1] for row in seen if row[0] == "gone"}
        self.complaints += [f"life {each} was gone and came back" for each in self.gone - gone]
        for name, fence, owner in (row[1:4] for row in seen if row[0] == "owned"):
            if int(fence) < self.fences.get(name, 0):
                self.complaints.append(f"the fence of {name} went back to {fence} from {self.fences[name]}")
            if owner in self.gone and self._owned.get(name) != owner:
                self.complaints.append(f"life {owner} is gone and came to own {name}")
            self.changes += owner != "0" and self._owned.get(name, owner) != owner
            self.fences[name] = int(fence)
            self._owned[name] = owner
        self.gone = gone
        for name, head, owner, began in (row[1:] for row in seen if row[0] == "stranger"):
            complaint = f"L12 one connection appended for the lives {began} and {owner}, to {name} up to {head}"
            if complaint not in self.complaints:
                self.complaints.append(complaint)
