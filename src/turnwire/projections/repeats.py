"""Comparison of an agent's replay with the log.

The two are never merged: the log is what happened, a replay is what the agent remembers of it. On `session/load` an
agent replays the whole history, which is compared with the log afterwards (`compare`): user messages, agent
messages and tool calls, in order, by their text and title. Not compared are ids, which agents recreate; thoughts,
which many do not store; and the boundaries of messages and chunks in a text.

Some agents replay on `session/resume` as well, unrequested, before their answer or right after it. A prompt may
have been sent by then, so the repetitions arrive in the middle of a turn. They are found by their order and text,
and an update that could be new is never treated as a repetition (`Repeats`):

  A0  Before the agent is sent a prompt, everything from the first user message to the end of the log is a replay,
      even where the agent's words differ. Nobody but turnwire could have sent that user message.
  A1  A replay begins with a user message. Until such a message is found in the log, all updates are new.
  A2  After it, agent output and tool calls are compared with the rest of that turn in the log, in order. Text is a
      repetition if all of it is equal, a tool call if it has the same id and no other title.
      User messages that are separated only by output of turns that did not end well may arrive as one: an agent
      that lost that output has nothing between them any more.
      A user message that differs stands for the next one in the log: an agent may tell a picture as words.
  A3  For an agent that shows copies of its prompts, a user message that may be one is new, and ends the replay;
      so does one that differs, once the agent has a prompt.
  A4  Once the agent has a prompt, nothing is compared with a turn that did not end well: an agent that forgot its
      output there may produce it again.
  A5  If only repetitions arrived before the answer to the prompt, the last of them is the answer.

Undecided updates are withheld; they are returned, in order, as soon as they are known to be new.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Final, NamedTuple

import msgspec
from msgspec import UNSET, Raw, UnsetType

from turnwire.ids import PromptId
from turnwire.projections.view import View
from turnwire.projections.view.transcript import Message, MessageRole, ToolCall, join_text
from turnwire.session.json_members import read_entries, read_members, read_text
from turnwire.wire.peek import UpdatePeek
from turnwire.wire.schema.update import ABOUT_TOOL_CALLS

_ROLES: Final = {
    "user_message": MessageRole.USER,
    "user_message_chunk": MessageRole.USER,
    "agent_message": MessageRole.AGENT,
    "agent_message_chunk": MessageRole.AGENT,
    "agent_thought": MessageRole.THOUGHT,
    "agent_thought_chunk": MessageRole.THOUGHT,
}


class Said(NamedTuple):
    """An update, the other members of its params, and its child session."""

    update: Raw
    beside: Raw | UnsetType = UNSET
    child: str | None = None


class _Entry(NamedTuple):
    """A tool call of the log, or adjacent messages of one role."""

    role: MessageRole | None
    """`None` for a tool call."""
    text: str
    """Text without white space; the title of a tool call."""
    ended_well: bool
    tool_call_id: str | None = None


class _Saying:
    """Adjacent messages of one role, as they arrive from the agent."""

    def __init__(self, role: MessageRole, message_id: str | None) -> None:
        self.role = role
        self.message_id = message_id
        self.text = ""
        self.held: list[Said] = []
        self.is_new = False
        """True if the log does not have it, so that nothing of it is withheld."""
        self.is_skipped = False
        """True for a user message that differs from the log's and stands for it."""


