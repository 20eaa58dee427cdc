"""Whatever is wrong with a model's files ends as a :class:`ModelError`: one line that also says what to do."""

from ekiden.errors import UserError


class ModelError(UserError):
    """The model cannot be found, fetched, read or run."""


def one_line(error: BaseException) -> str:
    """An error's message on one line of at most 200 characters, or the error's type when it has no message."""
    return " ".join(str(error).split())[:200] or type(error).__name__
