"""`turnwire cancel`, `turnwire settle` and `turnwire answer`: what a person does about a turn.

Takes ids; sends one request each. The daemon decides.
"""

from __future__ import annotations

from typing import Any

import click
import msgspec
from msgspec import Raw, Struct

from turnwire.cli.asking import answer_command, subject
from turnwire.cli.examples import Command
from turnwire.cli.failing import tell
from turnwire.cli.reaching import Reach, ask, reaching, run, tell_daemon
from turnwire.cli.showing import print_table
from turnwire.client.http import Http, segment
from turnwire.client.question import Option, Question, Reply
from turnwire.client.remote import RemoteDaemon
from turnwire.core.events import PermissionRequested
from turnwire.errors import PermissionNotFound
from turnwire.ids import PermissionId, SessionId

CANCEL_EXAMPLES = """
turnwire cancel SESSION            the turn that runs; prompts that wait stay
turnwire cancel SESSION PROMPT     this one, whether it runs or waits
"""
SETTLE_EXAMPLES = """
turnwire explain SESSION           look first: is it really over?
turnwire settle SESSION PROMPT     say that it is
"""
ANSWER_EXAMPLES = """
turnwire answer SESSION                          what is asked, and how to answer
turnwire answer SESSION REQUEST allow_once       by the id of an option
turnwire answer SESSION REQUEST reject           no, in the softest way that is offered
turnwire answer SESSION REQUEST --form '{"action": "accept", "content": {"name": "x"}}'
"""


class _Turn(Struct):
    state: str
    """`idle` if there is none."""


@click.command(cls=Command, examples=CANCEL_EXAMPLES)
@click.argument("session")
@click.argument("prompt", required=False)
@reaching
def cancel(reach: Reach, session: str, prompt: str | None) -> None:
    """Stop the running turn, or one that is named."""
    path = f"/session/{segment(session)}"
    # The daemon takes a cancel that meets nothing, so that it can be sent twice; a person wants to know.
    named = "current" if prompt is None else segment(prompt)
    found = ask(reach, "GET", f"{path}/turns/{named}", shape=_Turn)
    tell_daemon(reach, "POST", f"{path}/cancel", {} if prompt is None else {"promptId": prompt})
    if found.state == "running":
        tell("asked to stop; the turn ends when the agent says so, or is made to")
    elif prompt is None:
        tell("nothing runs, so there was nothing to stop")
    elif found.state == "queued":
        tell("it waited, and is taken out of the queue")
    else:
        tell("it had ended before, so there was nothing to stop")


@click.command(cls=Command, examples=SETTLE_EXAMPLES)
@click.argument("session")
@click.argument("prompt")
@reaching
def settle(reach: Reach, session: str, prompt: str) -> None:
    """End a turn whose agent never said that it ended."""
    tell_daemon(reach, "POST", f"/session/{segment(session)}/settle", {"promptId": prompt})
    tell("settled; what the agent still says is kept and marked as late")


class _Listed(Struct, rename="camel"):
    request_id: PermissionId
    method: str
    params: Raw
    options: list[Option] = []


class _Questions(Struct):
    permissions: list[_Listed]


@click.command(cls=Command, examples=ANSWER_EXAMPLES)
@click.argument("session")
@click.argument("request", required=False)
@click.argument("option", required=False)
@click.option("--form", metavar="JSON", help="The answer to a question that takes a free one.")
@reaching
def answer(reach: Reach, session: str, request: str | None, option: str | None, form: str | None) -> None:
    """Answer a permission request of the agent."""
    questions = open_questions(reach, session)
    if request is None or (option is None and form is None):
        rows = [(each.request_id, subject(each), answer_command(each)) for each in questions]
        print_table(("request", "asks", "answer"), rows)
        if not rows:
            tell("nothing is asked")
        return
    question = next((each for each in questions if each.request_id == request), None)
    if question is None:
        raise PermissionNotFound(f"no open question {request!r}; `turnwire answer {session}` lists what is asked")
    reply = question.reply(_form(form) if option is None else option)
    has_won = run(reach, lambda http: _answer(http, question, reply))
    tell("answered" if has_won else "somebody else had answered before")


async def _answer(http: Http, question: Question, reply: Reply) -> bool:
    session = await RemoteDaemon(http).find(question.session_id)
    return await session.answer(question.request_id, reply.answer, reply.option_id)


def open_questions(reach: Reach, session: str) -> list[Question]:
    """What the agent of a session asks now."""
    found = ask(reach, "GET", f"/session/{segment(session)}/permissions", shape=_Questions)
    return [_question(each, SessionId(session)) for each in found.permissions]


def _question(listed: _Listed, session_id: SessionId) -> Question:
    event = PermissionRequested(
        at=0,
        request_id=listed.request_id,
        # The agent's own id is the daemon's business.
        agent_request_id=0,
        method=listed.method,
        params=listed.params,
        options=tuple(each.option_id for each in listed.options),
    )
    return Question(event, session_id)


def _form(text: str | None) -> dict[str, Any]:
    try:
        return msgspec.json.decode(text or "", type=dict[str, Any])
    except msgspec.DecodeError:
        raise click.UsageError("--form is no JSON object") from None