class Repeats:
    """The replay of one agent, from its resume to the answer to its first prompt."""

    def __init__(self, log: View, without: PromptId | None = None, *, echoes: bool = False) -> None:
        """`without` is a turn that the agent has not received; `echoes`: the agent shows copies of its prompts."""
        self._echoes = echoes
        self._log = log
        self._without = without
        self._entries: list[_Entry] | None = None
        self._next = 0
        """The first entry of the log that has not been repeated or skipped."""
        self.is_replaying = False
        self._saying: _Saying | None = None
        self._tools: dict[str, bool] = {}
        """Replayed tool calls, and True for those that are in the log."""
        self._asked: str | None = None
        self._last: list[Said] = []
        """The repetition that was found last."""
        self._has_news = False
        self._is_longer = False
        """True if the agent sent more user messages than the log has."""
        self._matched = 0
        self.is_over = False

    def ask(self, content: Raw) -> None:
        """Record a prompt to the agent. The second one ends the replay."""
        self.is_over = self.is_over or self._asked is not None
        self._asked = _squeezed(content)

    def pause(self) -> None:
        """Handle the agent's answer to the resume. No message continues after it; a replay may."""
        saying = self._saying
        if saying is not None and not saying.is_new and self._place(saying) is not None:
            self._end_saying()

    def take(self, said: Said, peek: UpdatePeek) -> list[Said]:
        """Return the new updates: withheld ones, and this one."""
        if self.is_over:
            return [*self._release(), said]
        role = _ROLES.get(peek.kind)
        is_user = role is MessageRole.USER
        if (
            self._saying is None
            and self._is_whole
            and (role is not None or peek.kind in ABOUT_TOOL_CALLS)
            and not (is_user and self._asked is None)
        ):
            self.is_over = True
            return [said]
        if role is not None:
            new = self._say(role, said, peek.message_id)
        else:
            new = self._end_saying()
            if peek.kind not in ABOUT_TOOL_CALLS:
                return [*new, said]
            if not self._is_known(said.update, peek.tool_call_id):
                new = [*new, said]
        if self._asked is None and self.is_replaying:
            return []
        self._has_news |= bool(new) and self._asked is not None
        return new

    def finish(self, *, answered: bool) -> list[Said]:
        """End the replay: the agent answers the prompt, sends a request, or is gone. Return the withheld
        updates.
        """
        if self._asked is None:
            new = self._end_saying()
            new = [] if self.is_replaying else new
        else:
            new = self._release()
        if answered and not new and not self._has_news and not self.is_over:
            new = self._last
        self.is_over = True
        return new

    @property
    def found(self) -> Comparison | None:
        """The comparison of the replay with the log; `None` if there was no replay."""
        if not self._matched:
            return None
        known = sum(1 for each in self._history if each.role is not MessageRole.THOUGHT)
        missing = known - self._matched
        lacks = f"the replay lacks {missing} of the log's messages and tool calls" if missing else None
        # Items that only the replay has are in the log now.
        return Comparison(self._matched, self._matched, missing, lacks)

    @property
    def _is_whole(self) -> bool:
        """The whole log has been replayed, and no turn that it lacks."""
        return self.is_replaying and self._next >= len(self._history) and not self._is_longer

    # -- messages ------------------------------------------------------------------------------------------

    def _say(self, role: MessageRole, said: Said, message_id: str | None) -> list[Said]:
        new: list[Said] = []
        saying = self._saying
        if saying is None or saying.role is not role or self._is_another(saying, message_id):
            new = self._end_saying()
            if self.is_over or (role is not MessageRole.USER and not self.is_replaying):
                self.is_over = self.is_over or self._asked is not None
                return [*new, said]
            saying = self._saying = _Saying(role, message_id)
            self.is_replaying |= role is MessageRole.USER and self._asked is None
        if saying.is_skipped:
            return new
        if saying.is_new:
            return [*new, said]
        saying.text += _squeezed((read_members(said.update) or {}).get("content"))
        saying.held.append(said)
        if role is MessageRole.USER and self._may_be_a_copy(saying.text):
            self.is_over = True
            return [*new, *self._release()]
        same = [place for place, text in self._texts(role) if text.startswith(saying.text)]
        if not same:
            new += self._differs(saying)
        elif role is not MessageRole.USER and self._ends_the_log(same[0], saying.text):
            # After the end of the log, further text cannot change the result.
            self._repeated(saying, same[0])
        return new

    def _may_be_a_copy(self, text: str) -> bool:
        return self._echoes and self._asked is not None and self._asked.startswith(text)

    def _ends_the_log(self, place: int, text: str) -> bool:
        return place == len(self._history) - 1 and self._history[place].text == text

    def _is_another(self, saying: _Saying, message_id: str | None) -> bool:
        """True if the next chunk belongs to a message that cannot continue this one."""
        is_named = message_id is not None and saying.message_id is not None and message_id != saying.message_id
        return is_named and (saying.is_new or self._place(saying) is not None)

    def _end_saying(self) -> list[Said]:
        saying = self._saying
        if saying is None or saying.is_new or saying.is_skipped:
            self._saying = None
            return []
        place = self._place(saying)
        if place is not None:
            self._repeated(saying, place)
            return []
        new = self._differs(saying)
        self._saying = None
        return new

    def _repeated(self, saying: _Saying, place: int) -> None:
        self._saying = None
        self._last = saying.held
        self.is_replaying = True
        self._pass(place)

    def _differs(self, saying: _Saying) -> list[Said]:
        """Handle a message that the log does not have; return it if it is new."""
        if saying.role is MessageRole.USER and (self._asked is None or not self._echoes):
            saying.is_skipped = self.is_replaying = True
            place = next(self._places(MessageRole.USER), None)
            if place is None:
                self._is_longer = True
            else:
                self._next = place + 1
            return []
        saying.is_new = True
        # Output after an unknown user message does not belong to this history.
        self.is_over = self.is_over or saying.role is MessageRole.USER
        return saying.held

    def _release(self) -> list[Said]:
        saying, self._saying = self._saying, None
        return [] if saying is None or saying.is_new or saying.is_skipped else saying.held

    def _place(self, saying: _Saying) -> int | None:
        """Return the position of exactly this text in the log."""
        if not saying.text:
            return None
        return next((place for place, text in self._texts(saying.role) if text == saying.text), None)

    # -- tool calls ----------------------------------------------------------------------------------------

    def _is_known(self, update: Raw, tool_call_id: str | None) -> bool:
        if not self.is_replaying or tool_call_id is None:
            self.is_over = self.is_over or self._asked is not None
            return False
        if tool_call_id not in self._tools:
            title = _squeezed_text(read_text((read_members(update) or {}).get("title")) or "")
            self._tools[tool_call_id] = self._find_tool(tool_call_id, title)
        return self._tools[tool_call_id]

    def _find_tool(self, tool_call_id: str, title: str) -> bool:
        for place in self._places(None):
            entry = self._history[place]
            if entry.tool_call_id == tool_call_id and (not title or title == entry.text):
                self._last = []
                self._pass(place)
                return True
        return False

    # -- the log -------------------------------------------------------------------------------------------

    @property
    def _history(self) -> list[_Entry]:
        if self._entries is None:
            self._entries = list(_merged(self._log, self._without))
        return self._entries

    def _places(self, role: MessageRole | None) -> Iterator[int]:
        """Yield the positions of later entries of a role: user messages anywhere, others up to the next user
        message.
        """
        for place in range(self._next, len(self._history)):
            entry = self._history[place]
            if entry.role is role and (role is MessageRole.USER or entry.ended_well or self._asked is None):
                yield place
            if entry.role is MessageRole.USER and role is not MessageRole.USER:
                return

    def _texts(self, role: MessageRole) -> Iterator[tuple[int, str]]:
        """Yield texts that may be replayed as one message, each with its last position."""
        for place in self._places(role):
            yield place, self._history[place].text
            if role is MessageRole.USER:
                yield from self._joined(place)

    def _joined(self, place: int) -> Iterator[tuple[int, str]]:
        """Yield a user message joined with the next ones, while only output of turns that did not end well is
        between them.
        """
        text = self._history[place].text
        for number, entry in enumerate(self._history[place + 1 :], place + 1):
            if entry.role is MessageRole.USER:
                text += entry.text
                yield number, text
            elif entry.ended_well:
                return

    def _pass(self, place: int) -> None:
        self._next = place + 1
        self._matched += self._history[place].role is not MessageRole.THOUGHT


