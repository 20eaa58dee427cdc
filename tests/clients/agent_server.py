"""A real server over a scripted engine whose model behaves as an agent's does: it calls a tool that it is offered, and
tells what the tool gave. No small model does that by itself.

``python -m tests.clients.agent_server`` prints the server's address and serves until it gets a signal.
"""

import asyncio
import json

import msgspec

from ekiden.api.binding import bind, url_of
from ekiden.api.server import make_server
from ekiden.state.request import Request
from tests.api.scripted import END, QUICK, ScriptedEngine, make_app, make_tokenizer, say

CONTEXT = 1_000_000
"""In tokens: each byte is one here, and agents send long instructions."""


def call_of(name: str, arguments: dict[str, object]) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


COMMAND = "printf '%s degrees' 21"
"""Its output has words that are not in itself, so they are in a prompt only if somebody ran it."""
TOOLS: dict[str, dict[str, object]] = {
    "weather": {"city": "Oslo"},
    "exec_command": {"cmd": COMMAND},  # Codex
    "run_commands": {"commands": [COMMAND]},  # Cline
    "run_shell_command": {"command": COMMAND, "is_background": False},  # Qwen Code
    "Bash": {"command": COMMAND},  # Continue
    "bash": {"command": COMMAND, "description": "Ask for the weather"},  # opencode
}
"""The arguments with which the model calls a tool of this name; the first that is offered counts."""
RESULT = "21 degrees"


def agent_answer(request: Request) -> list[int]:
    prompt = bytes(token for token in request.prompt_token_ids if token < 256).decode()
    if RESULT in prompt:
        return [*say("It is 21 degrees."), END]
    for name, arguments in TOOLS.items():
        if f'"name": "{name}"' in prompt:
            return [*say(call_of(name, arguments)), END]
    return [*say("The sky scatters blue light."), END]


async def serve() -> None:
    engine = ScriptedEngine(make_tokenizer(), agent_answer)
    engine.card = msgspec.structs.replace(engine.card, max_model_len=CONTEXT)
    app = make_app(engine)
    app.state.doors.generation.text.max_model_len = CONTEXT
    listener = bind("127.0.0.1", 0)
    print(url_of(listener), flush=True)
    await make_server(app, QUICK).serve(sockets=[listener])


if __name__ == "__main__":
    asyncio.run(serve())
