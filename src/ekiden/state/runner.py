"""The port through which the engine reaches a model, and nothing else of it.

A runner owns the weights, the KV pool and the choice of tokens: logits never leave the device on which it made them.
Plans and results are values, so a runner may live in another process.
"""

from dataclasses import dataclass, field
from typing import Protocol

from ekiden.state.plan import BatchPlan, StepOutput


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkRules:
    """How the engine may divide work for a backend, so that the same request gives the same bits however it is divided.

    ``border``: a chunk that does not end its prompt ends at a multiple of this many tokens. ``least``: no chunk of a
    longer prompt has fewer tokens; where a backend computes a lone token with other rounding, this is 2.
    ``least_rows``: the backend fills its passes up to so many rows by itself.
    """

    border: int
    least: int = 1
    least_rows: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerInfo:
    """What the engine must know about a loaded model. The lineage takes over ``details``."""

    backend: str
    vocab_size: int
    max_model_len: int
    block_size: int
    num_blocks: int
    num_swap_blocks: int
    bytes_per_block: int
    chunks: ChunkRules
    max_drafts: int = 0
    """The most drafts that a row may hold; 0 for a backend that takes none."""
    tokens_per_change: int = 0
    """How many tokens take as long as it takes to compute another number of them than in the last step. The backend
    keeps that number, for as many tokens computed in vain (docs/decisions/0028)."""
    most_tokens: int | None = None
    """The most tokens in a step that it was prepared for; None: any number."""
    hidden_size: int | None = None
    """Floats in a hidden state; None for a model that cannot give them (:class:`ekiden.state.plan.StateSum`)."""
    most_rows: int | None = None
    """The most rows that get a token that it was prepared for; None: any number."""
    stored_bytes: int | None = None
    """Bytes of the files from which its weights are loaded; None where there are none."""
    details: dict[str, str] = field(default_factory=dict)


class ModelRunner(Protocol):
    """A loaded model with its KV pool. Block ids run from 0 to ``num_blocks - 1``; all are the engine's to give out."""

    @property
    def info(self) -> RunnerInfo: ...

    def execute(self, plan: BatchPlan) -> StepOutput:
        """Apply the plan's copies of blocks, compute its rows and choose their tokens.

        A row's tokens depend on the row alone, never on those beside it. Of ``timing`` the runner fills in ``model``
        and ``sampling``. What fails for one row alone (its sampling, its log-probabilities) is told in its result.

        Any exception but the two below means that a row could not be computed, and not which: the copies have been
        applied, and nothing of the rows may be used. They may then be given again, in plans without copies; computing
        a row twice changes nothing, since its keys and values go to the same places.

        Raises:
            CopiesLost: the copies of blocks could not be applied, and nothing was computed.
            RunnerBroken: the runner can compute nothing any more.
        """
        ...

    def check(self) -> None:
        """Compute something that belongs to no request. Raises an exception when the runner cannot do even that."""
        ...

    def close(self) -> None: ...


class RunnerError(RuntimeError):
    """The model could not compute a step."""


class CopiesLost(RunnerError):
    """Blocks could not be copied, so those who own them have lost them; the runner can go on."""


class RunnerBroken(RunnerError):
    """The runner cannot go on (its device is gone, say): the process that holds it has to be replaced."""
