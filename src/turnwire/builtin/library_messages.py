"""A conversation in the library's form, and the provider's own form of an answer.

Takes our messages; gives those of the library. An answer whose provider wants more back than its text and calls
(such as signed thinking) is kept whole as opaque bytes, and goes back only to the provider it came from. Never
repairs a conversation.
"""

from __future__ import annotations

from base64 import b64decode
from binascii import Error as NotBase64
from collections.abc import Sequence

from pydantic import ValidationError
from pydantic_ai.messages import (
    BinaryContent,
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelRequestPart,
    ModelResponse,
    ModelResponsePart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserContent,
    UserPromptPart,
)

from turnwire.builtin.model import (
    AssistantMessage,
    ImagePart,
    Message,
    ResourcePart,
    ToolResult,
    UserMessage,
    UserPart,
)
from turnwire.builtin.model import TextPart as SaidText

EMPTY = "(empty)"
"""For a text of nothing or of spaces, which some providers refuse."""
LOST_IMAGE = "[A picture was here. This model takes no pictures.]"
BAD_IMAGE = "[A picture was here. It could not be read.]"
IMAGES = ("image/png", "image/jpeg", "image/gif", "image/webp")
"""What every provider takes. Another kind would be refused, and with it every later request of the conversation."""


def conversation(messages: Sequence[Message], *, provider: str, takes_images: bool) -> list[ModelMessage]:
    """`messages` as `provider` gets them. What stands between two answers becomes one request."""
    told: list[ModelMessage] = []
    asked: list[ModelRequestPart] = []
    for message in messages:
        match message:
            case UserMessage(parts):
                asked.append(_prompt(parts, takes_images))
            case ToolResult():
                asked.append(_tool_return(message))
            case AssistantMessage():
                answer = _answer(message, provider)
                if not answer.parts:
                    continue
                if asked:
                    told.append(ModelRequest(parts=asked))
                    asked = []
                told.append(answer)
    if asked:
        told.append(ModelRequest(parts=asked))
    return told


def opaque_of(response: ModelResponse) -> bytes | None:
    """What has to be kept of an answer beside its text and its calls; `None` when that is all of it."""
    if any(isinstance(part, ThinkingPart) or _has_more(part) for part in response.parts):
        return ModelMessagesTypeAdapter.dump_json([response])
    return None


def _has_more(part: ModelResponsePart) -> bool:
    return bool(getattr(part, "provider_details", None))


def _prompt(parts: Sequence[UserPart], takes_images: bool) -> UserPromptPart:
    contents = [_content(part, takes_images) for part in parts]
    # Text alone goes as such: not every server that calls itself compatible takes a list.
    texts = [content for content in contents if isinstance(content, str)]
    return UserPromptPart(content=_filled("\n".join(texts)) if len(texts) == len(contents) else contents)


def _content(part: UserPart, takes_images: bool) -> UserContent:
    match part:
        case SaidText(text):
            return _filled(text)
        case ImagePart(mime, content):
            return _image(mime, content) if takes_images else LOST_IMAGE
        case ResourcePart(uri, None, _):
            return f"[The user refers to {uri}]"
        case ResourcePart(uri, text, _):
            return f"<resource uri={uri!r}>\n{text}\n</resource>"


def _filled(text: str) -> str:
    return text if text.strip() else EMPTY


def _image(mime: str, content: str) -> UserContent:
    if mime not in IMAGES:
        return BAD_IMAGE
    try:
        return BinaryContent(data=b64decode(content, validate=True), media_type=mime)
    except NotBase64:
        return BAD_IMAGE


def _tool_return(result: ToolResult) -> ToolReturnPart:
    return ToolReturnPart(
        tool_name=result.name,
        content=_filled(result.text),
        tool_call_id=result.id,
        outcome="failed" if result.is_error else "success",
    )


def _answer(message: AssistantMessage, provider: str) -> ModelResponse:
    """The answer as it came from `provider`, else what can be said of it to anybody."""
    kept = _kept(message.opaque)
    if kept is not None and kept.provider_name == provider and _ids(kept) == [wish.id for wish in message.wishes]:
        return kept
    parts: list[ModelResponsePart] = [TextPart(content=message.text)] if message.text.strip() else []
    for wish in message.wishes:
        arguments = wish.text if wish.arguments is None else wish.arguments
        parts.append(ToolCallPart(tool_name=wish.name, args=arguments, tool_call_id=wish.id))
    return ModelResponse(parts=parts)


def _kept(opaque: bytes | None) -> ModelResponse | None:
    if opaque is None:
        return None
    try:
        messages = ModelMessagesTypeAdapter.validate_json(opaque)
    except ValidationError:  # kept by another version of the library
        return None
    return messages[0] if len(messages) == 1 and isinstance(messages[0], ModelResponse) else None


def _ids(response: ModelResponse) -> list[str]:
    return [part.tool_call_id for part in response.parts if isinstance(part, ToolCallPart)]
