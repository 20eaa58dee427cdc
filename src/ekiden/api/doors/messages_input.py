"""How ``/v1/messages`` reads a conversation: Anthropic's blocks become messages as chat templates expect them."""

import json
from typing import Any, Final, NamedTuple

from ekiden.api.call import EarlierCall, Message, earlier_call
from ekiden.api.errors import shown
from ekiden.api.fields import FOUND_BY_CONTENT, MAX_MESSAGES
from ekiden.api.hand_checks import objects, rule, string_field
from ekiden.api.json_schema import TEXT, any_of, array
from ekiden.api.shape import Objects, Shape, ignored

_ROLES: Final = ("user", "assistant", "system")
_TAKEN: Final = {
    "user": "'text', 'tool_result', and 'document' and 'search_result' of text are taken",
    "assistant": "'text', 'thinking' and 'tool_use' are taken",
}
_BILLING: Final = "x-anthropic-billing-header:"
_UNREAD: Final = ("redacted_thinking", "fallback", "mcp_tool_listing")

BLOCKS_SCHEMA: Final = any_of(TEXT, array({"type": "object", "properties": {"type": TEXT}}))
MESSAGES_SCHEMA: Final = array(
    {
        "type": "object",
        "properties": {"role": {"enum": list(_ROLES)}, "content": BLOCKS_SCHEMA},
        "required": ["role", "content"],
    },
    1,
    MAX_MESSAGES,
)

_HINTS: Final = {
    "cache_control": ignored(FOUND_BY_CONTENT),
    "citations": ignored("the model cites nothing"),
}
_CALL_HINTS: Final = {"cache_control": ignored(FOUND_BY_CONTENT), "caller": ignored("only the model calls tools here")}


def _texts() -> dict[str, Shape]:
    """The blocks of text by type; made anew for each place, because a name is told once for each shape."""
    keys = {
        "text": ("text",),
        "document": ("source", "title", "context"),
        "search_result": ("source", "title", "content"),
        "compaction": ("content",),
    }
    return {kind: Shape(frozenset({"type", *own}), _HINTS) for kind, own in keys.items()}


def _of(kinds: dict[str, Shape]) -> Shape:
    """A block of one of these types; others are left out, or were refused."""
    return Shape(frozenset(), kinds=kinds, types=frozenset(kinds))


SYSTEM_SHAPE: Final = _of(_texts())
_BLOCKS: Final = {
    **_texts(),
    "thinking": Shape(frozenset({"type", "thinking", "signature"})),
    "tool_use": Shape(frozenset({"type", "id", "name", "input"}), _CALL_HINTS),
    "tool_result": Shape(
        frozenset({"type", "tool_use_id", "content", "is_error"}), _CALL_HINTS, (Objects("content", _of(_texts())),)
    ),
}
MESSAGES_SHAPE: Final = Shape(frozenset({"role", "content"}), inner=(Objects("content", _of(_BLOCKS)),))


