"""A session that another node has: who that is, and what is asked of it in place of this one.

A node acts for the sessions that it owns. Whatever else changes a session, or asks something of its agent, is tried
here first, which claims what is free; the refusal names the owner, and that one is asked. Who owned a session last
time is remembered until it says that it does not.

    E1  Each thing is done once. An ask has a name, and a node that is asked again by the same name gives the answer
        of the first time. If the answer is lost and the session has another owner by then, the log says whether a
        prompt was taken; what may be done twice is asked again; the rest is refused as not known.
    E2  Nobody waits for ever. An owner that does not answer is given up when its lease is over and the session can
        be claimed; if that takes longer than `request_retry_s`, the answer is `SessionMoving`.
    E3  Order stays. An answer comes with the owner's head; what is told behind it waits for that event.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from itertools import count
from typing import Generic, NamedTuple, Protocol, TypeAlias, TypeVar, cast

import anyio
from anyio.abc import TaskGroup
from msgspec import Raw

from turnwire.core.codec import decode, stored_prefix
from turnwire.core.events import PromptAccepted
from turnwire.core.inputs import (
    AnswerPermission,
    AnyInput,
    Archive,
    Attach,
    Cancel,
    ChangeSetup,
    Close,
    Detach,
    HoldQueue,
    Prompt,
    Settle,
)
from turnwire.core.queue import Accepted
from turnwire.core.state import Setup
from turnwire.errors import AnswerLost, NodeUnreachable, NotOwner, SessionMoving, TurnwireError
from turnwire.ids import AgentName, ClientId, PromptId, SessionId
from turnwire.limits import Limits
from turnwire.log.base import EventLog, Position
from turnwire.log.owners import Life
from turnwire.runtime.agent_connection import Listener
from turnwire.runtime.agent_pool import AgentPools
from turnwire.runtime.client_requests import Provider
from turnwire.runtime.clock import Clock
from turnwire.runtime.evidence import Explanation
from turnwire.runtime.node_agents import Find, NodeAgents
from turnwire.wire.jsonrpc import Failure, Result

T = TypeVar("T")

ASKED_AT_MOST = 3
"""How often other nodes may say that they do not have the session: it moves faster than it can be followed."""
PAUSE_S = 0.2
"""Between two looks for an owner: much shorter than a lease, and no load for the database."""
KEPT_OWNERS = 4096
"""Sessions whose owners are remembered, newest kept; of the others the log is asked."""

_REPEATABLE = (AnswerPermission, Archive, Attach, ChangeSetup, Close, Detach, HoldQueue, Settle)
"""What is the same done once or twice."""


class Reply(NamedTuple):
    """What an owner answers."""

    answer: object
    head: int
    """Of the session's log, with all that the answer speaks of."""


class Birth(NamedTuple):
    """A session that is to be."""

    session_id: SessionId
    cwd: str
    setup: Setup
    fork_of: SessionId | None = None
    context: str | None = None
    """The conversation before it as text, for an agent that has not had it."""
    author: str | None = None
    title: str | None = None


class OtherNode(Protocol):
    """Another node. What is asked of it is done there, if it has the session or can claim it.

    Raises what the session or its agent refuses; `NotOwner` if the session is not its own; `NodeUnreachable` if it
    was not asked, and `AnswerLost` if its answer was lost.
    """

    async def submit(self, session_id: SessionId, input: AnyInput, ask: int) -> Reply: ...

    async def accept(self, session_id: SessionId, prompt: Prompt, ask: int) -> Reply:
        """`submit` for a prompt whose agent is not asked before `told`, or before the link is lost."""
        ...

    def told(self, prompt_id: PromptId) -> None:
        """The client of an accepted prompt has its answer. Never raises."""
        ...

    async def delete(self, session_id: SessionId) -> None: ...

    async def retain(self, session_id: SessionId, keep_events: int) -> int: ...

    async def fork(self, birth: Birth) -> None:
        """A session that goes on from one of its own, at its agent."""
        ...

    async def explain(self, session_id: SessionId, *, for_owner: bool) -> Explanation: ...

    async def authenticate(self, session_id: SessionId, method_id: str) -> None: ...

    async def configure(self, session_id: SessionId, method: str, params: dict[str, object]) -> Raw: ...

    async def wake(self, session_id: SessionId) -> None: ...

    async def call(self, session_id: SessionId, method: str, params: dict[str, Raw]) -> Result | Failure: ...

    async def notify(self, session_id: SessionId, method: str, params: dict[str, Raw]) -> None: ...

    async def offer(
        self, session_id: SessionId, client_id: ClientId, provider: Provider, *, client: object, owner: str | None
    ) -> End:
        """Ends with the link, too; so does `listen`."""
        ...

    async def listen(self, session_id: SessionId, listener: Listener) -> End | None: ...

    async def gone(self) -> None:
        """Return once the link to it is lost."""
        ...


