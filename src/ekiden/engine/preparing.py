"""Requests whose grammar is still being compiled. They are held outside the core, so that no step waits for that.

All methods run on the thread that drives the engine; only ``notify`` is called from the compiler's thread.
"""

from collections.abc import Callable
from dataclasses import dataclass

from ekiden.sampling.structured import GrammarCompiler
from ekiden.state.request import Request


@dataclass(frozen=True, slots=True)
class Prepared:
    """The grammar of a held request has been compiled, or refused; intake finds out which."""

    request: Request


@dataclass(frozen=True, slots=True)
class Aborted:
    """A held request is to end. ``why``: who asked for it and why; None when the client went away."""

    why: str | None


class Preparing:
    def __init__(self, grammars: GrammarCompiler | None, notify: Callable[[Prepared], None]) -> None:
        self._grammars = grammars
        self._notify = notify
        self._held: dict[str, Request] = {}
        self._aborted: dict[str, Aborted] = {}

    @property
    def held(self) -> list[str]:
        """The ids of the requests that are held."""
        return list(self._held)

    def hold(self, request: Request) -> bool:
        """True when the request must wait; ``notify`` is then called once with :class:`Prepared`."""
        grammar = request.sampling.grammar
        if grammar is None or self._grammars is None:
            return False
        try:
            compiling = self._grammars.submit(grammar)
        except Exception:  # noqa: BLE001 - intake meets the same error, where it ends this request alone
            return False
        if compiling.done():
            return False
        self._held[request.request_id] = request
        compiling.add_done_callback(lambda _: self._notify(Prepared(request)))
        return True

    def abort(self, request_id: str, why: str | None = None) -> bool:
        """True when the request is held; :meth:`release` then tells that it was aborted."""
        if request_id not in self._held:
            return False
        self._aborted[request_id] = Aborted(why)
        return True

    def release(self, prepared: Prepared) -> Aborted | None:
        """Stop holding the request; tells whether it was aborted meanwhile."""
        self._held.pop(prepared.request.request_id, None)
        return self._aborted.pop(prepared.request.request_id, None)

    def give_up(self) -> list[Request]:
        """Stop holding all requests, and return them."""
        held = list(self._held.values())
        self._held.clear()
        self._aborted.clear()
        return held
