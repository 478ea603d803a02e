"""Sessions of other nodes: finding the owner and forwarding requests to it.

A node acts for the sessions that it owns. Any other operation that changes a session or needs its agent is tried
here first, which claims a free session; the rejection names the owner, and the request is forwarded to it. The last
known owner of a session is cached until it denies owning it.

    E1  Each request is executed once. A request has an id, and a node that receives the same id again returns its
        first answer. If the answer is lost and the session has another owner by then, the log decides if a prompt
        was accepted; repeatable requests are sent again; all others are rejected as unknown.
    E2  Every wait is bounded. An owner that does not answer is given up when its lease is over and the session can
        be claimed; if that takes longer than `request_retry_s`, the answer is `SessionMoving`.
    E3  Order is preserved. An answer carries the owner's head; messages sent after it wait for that event.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from itertools import count
from typing import Generic, NamedTuple, Protocol, TypeAlias, TypeVar, cast

import anyio
from anyio.abc import TaskGroup

from turnwire.clock import Clock
from turnwire.errors import AnswerLost, NodeUnreachable, NotOwner, SessionMoving, TurnwireError
from turnwire.ids import PromptId, SessionId
from turnwire.limits import Limits
from turnwire.log.base import EventLog, Position
from turnwire.log.owners import Life
from turnwire.runtime.session_owner import End, SessionOwner
from turnwire.session.codec import decode, stored_prefix
from turnwire.session.events import PromptAccepted
from turnwire.session.inputs import (
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
from turnwire.session.queue import Accepted

T = TypeVar("T")

MAX_REDIRECTS = 3
"""Give up after this many `NotOwner` replies: ownership is changing faster than it can be followed."""
PAUSE_S = 0.2
"""Pause between two look-ups of an owner: much shorter than a lease, and little load for the database."""
OWNER_CACHE_SIZE = 4096
"""Entries in the owner cache; misses are looked up in the log."""

_REPEATABLE = (AnswerPermission, Archive, Attach, ChangeSetup, Close, Detach, HoldQueue, Settle)
"""Inputs with the same result if executed twice."""


class Reply(NamedTuple):
    """An owner's answer."""

    answer: object
    head: int
    """Head of the session's log, with all events that the answer refers to."""


class OtherNode(SessionOwner, Protocol):
    """Another node. It executes a request if it has the session or can claim it.

    Raises `NodeUnreachable` if the request was not sent, and `AnswerLost` if its answer was lost. The results of
    `offer` and `listen` end with the link as well.
    """

    async def submit(self, session_id: SessionId, input: AnyInput, ask: int) -> Reply: ...

    async def accept(self, session_id: SessionId, prompt: Prompt, ask: int) -> Reply:
        """Submit a prompt that goes to the agent only after `acknowledge`, or after the link is lost."""
        ...

    def acknowledge(self, prompt_id: PromptId) -> None:
        """Report that the client of an accepted prompt has its answer. Never raises."""
        ...

    async def gone(self) -> None:
        """Return once the link to it is lost."""
        ...


class OtherNodes(Protocol):
    """Links to other nodes."""

    def lives(self) -> Sequence[Life]:
        """Return the live incarnations this node knows; this node may be among them."""
        ...

    async def reach(self, life: int) -> OtherNode:
        """Return the link to a node. Raises `NodeUnreachable` if it cannot be reached."""
        ...


Claiming: TypeAlias = Callable[[SessionId], Awaitable[object]]
"""Claims a session for this node. Raises `NotOwner`."""
Acknowledge: TypeAlias = Callable[[], None]