class OtherNodes(Protocol):
    """The ways to other nodes."""

    def lives(self) -> Sequence[Life]:
        """Those that live, as far as this node knows; it may be among them."""
        ...

    async def reach(self, life: int) -> OtherNode:
        """That one. Raises `NodeUnreachable` if it cannot be reached."""
        ...


Claiming: TypeAlias = Callable[[SessionId], Awaitable[object]]
"""Makes a session ours. Raises `NotOwner`."""
Told: TypeAlias = Callable[[], None]
End: TypeAlias = Callable[[], None]
"""Ends what was begun."""


class Elsewhere:
    """Sessions of other nodes, asked for by one node."""

    def __init__(self, life: int, nodes: OtherNodes, log: EventLog, clock: Clock, limits: Limits) -> None:
        self.life = life
        self.nodes = nodes
        self.clock = clock
        self.limits = limits
        self._log = log
        self.lives: dict[SessionId, int] = {}
        """Who had a session when it was last asked for."""
        self._heads: dict[SessionId, int] = {}
        """How far the log of a session surely goes, as its owner told."""
        self.reach: Callable[[SessionId, int], Awaitable[None]] = _seen_already
        """Returns once whoever reads a session here can see this event of it."""
        self._asks = count(1)
        self.forwards: Counter[str] = Counter()
        """What other nodes were asked for, by how that ended."""

    async def submit(
        self, session_id: SessionId, input: AnyInput, here: Callable[[], Awaitable[object]], claim: Claiming
    ) -> object:
        """`Node.submit`, wherever the session is."""
        ask = next(self._asks)

        async def there(node: OtherNode) -> object:
            return await self._answer(session_id, node.submit(session_id, input, ask))

        return await _Forwarded(self, session_id, here, there, partial(self._done, session_id, input), claim).run()

    async def accept(
        self,
        session_id: SessionId,
        prompt: Prompt,
        here: Callable[[], Awaitable[tuple[Accepted, Told]]],
        claim: Claiming,
    ) -> tuple[Accepted, Told]:
        """`Node.accept`, wherever the session is."""
        ask = next(self._asks)

        async def there(node: OtherNode) -> tuple[Accepted, Told]:
            told = partial(node.told, prompt.prompt_id)
            try:
                accepted = cast("Accepted", await self._answer(session_id, node.accept(session_id, prompt, ask)))
            except BaseException:
                # It may be accepted there, and nobody here waits for that answer any more.
                told()
                raise
            return accepted, told

        async def done() -> tuple[Accepted, Told] | None:
            accepted = await self._accepted(session_id, prompt)
            return None if accepted is None else (accepted, _nobody_waits)

        return await _Forwarded(self, session_id, here, there, done, claim).run()

    async def act(
        self,
        session_id: SessionId,
        here: Callable[[], Awaitable[T]],
        there: Callable[[OtherNode], Awaitable[T]],
        *,
        repeatable: bool,
    ) -> T:
        """Do something where the session is: `here`, which raises `NotOwner` for one that is not ours, or `there`.

        `repeatable`: it may be done twice. Raises `SessionMoving`; and `AnswerLost`, if it may have been done.
        """
        return await _Forwarded(self, session_id, here, there, _not_known if repeatable else None).run()

    def learn(self, session_id: SessionId, life: int | None) -> None:
        """Another node has the session, or nobody knows who."""
        self.lives.pop(session_id, None)
        if life is not None and life != self.life:
            self.lives[session_id] = life
            _trim(self.lives)

    async def _answer(self, session_id: SessionId, asking: Awaitable[Reply]) -> object:
        reply = None
        with anyio.move_on_after(self.limits.request_retry_s):
            reply = await asking
            await self.reach(session_id, reply.head)
        if reply is None:
            raise AnswerLost("the session's node did not answer in time", session_id=session_id)
        self._heads[session_id] = max(reply.head, self._heads.pop(session_id, 0))
        _trim(self._heads)
        return reply.answer

    async def _done(self, session_id: SessionId, input: AnyInput) -> object:
        """The answer to what an owner before may have taken; none if it can be asked again."""
        if isinstance(input, Prompt):
            return await self._accepted(session_id, input)
        if isinstance(input, _REPEATABLE) or (isinstance(input, Cancel) and input.prompt_id is not None):
            return None
        raise SessionMoving(
            "the session went to another node, and it is not known whether this was done; look, then ask again",
            session_id=session_id,
        )

    async def _accepted(self, session_id: SessionId, prompt: Prompt) -> Accepted | None:
        """Whether the log has the prompt: its id was made for this very request."""
        begins, named = stored_prefix(PromptAccepted, any_version=True), prompt.prompt_id.encode()
        head = await self._log.head(session_id)
        at = max(self._heads.get(session_id, 0), head.first - 1)
        while page := await self._log.read(
            session_id,
            Position(head.epoch, at),
            max_events=self.limits.page_events,
            max_bytes=self.limits.page_bytes,
        ):
            at = page[-1].offset
            for _, body in page:
                if body.startswith(begins) and named in body:
                    event = decode(body)
                    if isinstance(event, PromptAccepted) and event.prompt_id == prompt.prompt_id:
                        return Accepted(event.prompt_id, event.after_offset)
        return None


