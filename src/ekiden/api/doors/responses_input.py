"""How ``/v1/responses`` reads a conversation: OpenAI's items become messages as chat templates expect them."""

import json
from dataclasses import replace
from typing import Any, Final, NamedTuple

from ekiden.api.call import EarlierCall, Message, earlier_call
from ekiden.api.doors.responses_tools import TOOL_SHAPE, Placed, custom_arguments, model_name, read_tools
from ekiden.api.errors import shown
from ekiden.api.fields import MAX_MESSAGES
from ekiden.api.hand_checks import joined_text, objects, rule, string_field
from ekiden.api.json_schema import TEXT, any_of, array
from ekiden.api.lone_surrogates import sound_arguments
from ekiden.api.shape import Objects, Shape

_ROLES: Final = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}
"""``developer`` is the newer name of ``system``, which templates know."""

_OWN_CALLS: Final = {"local_shell_call": "action", "shell_call": "action", "apply_patch_call": "operation"}
"""Calls of tools that have a type in place of a name, and the key of what is asked of them."""

_OUTPUTS: Final = ("function_call_output", "custom_tool_call_output", *(f"{kind}_output" for kind in _OWN_CALLS))

_MORE_TOOLS: Final = "additional_tools"

_LOST: Final = {
    "item_reference": "this server keeps nothing between calls; send the item itself",
    "compaction": "what it holds can be read by the server that wrote it only; send the items themselves",
    "computer_call_output": "the model takes text only",
}
"""Items whose neglect would leave a hole in the conversation."""

_ITEM_SCHEMA: Final = {"type": "object", "properties": {"type": TEXT}}
INPUT_SCHEMA: Final = any_of(TEXT, array(_ITEM_SCHEMA, 1, MAX_MESSAGES))

# What the items of an answer have is no wish when they come back: their ids, their states, empty lists beside a text.
_ITEM: Final = frozenset({"type", "id", "status"})
_PARTS: Final = Shape(frozenset({"type", "text", "annotations", "logprobs", "refusal"}))
_CALL: Final = _ITEM | {"call_id"}
_KINDS: Final = {
    "message": Shape(_ITEM | {"role", "content"}, inner=(Objects("content", _PARTS),)),
    "reasoning": Shape(_ITEM | {"summary", "content", "encrypted_content"}),
    "function_call": Shape(_CALL | {"name", "namespace", "arguments"}),
    "custom_tool_call": Shape(_CALL | {"name", "namespace", "input"}),
    **{kind: Shape(_CALL | {key}) for kind, key in _OWN_CALLS.items()},
    **dict.fromkeys(_OUTPUTS, Shape(_CALL | {"output"}, inner=(Objects("output", _PARTS),))),
    "shell_call_output": Shape(_CALL | {"output"}),
    _MORE_TOOLS: Shape(_ITEM | {"role", "tools"}, inner=(Objects("tools", TOOL_SHAPE),)),
}
INPUT_SHAPE: Final = replace(_KINDS["message"], kinds=_KINDS, types=frozenset(_KINDS))


class Input(NamedTuple):
    """``tools`` are those that stand among the items; the model is offered them from the beginning."""

    messages: list[Message]
    tools: list[Placed]


def read_input(value: Any) -> Input:
    """A text or a list of items. Items of a server's own tools are left out."""
    if isinstance(value, str):
        return Input([{"role": "user", "content": value}], [])
    if not isinstance(value, list) or not 1 <= len(value) <= MAX_MESSAGES:
        raise rule(f"is {shown(value)}; it must be a string or a list of 1 to {MAX_MESSAGES} items")
    messages, tools = list[Message](), list[Placed]()
    thoughts: list[str] = []
    """Reasoning that belongs to the answer that follows it."""
    for where, item in objects(value):
        kind = item.get("type", "message")
        if not isinstance(kind, str):
            raise rule(f"is {shown(kind)}; it must be a string", f"{where}.type")
        if kind in _LOST:
            raise rule(f"is {kind!r}, which is not taken: {_LOST[kind]}", f"{where}.type")
        if kind == "reasoning":
            thoughts.append(_thought(item, where))
        elif kind == "message":
            messages.append(_message(item, where))
            _add_thoughts(messages[-1], thoughts)
        elif kind in ("function_call", "custom_tool_call") or kind in _OWN_CALLS:
            _add_call(messages, _call(kind, item, where))
            _add_thoughts(messages[-1], thoughts)
        elif kind in _OUTPUTS:
            call_id = string_field(item, "id" if item.get("call_id") is None and item.get("id") else "call_id", where)
            text = _output(item.get("output"), f"{where}.output")
            messages.append({"role": "tool", "tool_call_id": call_id, "content": text})
        elif kind == _MORE_TOOLS:
            tools.append(read_tools(item.get("tools"), f"{where}.tools"))
    if not messages:
        raise rule("holds no message, call or output")
    return Input(messages, tools)


def _message(item: dict[str, Any], where: str) -> Message:
    role = item.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise rule(f"is {shown(role)}; it must be 'user', 'assistant', 'system' or 'developer'", f"{where}.role")
    return {"role": _ROLES[role], "content": joined_text(item.get("content"), f"{where}.content")}


def _add_thoughts(message: Message, thoughts: list[str]) -> None:
    """Move what was thought before a message to it; what was thought before a message of the user is lost."""
    if thoughts and message["role"] == "assistant":
        earlier = message.get("reasoning_content")
        message["reasoning_content"] = "\n".join(thoughts if earlier is None else [earlier, *thoughts])
    thoughts.clear()


def _thought(item: dict[str, Any], where: str) -> str:
    """The reasoning itself, or else its summary; empty where both were left out."""
    for key in ("content", "summary"):
        if item.get(key):
            parts = objects(item[key], f"{where}.{key}") if isinstance(item[key], list) else ()
            return "\n".join(string_field(part, "text", at) for at, part in parts)
    return ""


def _call(kind: str, item: dict[str, Any], where: str) -> EarlierCall:
    call_id = string_field(item, "call_id", where)
    if kind in _OWN_CALLS:
        key = _OWN_CALLS[kind]
        asked = item.get(key)
        if not isinstance(asked, dict):
            raise rule(f"is {shown(asked)}; it must be an object", f"{where}.{key}")
        return earlier_call(call_id, kind.removesuffix("_call"), json.dumps(asked, ensure_ascii=False))
    namespace = None if item.get("namespace") is None else string_field(item, "namespace", where)
    name = model_name(namespace, string_field(item, "name", where))
    if kind == "custom_tool_call":
        return earlier_call(call_id, name, custom_arguments(string_field(item, "input", where)))
    arguments = string_field(item, "arguments", where)
    sound_arguments(arguments, f"{where}.arguments")
    return earlier_call(call_id, name, arguments)


def _add_call(messages: list[Message], call: EarlierCall) -> None:
    """Chat templates expect a text of the assistant and the calls that follow it in one message."""
    if messages and messages[-1]["role"] == "assistant":
        messages[-1].setdefault("tool_calls", []).append(call)
    else:
        messages.append({"role": "assistant", "content": "", "tool_calls": [call]})


def _output(value: Any, where: str) -> str:
    """What a tool gave back; the outputs of a shell are a list of objects, written out as JSON."""
    if isinstance(value, list) and value and all(isinstance(each, dict) and "stdout" in each for each in value):
        return json.dumps(value, ensure_ascii=False)
    return joined_text(value, where)
