"""Text in small deltas, so that an answer is seen to stream."""

from __future__ import annotations

from turnwire.agent import Turn

DELTA_CHARACTERS = 32
CHARACTERS_PER_TOKEN = 4


async def stream(turn: Turn, text: str) -> None:
    """Say a text in deltas of a few words each, and count its tokens."""
    for each in deltas(text):
        await turn.say(each)
    turn.usage(output_tokens=tokens(text))


def tokens(text: str) -> int:
    """Estimate the tokens of a text, so that clients have usage to show."""
    return -(-len(text) // CHARACTERS_PER_TOKEN)


def deltas(text: str) -> list[str]:
    """Split a text at spaces; joined, the parts are the text."""
    parts: list[str] = [""]
    for word in text.split(" "):
        if len(parts[-1]) + len(word) > DELTA_CHARACTERS:
            parts.append("")
        parts[-1] += f"{word} "
    parts[-1] = parts[-1][:-1]
    return [each for each in parts if each]