class _Forwarded(Generic[T]):
    """One request on its way to the owner of its session, wherever that is by now."""

    def __init__(
        self,
        elsewhere: Elsewhere,
        session_id: SessionId,
        here: Callable[[], Awaitable[T]],
        there: Callable[[OtherNode], Awaitable[T]],
        done: Callable[[], Awaitable[T | None]] | None,
        claim: Claiming | None = None,
    ) -> None:
        """`done`: the answer, if an owner before has done it; it raises if that cannot be known.

        Without it, what may have been done is not asked again. `claim` goes before the look, so that nobody else
        does it meanwhile.
        """
        self._elsewhere = elsewhere
        self._session_id = session_id
        self._here = here
        self._there = there
        self._done = done
        self._claim = claim
        self._until = elsewhere.clock.monotonic() + elsewhere.limits.request_retry_s
        self._doubt: int | None = None
        """The life that may have done it, and whose answer was lost."""
        self._refusals: Counter[int] = Counter()
        """How often each life has said that the session is not its own."""

    async def run(self) -> T:
        clock = self._elsewhere.clock
        while True:
            life = self._elsewhere.lives.get(self._session_id)
            try:
                return await self._do(life)
            except NotOwner as refusal:
                self._refused(refusal, life)
                if life is None:
                    continue
            except NodeUnreachable:
                # It was not asked. If it is gone the session can be claimed, at the latest when its lease is over.
                self._elsewhere.learn(self._session_id, None)
            except AnswerLost:
                if self._done is None:
                    raise
                self._doubt = life
            if clock.monotonic() >= self._until:
                return await self._give_up()
            await clock.sleep(PAUSE_S)

    async def _do(self, life: int | None) -> T:
        if self._doubt not in {None, life}:
            if life is None and self._claim is not None:
                await self._claim(self._session_id)
            done = None if self._done is None else await self._done()
            if done is not None:
                return done
            self._doubt = None
        if life is None:
            return await self._here()
        result = "abandoned"
        try:
            answer = await self._there(await self._elsewhere.nodes.reach(life))
            result = "answered"
        except NodeUnreachable:
            result = "unreachable"
            raise
        except AnswerLost:
            result = "lost"
            raise
        except TurnwireError:
            result = "refused"
            raise
        finally:
            self._elsewhere.forwards[result] += 1
        return answer

    def _refused(self, refusal: NotOwner, life: int | None) -> None:
        """Somebody does not have the session. Who has, if that is known. Raises `SessionMoving`."""
        if life is not None:
            self._refusals[life] += 1
            if self._refusals.total() > ASKED_AT_MOST:
                raise _moving(self._session_id)
        owner = refusal.context.get("owner")
        if life is None and not isinstance(owner, int):
            owner = self._of_its_place(refusal.context.get("place"))
        self._elsewhere.learn(self._session_id, owner if isinstance(owner, int) and owner != life else None)

    def _of_its_place(self, place: object) -> int:
        """A node that may claim the session, which nobody has and this one may not."""
        here = self._elsewhere.life
        for each in self._elsewhere.nodes.lives():
            fits = place in {None, each.place} and each.number != here and not each.draining
            if fits and not self._refusals[each.number]:
                return each.number
        raise SessionMoving(
            "no node that has this session's files is there now; start one of its place",
            session_id=self._session_id,
        )

    async def _give_up(self) -> T:
        done = await self._done() if self._doubt is not None and self._done is not None else None
        if done is None:
            raise _moving(self._session_id)
        return done


def _moving(session_id: SessionId) -> SessionMoving:
    return SessionMoving(
        "the session's node does not answer; another one takes it over soon", session_id=session_id
    )


async def _not_known() -> None:
    """Nobody can tell whether it was done, and nobody minds."""


def _nobody_waits() -> None: ...


async def _seen_already(session_id: SessionId, head: int) -> None: ...


def _trim(kept: dict[SessionId, int]) -> None:
    while len(kept) > KEPT_OWNERS:
        del kept[next(iter(kept))]


