"""The root of all errors that are the caller's to mend."""


class UserError(Exception):
    """A setting, file, address or request that cannot work; the message says which, and what to do."""