def _merged(log: View, without: PromptId | None) -> Iterator[_Entry]:
    last: _Entry | None = None
    for item in log.items:
        if not isinstance(item, Message | ToolCall) or (without is not None and item.prompt_id == without):
            continue
        ended_well = _ended_well(log, item.prompt_id)
        if isinstance(item, ToolCall):
            entry = _Entry(None, _squeezed_text(item.title or ""), ended_well, item.tool_call_id)
        else:
            entry = _Entry(item.role, _squeezed_text(join_text(item.content)), ended_well)
        if last is not None and last.role is not None and last.role is entry.role:
            last = last._replace(text=last.text + entry.text, ended_well=last.ended_well and ended_well)
            continue
        if last is not None:
            yield last
        last = entry
    if last is not None:
        yield last


def _ended_well(log: View, prompt_id: PromptId | None) -> bool:
    record = log.turns.get(prompt_id) if prompt_id is not None else None
    outcome = None if record is None else record.outcome
    return outcome is not None and outcome.error is None and outcome.stop_reason != "cancelled"


def _squeezed(content: Raw | None) -> str:
    """Return the text of one block, or of a list of them."""
    if content is None:
        return ""
    blocks = read_entries(content)
    return _squeezed_text(join_text([content] if blocks is None else blocks))


