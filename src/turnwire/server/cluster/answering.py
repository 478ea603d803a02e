"""Handler of requests from another node, for the sessions that this node has or can claim.

Nothing is forwarded: a request for a session of another node is rejected (`NotOwner`), and the requesting node
looks for the owner. A submitted input is processed once, however often its response is lost (`Once`), and continues
when the link ends.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import anyio
from anyio.abc import TaskGroup
from msgspec import Raw

from turnwire.errors import AnswerLost, NodeUnreachable, NotOwner, RemoteProtocolError
from turnwire.hosting.client_requests import ServedMethods
from turnwire.hosting.peer import Peer
from turnwire.ids import PromptId, SessionId
from turnwire.runtime.node import Node
from turnwire.runtime.session_owner import NewSession
from turnwire.server.cluster import words
from turnwire.server.cluster.linked_node import ask, tell
from turnwire.server.daemon.clients import There
from turnwire.session.inputs import Prompt
from turnwire.session.state import Setup
from turnwire.wire.jsonrpc import Failure, Notification, raw

KEPT_ANSWERS = 1024
"""Responses stored for repeated requests; a lost link is re-established within seconds."""


class _Asked:
    """A request that another node submitted."""

    def __init__(self) -> None:
        self.is_done = anyio.Event()
        self.answer: words.Submitted | BaseException | None = None


class Once:
    """Submissions of other nodes, each processed once."""

    def __init__(self, tasks: TaskGroup) -> None:
        self._tasks = tasks
        self._asked: dict[tuple[int, int], _Asked] = {}

    async def do(self, life: int, ask: int, act: Callable[[], Awaitable[words.Submitted]]) -> words.Submitted:
        """Run `act` once and return its result, also to later calls. Continues if the caller is cancelled."""
        asked = self._asked.get((life, ask))
        if asked is None:
            asked = self._asked[life, ask] = _Asked()
            self._tasks.start_soon(self._run, life, ask, asked, act)
            while len(self._asked) > KEPT_ANSWERS and next(iter(self._asked.values())).is_done.is_set():
                del self._asked[next(iter(self._asked))]
        await asked.is_done.wait()
        assert asked.answer is not None, "what is done has an answer"
        if isinstance(asked.answer, BaseException):
            raise asked.answer
        return asked.answer

    async def _run(self, life: int, ask: int, asked: _Asked, act: Callable[[], Awaitable[words.Submitted]]) -> None:
        try:
            asked.answer = await act()
        except NotOwner as refusal:
            # Nothing was done, and this node may have the session the next time.
            self._asked.pop((life, ask), None)
            asked.answer = refusal
        except Exception as error:  # noqa: BLE001  Any error is the answer
            asked.answer = error
        finally:
            asked.is_done.set()


class Ports(NamedTuple):
    """The data that a node exchanges with other nodes."""

    once: Once
    present: Callable[[int, dict[SessionId, There], bool], None]
    """Called with an incarnation, the clients at its sessions, and whether the list is complete."""
    is_cut: Callable[[], bool]
    """Returns whether this node cannot reach the log."""


class Answers:
    """The handlers for one other node, on one link."""

    def __init__(self, life: int, peer: Peer, node: Node, ports: Ports) -> None:
        self._life = life
        self._peer = peer
        self._node = node
        self._ports = ports
        self._is_over = False
        self._untold: dict[PromptId, Callable[[], None]] = {}
        """Prompts whose clients have not received the response yet. Includes prompts that are not accepted yet: a
        caller that cannot wait may send the acknowledgement before the response.
        """
        self._lasting: dict[object, Callable[[], None]] = {}
        """Offers and listeners of that node's clients, with the callback that ends each."""
        self._clients: WeakValueDictionary[int, _FarClient] = WeakValueDictionary()
        self.requests: dict[str, Callable[[Raw], Coroutine[Any, Any, Raw]]] = {
            words.SUBMIT: self._submit,
            words.ACCEPT: self._accept,
            words.DELETE: self._delete,
            words.RETAIN: self._retain,
            words.FORK: self._fork,
            words.EXPLAIN: self._explain,
            words.AUTHENTICATE: self._authenticate,
            words.CONFIGURE: self._configure,
            words.WAKE: self._wake,
            words.CALL: self._call,
            words.NOTIFY: self._notify,
            words.OFFER: self._offer,
            words.LISTEN: self._listen,
            words.CUT: self._cut,
        }
        self.notifications: dict[str, Callable[[Raw], None]] = {
            words.TOLD: self._told,
            words.RETRACT: self._retract,
            words.LEAVE: self._leave,
            words.PRESENT: self._present,
        }

    def lose(self) -> None:
        """End all waits, offers and listeners of the other node, because the link is lost."""
        self._is_over = True
        for told in self._untold.values():
            told()
        self._untold.clear()
        for key in list(self._lasting):
            self._end(key)

    # -- the session ---------------------------------------------------------------------------------------

    async def _submit(self, params: Raw) -> Raw:
        word = words.read(params, words.Submit)
        return raw(await self._ports.once.do(self._life, word.ask, partial(self._do, word)))

    async def _do(self, word: words.Submit) -> words.Submitted:
        return self._submitted(word, await self._node.local.submit(word.session, words.input_of(word)))

    async def _accept(self, params: Raw) -> Raw:
        word = words.read(params, words.Submit)
        return raw(await self._ports.once.do(self._life, word.ask, partial(self._take, word)))

    async def _take(self, word: words.Submit) -> words.Submitted:
        prompt = words.input_of(word)
        if not isinstance(prompt, Prompt):
            raise RemoteProtocolError("only a prompt is accepted", kind=word.kind)
        self._untold[prompt.prompt_id] = _nothing_yet
        try:
            accepted, told = await self._node.local.accept(word.session, prompt)
        except BaseException:
            self._untold.pop(prompt.prompt_id, None)
            raise
        if prompt.prompt_id in self._untold and not self._is_over:
            self._untold[prompt.prompt_id] = told
        else:
            told()
        return self._submitted(word, accepted)

    def _submitted(self, word: words.Submit, answer: object) -> words.Submitted:
        session = self._node.loaded.get(word.session)
        return words.Submitted(raw(answer), 0 if session is None else session.head)

    def _told(self, params: Raw) -> None:
        told = self._untold.pop(words.read(params, words.Told).prompt, None)
        if told is not None:
            told()

    async def _delete(self, params: Raw) -> Raw:
        await self._node.local.delete(words.read(params, words.OfSession).session)
        return words.NOTHING

    async def _retain(self, params: Raw) -> Raw:
        word = words.read(params, words.Retain)
        return raw(await self._node.local.retain(word.session, word.keep_events))

    async def _fork(self, params: Raw) -> Raw:
        word = words.read(params, words.Fork)
        setup = Setup(word.mcp_servers, word.additional_directories, word.meta, word.extra)
        new = NewSession(word.fork, word.cwd, setup, word.session, author=word.author, title=word.title)
        await self._node.local.fork(new)
        return words.NOTHING

    # -- the session's agent -------------------------------------------------------------------------------

    async def _explain(self, params: Raw) -> Raw:
        word = words.read(params, words.Explain)
        return raw(await self._node.local.explain(word.session, for_owner=word.for_owner))

    async def _authenticate(self, params: Raw) -> Raw:
        word = words.read(params, words.Authenticate)
        await self._node.local.authenticate(word.session, word.method_id)
        return words.NOTHING

    async def _configure(self, params: Raw) -> Raw:
        word = words.read(params, words.ToAgent)
        return await self._node.local.configure(
            word.session, word.method, words.read(word.params, dict[str, object])
        )

    async def _wake(self, params: Raw) -> Raw:
        await self._node.local.wake(words.read(params, words.OfSession).session)
        return words.NOTHING

    async def _call(self, params: Raw) -> Raw:
        word = words.read(params, words.ToAgent)
        answer = await self._node.local.call(word.session, word.method, words.read(word.params, dict[str, Raw]))
        is_refused = isinstance(answer, Failure)
        return raw(words.Called(error=answer.error) if is_refused else words.Called(result=answer.result))

    async def _notify(self, params: Raw) -> Raw:
        word = words.read(params, words.ToAgent)
        await self._node.local.notify(word.session, word.method, words.read(word.params, dict[str, Raw]))
        return words.NOTHING

    # -- clients of the other node -------------------------------------------------------------------------

    async def _offer(self, params: Raw) -> Raw:
        word = words.read(params, words.Offer)
        client = None if word.same is None else self._client(word.same)
        provider = _FarProvider(self._peer, word)
        self._keep(
            (word.session, word.client),
            await self._node.local.offer(word.session, word.client, provider, client=client, owner=word.owner),
        )
        return words.NOTHING

    def _retract(self, params: Raw) -> None:
        word = words.read(params, words.Retract)
        self._end((word.session, word.client))

    async def _listen(self, params: Raw) -> Raw:
        word = words.read(params, words.Listen)
        listener = _FarListener(self._peer, self._client(word.same), word.listener)
        self._keep(word.listener, await self._node.local.listen(word.session, listener))
        return words.NOTHING

    def _leave(self, params: Raw) -> None:
        self._end(words.read(params, words.Leave).listener)

    def _client(self, number: int) -> _FarClient:
        return self._clients.setdefault(number, _FarClient())

    def _keep(self, key: object, end: Callable[[], None] | None) -> None:
        """Store a callback until the other node or the end of the link ends it."""
        self._end(key)
        if end is not None:
            self._lasting[key] = end
        if self._is_over:
            self._end(key)

    def _end(self, key: object) -> None:
        end = self._lasting.pop(key, None)
        if end is not None:
            end()

    def _present(self, params: Raw) -> None:
        word = words.read(params, words.Present)
        self._ports.present(self._life, word.sessions, word.whole)

    async def _cut(self, params: Raw) -> Raw:
        return raw(words.Cut(self._ports.is_cut()))


