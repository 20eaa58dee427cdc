"""Whatever is wrong with a model's files ends as a :class:`ModelError`: one line that also says what to do."""

from ekiden.errors import UserError

MAX_MESSAGE = 1_000
"""Characters of a message; what a file holds, and is quoted in one, may be of any length."""


class ModelError(UserError):
    """The model cannot be found, fetched, read or run."""

    def __init__(self, message: str) -> None:
        if len(message) > MAX_MESSAGE:  # the beginning names the file, the end says what to do
            message = f"{message[: MAX_MESSAGE // 2]}...{message[-MAX_MESSAGE // 2 :]}"
        super().__init__(message)


def cut(value: object) -> str:
    """A value from a file as errors show it."""
    shown = repr(value[:81] if isinstance(value, str) else value)
    return shown if len(shown) <= 80 else shown[:77] + "..."


def one_line(error: BaseException) -> str:
    """An error's message on one line of at most 200 characters, or the error's type when it has no message."""
    return " ".join(str(error).split())[:200] or type(error).__name__
