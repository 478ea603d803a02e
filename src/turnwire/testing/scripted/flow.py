"""Commands about when things happen and how a turn ends.

Each function does one command in the `Work` it is given, mostly by noting what `turns` is to do later.
"""

from __future__ import annotations

from anyio import sleep_forever

from turnwire.testing.scripted import commands as c
from turnwire.testing.scripted.host import Unavailable
from turnwire.testing.scripted.shapes import V2Shapes
from turnwire.testing.scripted.work import Work, performs
from turnwire.wire.jsonrpc import ErrorObject


@performs(c.Gate)
async def gate(work: Work, command: c.Gate) -> None:
    await work.host.wait_at_gate(command.name)


@performs(c.Never)
async def never(work: Work, command: c.Never) -> None:
    await sleep_forever()


@performs(c.IgnoreCancel)
async def ignore_cancel(work: Work, command: c.IgnoreCancel) -> None:
    work.ignores_cancel = True


@performs(c.OnCancel)
async def on_cancel(work: Work, command: c.OnCancel) -> None:
    work.on_cancel.append(command.command)


@performs(c.Stop)
async def stop(work: Work, command: c.Stop) -> None:
    work.stop_reason = command.reason


@performs(c.Error)
async def error(work: Work, command: c.Error) -> None:
    work.error = ErrorObject(command.code, command.message)


@performs(c.Reject)
async def reject(work: Work, command: c.Reject) -> None:
    raise Unavailable("reject is only possible as the first command of a prompt")


@performs(c.After)
async def after(work: Work, command: c.After) -> None:
    work.after.append(command.command)


@performs(c.IdleSpeak)
async def idle_speak(work: Work, command: c.IdleSpeak) -> None:
    work.idle.append(command.command)


@performs(c.AgentTurn)
async def agent_turn(work: Work, command: c.AgentTurn) -> None:
    if work.foreground:
        work.idle.append(command)
        return
    shapes = work.shapes if isinstance(work.shapes, V2Shapes) else None
    if shapes is not None:
        await work.update(shapes.state("running"), kept=False)
    for number in range(1, command.n + 1):
        await work.say(f"of my own accord {number}")
    if shapes is not None:
        await work.update(shapes.state("idle", "end_turn"), kept=False)


@performs(c.DuplicateAnswer)
async def duplicate_answer(work: Work, command: c.DuplicateAnswer) -> None:
    work.answers = 2


@performs(c.Repeat)
async def repeat(work: Work, command: c.Repeat) -> None:
    for _ in range(command.n):
        await work.do([command.command])
