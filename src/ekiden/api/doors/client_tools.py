"""Tools of Anthropic's that the client runs and the model knows by type: their descriptions and schemas.

Models here were not trained on these types, so they are offered as the functions that they are.
"""

from typing import Any, Final, NamedTuple

from ekiden.api.json_schema import TEXT, array

_NUMBER: Final = {"type": "integer"}


class ClientTool(NamedTuple):
    description: str
    schema: dict[str, Any]


def _of(description: str, required: list[str], **properties: dict[str, Any]) -> ClientTool:
    return ClientTool(description, {"type": "object", "properties": properties, "required": required})


_OLDER_EDITS: Final = {
    "path": TEXT,
    "view_range": array(_NUMBER, 2, 2),
    "file_text": TEXT,
    "old_str": TEXT,
    "new_str": TEXT,
    "insert_line": _NUMBER,
}
_EDITS: Final = {**_OLDER_EDITS, "insert_text": TEXT}

_BASH: Final = _of(
    "Runs a command in a shell that stays open between calls. restart: true begins a new one.",
    [],
    command=TEXT,
    restart={"type": "boolean"},
)
_TEXT_EDITOR: Final = _of(
    "Views and edits files. view shows a file (view_range: its first and last line) or lists a folder; create writes "
    "file_text to a new file; str_replace puts new_str in the place of old_str, which must occur once; insert puts "
    "insert_text after the line insert_line.",
    ["command", "path"],
    command={"enum": ["view", "create", "str_replace", "insert"]},
    **_EDITS,
)
_OLDER_TEXT_EDITOR: Final = _of(
    "Views and edits files. view shows a file (view_range: its first and last line) or lists a folder; create writes "
    "file_text to a new file; str_replace puts new_str in the place of old_str, which must occur once; insert puts "
    "new_str after the line insert_line; undo_edit takes back the last edit.",
    ["command", "path"],
    command={"enum": ["view", "create", "str_replace", "insert", "undo_edit"]},
    **_OLDER_EDITS,
)
_MEMORY: Final = _of(
    "Keeps files between conversations, under /memories. view shows a file or lists a folder; create, str_replace and "
    "insert change a file; delete removes path; rename gives old_path the name new_path.",
    ["command"],
    command={"enum": ["view", "create", "str_replace", "insert", "delete", "rename"]},
    **_EDITS,
    old_path=TEXT,
    new_path=TEXT,
)

CLIENT_TOOLS: Final = {
    "bash_20241022": _BASH,
    "bash_20250124": _BASH,
    "text_editor_20241022": _OLDER_TEXT_EDITOR,
    "text_editor_20250124": _OLDER_TEXT_EDITOR,
    "text_editor_20250429": _TEXT_EDITOR,
    "text_editor_20250728": _TEXT_EDITOR,
    "memory_20250818": _MEMORY,
}
"""By type."""
