"""The port through which the engine reaches a model, and nothing else of it.

A runner owns the weights and the KV pool. It is handed a plan and yields the logits of the rows that need a token.
A step may take several passes of the compiled model (a kernel that changes its rounding above some number of tokens
must not be fed more than that in strict mode), so logits come pass by pass: each array is valid until the next one
is asked for, which lets a backend hand out a view of its own buffer.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ekiden.state.plan import BatchPlan

FloatMatrix = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerInfo:
    """What the engine must know about a loaded model. ``details`` goes to the lineage as it is."""

    backend: str
    vocab_size: int
    max_model_len: int
    block_size: int
    num_blocks: int
    num_swap_blocks: int
    bytes_per_block: int
    most_tokens: int | None = None
    """Tokens in a step for which it was prepared, and rows that get a token; None: any number."""
    most_rows: int | None = None
    details: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PassOutput:
    """The logits of one pass, float32 of shape ``[len(rows) + len(prompt_positions), vocab_size]``.

    ``rows[i]`` is the index in the plan of the row whose next-token logits are ``logits[i]``. Rows whose prefill goes
    on are absent. After them come the logits at ``prompt_positions``: pairs of a row and a position in its sequence,
    for every position of :meth:`Sequence.prompt_logit_positions`, each row's in ascending order over the passes of a
    step. ``model_seconds`` is the time inside the compiled model.
    """

    rows: list[int]
    logits: FloatMatrix
    model_seconds: float
    padding_rows: int = 0
    prompt_positions: list[tuple[int, int]] = field(default_factory=list)


class ModelRunner(Protocol):
    """A loaded model with its KV pool. Block ids run from 0 to ``num_blocks - 1``; all are the engine's to give out."""

    @property
    def info(self) -> RunnerInfo: ...

    def execute(self, plan: BatchPlan) -> Iterator[PassOutput]:
        """Apply the plan's swaps, then compute its rows.

        Row ``i`` computes tokens ``[c, c + num_tokens[i])`` of its sequence, ``c`` being ``num_computed_tokens``,
        writing keys and values through ``block_table``. A row needs logits when it reaches the end of its sequence's
        ``token_ids``. Raises :class:`RunnerError` when the step failed and nothing of it may be used.
        """
        ...

    def close(self) -> None: ...


class RunnerError(RuntimeError):
    """The model could not compute a step."""