class _FarProvider:
    """A client of another node that serves an agent here. Implements `client_requests.Provider`."""

    def __init__(self, peer: Peer, offer: words.Offer) -> None:
        self._peer = peer
        self._offer = offer
        self._methods = ServedMethods(offer.methods) if offer.foreign else frozenset(offer.methods)

    @property
    def methods(self) -> frozenset[str]:
        return self._methods

    def serve(self, method: str, params: Raw, after: int) -> Coroutine[Any, Any, Raw]:
        """Send the request to the client, after this event, and wait for the response. Raises `RequestRefused`."""
        wanted = words.Serve(self._offer.session, self._offer.client, method, params or Raw(b"{}"), after)
        return _served(ask(self._peer, words.SERVE, wanted))


async def _served(serving: Coroutine[Any, Any, Raw]) -> Raw:
    try:
        return await serving
    except (NodeUnreachable, AnswerLost):
        # The client is gone with its node. The offer is about to be withdrawn, and the next provider is asked.
        await anyio.sleep_forever()
        raise


class _FarClient:
    """A client of another node, which may be at several sessions."""

    def __init__(self) -> None:
        self.behind: dict[str, int] = {}
        """By listener, the event that the client must receive before messages that concern no session."""


class _FarListener:
    """A client of another node, at one session. Implements `agent_connection.Listener`."""

    def __init__(self, peer: Peer, client: _FarClient, number: int) -> None:
        self._peer = peer
        self._client = client
        self._name = str(number)

    @property
    def client(self) -> object:
        return self._client

    def heard(self, said: Notification, after: int) -> None:
        self._tell(words.IN_SESSION, said, {self._name: after})

    def behind(self, after: int, act: Callable[[], None]) -> None:
        # Only the client's node knows how far the client has read, so the message is sent at once, with the offset.
        self._client.behind[self._name] = after
        act()

    def heard_by_all(self, said: Notification) -> None:
        behind, self._client.behind = self._client.behind, {}
        self._tell(words.TO_ALL, said, behind)

    def completed(self, said: Notification) -> None:
        self._tell(words.COMPLETED, said, {self._name: self._client.behind.pop(self._name, 0)})

    def _tell(self, how: str, said: Notification, behind: dict[str, int]) -> None:
        tell(self._peer, words.HEARD, words.Heard(how, said.method, said.params or Raw(b"{}"), behind))


def _nothing_yet() -> None:
    """Placeholder for the acknowledgement of a prompt that is not accepted yet."""
