"""Where releases are kept. It imports nothing of releases, so that a server without any starts as fast."""

import os
from pathlib import Path


def release_folder(given: str | None) -> Path:
    """``given``, else beside the recorded runs."""
    if given:
        return Path(given).expanduser()
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(state).expanduser() / "ekiden" / "release"
