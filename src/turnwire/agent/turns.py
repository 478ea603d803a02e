"""The turns of one session: one at a time, in the order of their prompts, each with exactly one end.

The author's function runs prompts of clients and turns that the agent starts, one after the other. Whatever the
function does, the turn ends once: with its stop reason, with an error, or as cancelled.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio

from turnwire.agent.definition import call
from turnwire.agent.failures import FAILED, error_of, is_expected
from turnwire.agent.live_session import LiveSession
from turnwire.agent.session_client import SessionClient
from turnwire.agent.turn import Turn
from turnwire.agent.turn_run import TurnRun, TurnStep
from turnwire.agent.v2_updates import user_message
from turnwire.errors import QueueFull, SessionNotFound
from turnwire.ids import RequestId
from turnwire.runtime.cancellation import contained
from turnwire.session.correlation import same_id

logger = logging.getLogger(__name__)


class Turns:
    """The turns of one session."""

    def __init__(self, live: LiveSession) -> None:
        self._live = live
        self._waiting: deque[TurnRun] = deque()
        self._running: TurnRun | None = None
        self._idle = anyio.Event()
        self._is_closed = False

    @property
    def running(self) -> TurnRun | None:
        """The turn that runs and is not over."""
        return self._running

    # -- from clients --------------------------------------------------------------------------------------------

    def submit(self, run: TurnRun) -> None:
        """Run a prompt now, or queue it. Raises `QueueFull`."""
        if self._running is None:
            self._start(run)
            return
        most = self._live.definition.options.max_queued
        if len(self._waiting) >= most:
            raise QueueFull(f"{most} prompts wait already; wait for an end or cancel", waiting=most)
        self._waiting.append(run)

    def cancel(self, client: SessionClient) -> None:
        """Handle `session/cancel`: stop the running turn, and on v2 this client's queued prompts.

        On v1 a queued prompt is a pending request, cancelled by its id; `session/cancel` means the running turn. No
        client's cancel removes another client's prompt.
        """
        if client.connected.profile.version == 2:
            for run in tuple(self._waiting):
                if run.client is client:
                    self._take_back(run)
        if self._running is not None:
            self._running.cancel()

    def cancel_request(self, client: SessionClient, request_id: RequestId) -> None:
        """Stop the one turn that this request prompted."""
        for run in self._prompts_of(client):
            if run.request_id is None or not same_id(run.request_id, request_id):
                continue
            if run is not self._running:
                self._take_back(run, is_request=True)
            elif not (run.is_begun and client.connected.profile.is_answered_at_once):
                # The request has its answer already, so there is nothing to cancel.
                run.cancel()

    def _prompts_of(self, client: SessionClient) -> list[TurnRun]:
        return [each for each in (*self._waiting, self._running) if each is not None and each.client is client]

    def has_prompts_of(self, client: SessionClient) -> bool:
        """Return whether this client has an open prompt."""
        return bool(self._prompts_of(client))

    def move(self, client: SessionClient, to: SessionClient) -> None:
        """Transfer the prompts of one client connection to another."""
        for run in self._prompts_of(client):
            run.client = to

    def is_prompted_by(self, client: SessionClient, request_id: RequestId) -> bool:
        """Return whether this request of this client is a prompt that has no answer yet."""
        is_answered = client.connected.profile.is_answered_at_once
        return any(
            same_id(each.request_id, request_id)
            for each in self._prompts_of(client)
            if each.request_id is not None and not (is_answered and each.is_begun)
        )

    def leave(self, client: SessionClient) -> None:
        """Cancel the prompts of a client that disconnected."""
        for run in self._prompts_of(client):
            if run is self._running:
                run.cancel()
            else:
                self._waiting.remove(run)

    def close(self) -> None:
        """The session ends: stop everything, and begin nothing any more."""
        self._is_closed = True
        for run in tuple(self._waiting):
            if run.client is not None:
                self._take_back(run)
        while self._waiting:
            self._waiting.popleft().admitted.set()
        if self._running is not None:
            self._running.cancel()

    async def stopped(self) -> None:
        """Wait until nothing runs. The running turn was cancelled, so the wait is bounded."""
        while self._running is not None:
            await self._idle.wait()

    def _take_back(self, run: TurnRun, *, is_request: bool = False) -> None:
        """Remove a prompt that never entered the conversation. `is_request`: its request was cancelled."""
        self._waiting.remove(run)
        run.cancel()
        self._end_unheard(run, is_refused=is_request)

    def _end_unheard(self, run: TurnRun, *, is_refused: bool = False) -> None:
        assert run.client is not None, "only prompts of clients wait for insertion"
        run.client.take_back(run.end(None), is_refused=is_refused)

    # -- running -------------------------------------------------------------------------------------------------

    def _start(self, run: TurnRun) -> None:
        run.step(TurnStep.START)
        self._running = run
        self._idle = anyio.Event()
        if run.client is None:
            run.admitted.set()
        else:
            run.client.connected.tasks.start_soon(self._drive, run, run.client)

    async def _drive(self, run: TurnRun, client: SessionClient) -> None:
        done = anyio.Event()
        try:
            with run.stoppable():
                # Settings that came before the prompt are made before it runs.
                async with self._live.settling:
                    await self._live.claim()
            if run.is_cancelled:
                done.set()
                return
            self._insert(run)
            turn = Turn(run)
            self._live.session.running = turn
            function, args = self._chosen(run)
            client.connected.tasks.start_soon(self._work, run, partial(call, function, turn, *args), done)
            await self._done_or_given_up(run, done)
        except BaseException:
            # The connection ends, and its turn with it, for all other clients.
            run.cancel()
            raise
        finally:
            with anyio.CancelScope(shield=True):
                with anyio.move_on_after(self._live.definition.options.max_cancel_s):
                    await done.wait()
                await self._finish(run)

    def _insert(self, run: TurnRun) -> None:
        """The prompt enters the conversation: message, answer, running, in this order."""
        assert run.client is not None, "a client's prompt has a client"
        assert run.request_id is not None, "and a request"
        run.step(TurnStep.BEGIN)
        self._live.publish(user_message(run.message_id, run.content), by=run.client, must=True)
        run.client.accepted(run.request_id, run.prompt_id, run.message_id)
        self._live.begin_turn(run.prompt_id)

    def _chosen(self, run: TurnRun) -> tuple[Any, list[str]]:
        """The author's function for this prompt: that of its slash command, or the one for prompts."""
        hooks = self._live.definition.hooks
        first = run.content[0].get("text") if run.content else None
        if isinstance(first, str) and first.startswith("/"):
            # Any white space ends the name; in front of it there is no name.
            name, *rest = first[1:].split(None, 1) if first[1:2].strip() else [""]
            if name in hooks.commands:
                return hooks.commands[name][1], [" ".join(rest).strip()]
        return hooks.prompt, []

    async def _work(self, run: TurnRun, work: Callable[[], Awaitable[Any]], done: anyio.Event) -> None:
        try:
            with contained(), run.stoppable():
                run.returned(await work())
        except Exception as error:  # noqa: BLE001  the author's own; it ends the turn, not the agent
            run.error = error
        finally:
            done.set()

    async def _done_or_given_up(self, run: TurnRun, done: anyio.Event) -> None:
        """Wait for the author's function, with a time limit once cancelled."""
        async with anyio.create_task_group() as waiting:
            waiting.start_soon(self._give_up, run, waiting.cancel_scope, done)
            await done.wait()
            waiting.cancel_scope.cancel()

    async def _give_up(self, run: TurnRun, waiting: anyio.CancelScope, done: anyio.Event) -> None:
        await run.cancelled.wait()
        options = self._live.definition.options
        await self._live.definition.clock.sleep(options.max_cancel_s)
        logger.error("a cancelled turn did not stop within %s s; it ends without it", options.max_cancel_s)
        done.set()
        waiting.cancel()

    # -- ending --------------------------------------------------------------------------------------------------

    async def _finish(self, run: TurnRun) -> None:
        run.close_calls()
        for title in run.unused_calls.values():
            logger.warning("turn.tool(%r) had no effect; write `async with turn.tool(…) as call:`", title)
        self._live.touch()
        # Save before notifying: a client that got an end finds its turn in the history.
        await self._live.save()
        self._end(run)
        await self._live.save()

    def _end(self, run: TurnRun) -> None:
        """The one end. Nothing here waits, so nothing comes between its parts."""
        # A background task may have opened another call while the store was busy.
        run.close_calls()
        live, client = self._live, run.client
        if run.is_begun:
            live.end_turn(run.end(self._error(run)), client)
        else:
            self._end_unheard(run)
        live.session.running = None
        self._next()

    def _next(self) -> None:
        self._running = None
        self._idle.set()
        if self._waiting:
            self._start(self._waiting.popleft())

    def _error(self, run: TurnRun) -> Any:
        if run.is_cancelled:
            if run.error is not None:
                logger.info("a cancelled turn failed while it stopped", exc_info=run.error)
            return None
        if run.error is not None:
            if not is_expected(run.error):
                logger.error("a turn failed", exc_info=run.error)
            return error_of(run.error) if is_expected(run.error) else FAILED
        # Neither a reason nor an error: the author's function cancelled itself.
        return None if run.stop_reason is not None else FAILED

    # -- turns of the agent's own --------------------------------------------------------------------------------

    @asynccontextmanager
    async def own(self) -> AsyncGenerator[Turn]:
        """Open a turn without a prompt. It queues like a prompt."""
        run = TurnRun(self._live, [])
        if self._is_closed:
            raise _closed()
        if self._running is None:
            self._start(run)
        else:
            self._waiting.append(run)
        try:
            await run.admitted.wait()
            if run is self._running:
                await self._live.claim()
        except BaseException:
            self._forget(run)
            raise
        if run is not self._running:
            raise _closed()
        run.step(TurnStep.BEGIN)
        turn = self._live.session.running = Turn(run)
        self._live.begin_turn(run.prompt_id)
        try:
            with run.stoppable():
                yield turn
                run.returned(None)
        except Exception as error:
            run.error = error
            raise
        except BaseException:
            run.cancel()
            raise
        finally:
            with anyio.CancelScope(shield=True):
                await self._finish(run)

    def _forget(self, run: TurnRun) -> None:
        if run in self._waiting:
            self._waiting.remove(run)
        elif self._running is run:
            self._next()


def _closed() -> SessionNotFound:
    return SessionNotFound("the session is closed; no turn can begin in it")