def read_text(value: Any, where: str = "") -> str:
    """A string, or blocks that are text."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise rule(f"is {shown(value)}; it must be a string or a list of text blocks", where)
    return "\n".join(_block_text(block, at, "only blocks of text are taken") for at, block in objects(value, where))


class System(NamedTuple):
    """``billed``: a line for the billing of another server was left out."""

    text: str
    billed: bool


def read_system(value: Any) -> System:
    """The system prompt, without Claude Code's line for billing.

    It is no instruction, and differs from call to call, so nothing behind it would be found in the prefix cache.
    """
    whole = read_text(value)
    texts = [whole] if isinstance(value, str) else [read_text([block]) for block in value]
    kept = [text for text in map(_unbilled, texts) if text is not None]
    return System("\n".join(kept), kept != texts)


def _unbilled(text: str) -> str | None:
    """A text of the system prompt without its line for billing; None where nothing is left."""
    return text if not text.startswith(_BILLING) else text.partition("\n")[2] or None


def read_messages(value: Any) -> list[Message]:
    """A user message with tool results becomes one message for each result, and one for its text."""
    if not isinstance(value, list) or not 1 <= len(value) <= MAX_MESSAGES:
        raise rule(f"is {shown(value)}; it must be a list of 1 to {MAX_MESSAGES} messages")
    messages: list[Message] = []
    for where, message in objects(value):
        role, content, at = message.get("role"), message.get("content"), f"{where}.content"
        if role not in _ROLES:
            raise rule(f"is {shown(role)}; it must be 'user', 'assistant' or 'system'", f"{where}.role")
        if role == "system":
            messages.append({"role": role, "content": read_text(content, at)})
        elif isinstance(content, str):
            messages.append({"role": role, "content": content})
        elif not isinstance(content, list) or (not content and role == "user"):
            raise rule(f"is {shown(content)}; it must be a string or a list of blocks", at)
        else:
            messages += _turn(role, content, at)
    return messages


def _turn(role: str, content: list[Any], where: str) -> list[Message]:
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[EarlierCall] = []
    results: list[Message] = []
    for at, block in objects(content, where):
        kind = block.get("type")
        if kind == "tool_use" and role == "assistant":
            calls.append(_call(block, at))
        elif kind == "thinking" and role == "assistant":
            thoughts.append(string_field(block, "thinking", at))
        elif kind == "tool_result" and role == "user":
            results.append(_result(block, at))
        elif role == "user" or not _has_no_text(kind):
            texts.append(_block_text(block, at, f"in a message of the {role} {_TAKEN[role]}"))
    message: Message = {"role": role, "content": "\n".join(texts)}
    if thoughts:
        message["reasoning_content"] = "\n".join(thoughts)
    if calls:
        return [{**message, "tool_calls": calls}]
    return results + ([message] if texts or not results else [])


def _has_no_text(kind: Any) -> bool:
    """Whether a block of an answer is left out: hidden thoughts, the calls of a server's own tools, their results."""
    return isinstance(kind, str) and (kind in _UNREAD or kind.endswith(("_tool_use", "_tool_result")))


def _block_text(block: dict[str, Any], where: str, taken: str) -> str:
    """The text of a block; raises a :func:`rule` that ends with ``taken`` for a block that has none."""
    kind = block.get("type")
    if kind == "text":
        return string_field(block, "text", where)
    if kind == "search_result":
        found = read_text(block.get("content"), f"{where}.content")
        return f"{string_field(block, 'title', where)} ({string_field(block, 'source', where)})\n{found}"
    if kind == "document":
        return _document(block, where)
    if kind == "compaction":  # the client's summary of what came before
        return "" if block.get("content") is None else string_field(block, "content", where)
    raise rule(f"is {shown(kind)}; {taken}", f"{where}.type")


def _document(block: dict[str, Any], where: str) -> str:
    source, at = block.get("source"), f"{where}.source"
    kind = source.get("type") if isinstance(source, dict) else source
    if not isinstance(source, dict) or kind not in ("text", "content"):
        raise rule(f"is {shown(kind)}; the model takes documents of the types 'text' and 'content' only", f"{at}.type")
    text = string_field(source, "data", at) if kind == "text" else read_text(source.get("content"), f"{at}.content")
    heads = [block[key] for key in ("title", "context") if isinstance(block.get(key), str)]
    return "\n".join([*heads, text])


def _call(block: dict[str, Any], where: str) -> EarlierCall:
    arguments = block.get("input")
    if not isinstance(arguments, dict):
        raise rule(f"is {shown(arguments)}; it must be an object", f"{where}.input")
    name = string_field(block, "name", where)
    return earlier_call(string_field(block, "id", where), name, json.dumps(arguments, ensure_ascii=False))


def _result(block: dict[str, Any], where: str) -> Message:
    content = block.get("content")
    if isinstance(content, list):
        # The names of tools that a search of tools found: all tools are offered from the beginning.
        content = [part for part in content if not (isinstance(part, dict) and part.get("type") == "tool_reference")]
    text = "" if content is None else read_text(content, f"{where}.content")
    if block.get("is_error"):
        text = f"Error: {text}"
    return {"role": "tool", "tool_call_id": string_field(block, "tool_use_id", where), "content": text}