def _squeezed_text(text: str) -> str:
    return "".join(text.split())


# -- the history that an agent replays on `session/load` -----------------------------------------------------


class Comparison(NamedTuple):
    """The comparison of a replay with the log."""

    replayed: int
    matched: int
    missing: int
    first_difference: str | None


class _Spoken(NamedTuple):
    kind: str
    text: str


class _Text(msgspec.Struct):
    text: str = ""


def compare(log: View, replay: View, *, without: PromptId | None = None) -> Comparison:
    """Compare a replay with the log. `without` is a turn that the agent cannot know yet."""
    ours, theirs = _entries(log, without), _entries(replay, None)
    matched = 0
    for mine, other in zip(ours, theirs, strict=False):
        if mine != other:
            break
        matched += 1
    difference: str | None = None
    if matched < len(ours) or matched < len(theirs):
        mine = ours[matched].kind if matched < len(ours) else "nothing"
        other = theirs[matched].kind if matched < len(theirs) else "nothing"
        difference = f"entry {matched + 1}: the log has {mine}, the replay has {other}"
        if mine == other:
            difference += " with another text"
    return Comparison(len(theirs), matched, max(0, len(ours) - matched), difference)


def _entries(view: View, without: PromptId | None) -> list[_Spoken]:
    spoken = [entry for entry in map(_entry, _items(view, without)) if entry is not None]
    merged: list[_Spoken] = []
    for kind, group in groupby(spoken, key=lambda entry: entry.kind):
        if kind == "a tool call":
            merged.extend(group)
        else:
            # Agents join or split adjacent messages of one role when they replay.
            merged.append(_Spoken(kind, "".join("".join(entry.text for entry in group).split())))
    return merged


def _items(view: View, without: PromptId | None) -> list[Message | ToolCall]:
    return [
        item
        for item in view.items
        if isinstance(item, Message | ToolCall) and (without is None or item.prompt_id != without)
    ]


def _entry(item: Message | ToolCall) -> _Spoken | None:
    if isinstance(item, ToolCall):
        return _Spoken("a tool call", item.title or item.tool_call_id)
    if item.role is MessageRole.THOUGHT:
        return None
    kind = "a user message" if item.role is MessageRole.USER else "an agent message"
    return _Spoken(kind, "".join(_text(block) for block in item.content))


def _text(block: msgspec.Raw) -> str:
    try:
        return msgspec.json.decode(block, type=_Text).text
    except msgspec.DecodeError:
        return ""
