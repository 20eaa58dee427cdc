"""Tools for chat templates without them: the system message explains the Hermes format."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

_EXPLANATION: Final = """\
You can call these functions; each line between <tools> and </tools> describes one as JSON:
<tools>
{tools}
</tools>

To call a function, answer with its name and its arguments as JSON between <tool_call> and </tool_call>:
<tool_call>
{{"name": "the function's name", "arguments": {{"the parameter's name": "its value"}}}}
</tool_call>"""


def explained(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The messages with the tools explained in the system message, which is added if there is none."""
    text = _EXPLANATION.format(tools="\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools))
    first, rest = (messages[0], messages[1:]) if messages and messages[0]["role"] == "system" else (None, messages)
    content = text if first is None else f"{first['content']}\n\n{text}"
    return [{"role": "system", "content": content}, *(dict(message) for message in rest)]


def written_out(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The messages with earlier calls and their results written out as text in the Hermes format."""
    result: list[dict[str, Any]] = []
    for message in messages:
        if message["role"] == "tool":
            text = f"<tool_response>\n{message['content']}\n</tool_response>"
            if result and result[-1].get("results"):
                result[-1]["content"] += "\n" + text
            else:
                result.append({"role": "user", "content": text, "results": True})
        elif message.get("tool_calls"):
            calls = [_call_text(call["function"]) for call in message["tool_calls"]]
            texts = [message["content"], *calls] if message["content"] else calls
            result.append({"role": message["role"], "content": "\n".join(texts)})
        else:
            result.append(dict(message))
    for message in result:
        message.pop("results", None)
    return result


def _call_text(function: Mapping[str, Any]) -> str:
    try:
        arguments = json.loads(function["arguments"] or "{}")
    except (ValueError, RecursionError):
        arguments = function["arguments"]  # not JSON: the text itself
    call = {"name": function["name"], "arguments": {} if arguments is None else arguments}
    return f"<tool_call>\n{json.dumps(call, ensure_ascii=False)}\n</tool_call>"
