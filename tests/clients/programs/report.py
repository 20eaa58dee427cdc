"""What the programs of this folder share. It needs the standard library only, as it runs in many environments.

A program is a client as its users would write it. It is given the server's address and the model's name, tries one
feature after another, and prints a line of JSON for each: its name, and what went wrong if anything did.
"""

import asyncio
import inspect
import json
import os
import sys
import traceback
from collections.abc import Callable
from importlib.metadata import version as version_of
from typing import Any

URL = os.environ.get("EKIDEN_URL", "")
"""Of the server, without ``/v1``."""
MODEL = os.environ.get("EKIDEN_MODEL", "")
AGENT_URL = os.environ.get("EKIDEN_AGENT_URL", "")
"""Of a server whose model calls the tool ``weather`` when it is offered, and tells what the tool gave."""
AGENT_MODEL = os.environ.get("EKIDEN_AGENT_MODEL", "")

QUESTION = "Why is the sky blue?"
WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Oslo", "Kyoto"]}},
    "required": ["city"],
    "additionalProperties": False,
}


def weather(city: str) -> str:
    """The weather of a city."""
    return f"{city}: 21 degrees"


def run(package: str, features: dict[str, Callable[[], Any]], version: str | None = None) -> None:
    """Try the features in order and report each. Ends with status 1 when one of them failed."""
    print(json.dumps({"package": package, "version": version or version_of(package)}), flush=True)
    failed = False
    for name, try_it in features.items():
        try:
            outcome = try_it()
            if inspect.iscoroutine(outcome):
                asyncio.run(outcome)
        except Exception as error:  # noqa: BLE001  # whatever a client raises is a result
            failed = True
            traceback.print_exc()
            print(json.dumps({"feature": name, "error": f"{type(error).__name__}: {error}"[:500]}), flush=True)
        else:
            print(json.dumps({"feature": name, "error": None}), flush=True)
    sys.exit(failed)
