"""The values from which engines are made; :mod:`ekiden.build` makes them."""

from dataclasses import dataclass
from pathlib import Path

from ekiden.engine.engine_core import EngineCore
from ekiden.engine.interface import ModelCard
from ekiden.ledger.store import LedgerWriter
from ekiden.models.tokenizer import Tokenizer
from ekiden.sampling.structured import GrammarCompiler
from ekiden.state.runner import ModelRunner


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineParts:
    """A loaded model and all that belongs to it."""

    runner: ModelRunner
    card: ModelCard
    tokenizer: Tokenizer | None = None
    """None for a model without text: requests then carry token ids and no stop strings."""
    grammars: GrammarCompiler | None = None
    """None for a model without text: requests with a grammar are then refused."""
    draft_runner: ModelRunner | None = None
    """A smaller model that guesses tokens of the other; None where there is none."""

    @property
    def eos_token_ids(self) -> frozenset[int]:
        return frozenset() if self.tokenizer is None else self.tokenizer.eos_token_ids


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltEngine:
    """An engine core over loaded parts, ready to be driven by one engine."""

    core: EngineCore
    parts: EngineParts
    ledger: LedgerWriter | None = None
    """Records the core's turns; None when they are not recorded."""

    @property
    def ledger_path(self) -> Path | None:
        return None if self.ledger is None else self.ledger.path

    def close_ledger(self) -> None:
        """Write what is left, and close the file. Harmless when repeated."""
        if self.ledger is not None:
            self.ledger.close()