class AgentsAnywhere(NodeAgents):
    """`NodeAgents`, also for sessions of other nodes."""

    def __init__(
        self, find: Find, pools: AgentPools, clock: Clock, limits: Limits, elsewhere: Elsewhere, tasks: TaskGroup
    ) -> None:
        super().__init__(find, pools, clock, limits)
        self._here = NodeAgents(find, pools, clock, limits)
        """Those of this node's own sessions: others raise `NotOwner`."""
        self._elsewhere = elsewhere
        self._tasks = tasks

    async def explain(self, session_id: SessionId, *, for_owner: bool = True) -> Explanation:
        return await self._elsewhere.act(
            session_id,
            partial(self._here.explain, session_id, for_owner=for_owner),
            lambda node: node.explain(session_id, for_owner=for_owner),
            repeatable=True,
        )

    async def authenticate(
        self, method_id: str, *, name: AgentName | None = None, session_id: SessionId | None = None
    ) -> None:
        here = partial(self._here.authenticate, method_id, name=name, session_id=session_id)
        if session_id is None:
            await here()
            return
        named = session_id
        await self._elsewhere.act(named, here, lambda node: node.authenticate(named, method_id), repeatable=False)

    async def configure(self, session_id: SessionId, method: str, params: dict[str, object]) -> Raw:
        return await self._elsewhere.act(
            session_id,
            partial(self._here.configure, session_id, method, params),
            lambda node: node.configure(session_id, method, params),
            repeatable=True,
        )

    async def wake(self, session_id: SessionId) -> None:
        await self._elsewhere.act(
            session_id, partial(self._here.wake, session_id), lambda node: node.wake(session_id), repeatable=True
        )

    async def call(
        self,
        session_id: SessionId | None,
        method: str,
        params: dict[str, Raw],
        *,
        name: AgentName | None = None,
    ) -> Result | Failure:
        here = partial(self._here.call, session_id, method, params, name=name)
        if session_id is None:
            return await here()
        named = session_id
        return await self._elsewhere.act(
            named, here, lambda node: node.call(named, method, params), repeatable=False
        )

    async def notify(
        self,
        session_id: SessionId | None,
        method: str,
        params: dict[str, Raw],
        *,
        name: AgentName | None = None,
    ) -> None:
        here = partial(self._here.notify, session_id, method, params, name=name)
        if session_id is None:
            await here()
            return
        named = session_id
        await self._elsewhere.act(named, here, lambda node: node.notify(named, method, params), repeatable=False)

    async def offer(
        self,
        session_id: SessionId,
        client_id: ClientId,
        provider: Provider,
        *,
        client: object = None,
        owner: str | None = None,
    ) -> End:
        return await self._last(
            session_id,
            lambda: self._here.offer(session_id, client_id, provider, client=client, owner=owner),
            lambda node: node.offer(session_id, client_id, provider, client=client, owner=owner),
        )

    async def listen(self, session_id: SessionId, listener: Listener) -> End | None:
        return await self._last(
            session_id,
            lambda: self._here.listen(session_id, listener),
            lambda node: node.listen(session_id, listener),
        )

    async def _last(
        self,
        session_id: SessionId,
        here: Callable[[], Awaitable[End | None]],
        there: Callable[[OtherNode], Awaitable[End | None]],
    ) -> End:
        lasting = _Lasting(self._elsewhere, session_id, here, there)
        node = await lasting.begin()
        if node is not None:
            self._tasks.start_soon(lasting.keep, node)
        return lasting.end


class _Lasting:
    """Something that the owner of a session has until its end, whoever that is: a lost link is made again."""

    def __init__(
        self,
        elsewhere: Elsewhere,
        session_id: SessionId,
        here: Callable[[], Awaitable[End | None]],
        there: Callable[[OtherNode], Awaitable[End | None]],
    ) -> None:
        self._elsewhere = elsewhere
        self._session_id = session_id
        self._here = here
        self._there = there
        self._scope = anyio.CancelScope()
        self._undo: End | None = None

    async def begin(self) -> OtherNode | None:
        """Give it to the owner; that is the node, or none if it is here."""

        async def here() -> None:
            self._undo = await self._here()

        async def there(node: OtherNode) -> OtherNode:
            self._undo = await self._there(node)
            return node

        return await self._elsewhere.act(self._session_id, here, there, repeatable=True)

    async def keep(self, node: OtherNode | None) -> None:
        """Give it to the owner again whenever the link to it is lost."""
        with self._scope:
            while node is not None:
                await node.gone()
                try:
                    node = await self.begin()
                except SessionMoving:
                    continue
                except TurnwireError:
                    return
        if self._scope.cancel_called:
            self.end()

    def end(self) -> None:
        """It is over."""
        self._scope.cancel()
        if self._undo is not None:
            self._undo()
            self._undo = None
