"""The hardware profiles that the package carries. Each was measured, and says where."""

from importlib.resources import files
from pathlib import Path

from ekiden.errors import UserError

_FOLDER = Path(str(files("ekiden.evaluation.project"))) / "profiles"


def packaged_profiles() -> list[str]:
    """Their names."""
    return sorted(path.stem for path in _FOLDER.glob("*.toml"))


def profile_path(name: str) -> Path:
    """The file of a packaged profile, or of the path ``name``. Raises :class:`UserError` where there is neither."""
    if name in packaged_profiles():
        return _FOLDER / f"{name}.toml"
    if not Path(name).is_file():
        raise UserError(f"profile is {name!r}; give a TOML file, or one of {', '.join(packaged_profiles())}")
    return Path(name)