class RemoteSessions:
    """The client side of sessions on other nodes."""

    def __init__(self, life: int, nodes: OtherNodes, log: EventLog, clock: Clock, limits: Limits) -> None:
        self.life = life
        self.nodes = nodes
        self.clock = clock
        self.limits = limits
        self._log = log
        self.local: SessionOwner
        self._tasks: TaskGroup
        self.lives: dict[SessionId, int] = {}
        """Last known owners of sessions."""
        self._heads: dict[SessionId, int] = {}
        """Lower bounds of the heads of sessions, as reported by their owners."""
        self.reach: Callable[[SessionId, int], Awaitable[None]] = _seen_already
        """Returns once readers of a session on this node can see this event of it."""
        self._asks = count(1)
        self.forwards: Counter[str] = Counter()
        """Number of requests forwarded to other nodes, by outcome."""

    def join(
        self,
        local: SessionOwner,
        tasks: TaskGroup,
        reach: Callable[[SessionId, int], Awaitable[None]],
    ) -> None:
        """Connect to this node's own sessions, before anything else is called."""
        self.local, self._tasks, self.reach = local, tasks, reach

    async def submit(
        self, session_id: SessionId, input: AnyInput, here: Callable[[], Awaitable[object]], claim: Claiming
    ) -> object:
        """Run `Node.submit` at the session's owner."""
        ask = next(self._asks)

        async def there(node: OtherNode) -> object:
            return await self._answer(session_id, node.submit(session_id, input, ask))

        return await _Forwarded(self, session_id, here, there, partial(self._done, session_id, input), claim).run()

    async def accept(
        self,
        session_id: SessionId,
        prompt: Prompt,
        here: Callable[[], Awaitable[tuple[Accepted, Acknowledge]]],
        claim: Claiming,
    ) -> tuple[Accepted, Acknowledge]:
        """Run `Node.accept` at the session's owner."""
        ask = next(self._asks)

        async def there(node: OtherNode) -> tuple[Accepted, Acknowledge]:
            acknowledge = partial(node.acknowledge, prompt.prompt_id)
            try:
                accepted = cast("Accepted", await self._answer(session_id, node.accept(session_id, prompt, ask)))
            except BaseException:
                # The other node may have accepted it, and no client here waits for that answer any more.
                acknowledge()
                raise
            return accepted, acknowledge

        async def done() -> tuple[Accepted, Acknowledge] | None:
            accepted = await self._accepted(session_id, prompt)
            return None if accepted is None else (accepted, _nobody_waits)

        return await _Forwarded(self, session_id, here, there, done, claim).run()

    async def at_owner(
        self,
        session_id: SessionId,
        operation: Callable[[SessionOwner], Awaitable[T]],
        *,
        repeatable: bool,
    ) -> T:
        """Run an operation at the session's owner. `repeatable`: it may run twice.

        Raises `SessionMoving`; and `AnswerLost` if it may have been done.
        """
        done = _not_known if repeatable else None
        return await _Forwarded(self, session_id, partial(operation, self.local), operation, done).run()

    async def lasting(
        self, session_id: SessionId, operation: Callable[[SessionOwner], Awaitable[End | None]]
    ) -> End:
        """Run an operation at each owner of the session until the end: again whenever the link to it is lost."""
        lasting = _Lasting(self, session_id, operation)
        node = await lasting.begin()
        if node is not None:
            self._tasks.start_soon(lasting.keep, node)
        return lasting.end

    def learn(self, session_id: SessionId, life: int | None) -> None:
        """Record the session's owner; `None` if unknown."""
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
        """Return the answer to a request that a previous owner may have executed; `None` if it can be sent
        again.
        """
        if isinstance(input, Prompt):
            return await self._accepted(session_id, input)
        if isinstance(input, _REPEATABLE) or (isinstance(input, Cancel) and input.prompt_id is not None):
            return None
        raise SessionMoving(
            "the session went to another node, and it is not known whether this was done; look, then ask again",
            session_id=session_id,
        )

    async def _accepted(self, session_id: SessionId, prompt: Prompt) -> Accepted | None:
        """Return the acceptance of the prompt if the log has it: its id was made for this very request."""
        begins, named = stored_prefix(PromptAccepted), prompt.prompt_id.encode()
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
    """One request on its way to the current owner of its session."""

    def __init__(
        self,
        remote: RemoteSessions,
        session_id: SessionId,
        here: Callable[[], Awaitable[T]],
        there: Callable[[OtherNode], Awaitable[T]],
        done: Callable[[], Awaitable[T | None]] | None,
        claim: Claiming | None = None,
    ) -> None:
        """`done` returns the answer if a previous owner has executed the request, and raises if that cannot be
        known.

        Without `done`, a request that may have been executed is not sent again. `claim` is called before `done`, so
        that no other node executes the request meanwhile.
        """
        self._remote = remote
        self._session_id = session_id
        self._here = here
        self._there = there
        self._done = done
        self._claim = claim
        self._until = remote.clock.monotonic() + remote.limits.request_retry_s
        self._doubt: int | None = None
        """The incarnation that may have executed it, and whose answer was lost."""
        self._refusals: Counter[int] = Counter()
        """Number of times each incarnation denied owning the session."""

    async def run(self) -> T:
        clock = self._remote.clock
        while True:
            life = self._remote.lives.get(self._session_id)
            try:
                return await self._do(life)
            except NotOwner as refusal:
                self._refused(refusal, life)
                if life is None:
                    continue
            except NodeUnreachable:
                # The request was not sent. If the node is dead the session can be claimed, at the latest when its
                # lease is over.
                self._remote.learn(self._session_id, None)
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
            answer = await self._there(await self._remote.nodes.reach(life))
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
            self._remote.forwards[result] += 1
        return answer

    def _refused(self, refusal: NotOwner, life: int | None) -> None:
        """Handle `NotOwner`: record the named owner, if any. Raises `SessionMoving`."""
        if life is not None:
            self._refusals[life] += 1
            if self._refusals.total() > MAX_REDIRECTS:
                raise _moving(self._session_id)
        owner = refusal.context.get("owner")
        if life is None and not isinstance(owner, int):
            owner = self._of_its_place(refusal.context.get("place"))
        self._remote.learn(self._session_id, owner if isinstance(owner, int) and owner != life else None)

    def _of_its_place(self, place: object) -> int:
        """Return a node that may claim a session which has no owner and which this node may not claim."""
        here = self._remote.life
        for each in self._remote.nodes.lives():
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
    """Return `None`: it is unknown if the request was executed, and it may be repeated."""


def _nobody_waits() -> None: ...


async def _seen_already(session_id: SessionId, head: int) -> None: ...


def _trim(kept: dict[SessionId, int]) -> None:
    while len(kept) > OWNER_CACHE_SIZE:
        del kept[next(iter(kept))]


class _Lasting:
    """An operation that lasts at the current owner of a session, whichever node that is, until its end."""

    def __init__(
        self,
        remote: RemoteSessions,
        session_id: SessionId,
        operation: Callable[[SessionOwner], Awaitable[End | None]],
    ) -> None:
        self._remote = remote
        self._session_id = session_id
        self._operation = operation
        self._scope = anyio.CancelScope()
        self._undo: End | None = None

    async def begin(self) -> OtherNode | None:
        """Begin at the owner; return the node, or `None` if it is this one."""

        async def here() -> None:
            self._undo = await self._operation(self._remote.local)

        async def there(node: OtherNode) -> OtherNode:
            self._undo = await self._operation(node)
            return node

        return await _Forwarded(self._remote, self._session_id, here, there, _not_known).run()

    async def keep(self, node: OtherNode | None) -> None:
        """Begin at the owner again whenever the link to it is lost."""
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
        """End the operation."""
        self._scope.cancel()
        if self._undo is not None:
            self._undo()
            self._undo = None
