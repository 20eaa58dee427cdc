"""Everything that can be wrong with a model's files ends as a :class:`ModelError`: one line, with the way out."""

from ekiden.errors import UserError


class ModelError(UserError):
    """The model cannot be found, fetched, read or run; the message names the thing and what to do."""
