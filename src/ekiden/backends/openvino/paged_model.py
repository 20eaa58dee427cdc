"""A compiled model with its KV pool, which computes one pass at a time. Inputs are flat arrays that it does not copy.

The last layer's end runs only for the tokens named in ``state_rows``, and the head for those of them that
``logit_rows`` names: always for at least two (a single one is named twice), because another kernel, which rounds
differently, computes a single row.
"""

import time
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Protocol

import numpy as np
import numpy.typing as npt
import openvino as ov

from ekiden.backends.openvino.kv_pool import KVPool
from ekiden.backends.openvino.paged import LOGIT_ROWS, STATE_ROWS, STATES
from ekiden.sampling.reduction import FloatMatrix
from ekiden.state.runner import RunnerError

Inputs = dict[str, npt.NDArray[np.generic]]
"""Arrays by the model's input names."""

InputRow = tuple[Sequence[int], int, Sequence[int]]
"""A row of a pass: its tokens, how many tokens come before them, and the blocks that hold all of these."""


class PagedModel(Protocol):
    """The interface of a model that computes passes; tests have implementations of their own."""

    @property
    def pool(self) -> KVPool: ...

    def compute(self, inputs: Inputs) -> tuple[FloatMatrix, float]:
        """Compute one pass: its logits ``[logit rows, vocab]``, valid until the next pass, and the seconds it took."""
        ...

    def states(self) -> FloatMatrix:
        """The last hidden states ``[state rows, hidden]`` of the pass just computed, valid until the next one."""
        ...

    def close(self) -> None: ...


class CompiledPagedModel:
    """A :class:`PagedModel` on OpenVINO. Its ``infer`` releases the GIL.

    ``restore`` turns the states that the graph gives into the model's, where they are others.
    """

    def __init__(
        self,
        compiled: ov.CompiledModel,
        pool: KVPool,
        restore: Callable[[FloatMatrix], FloatMatrix] | None = None,
    ) -> None:
        self.pool = pool
        self._restore = restore
        self._request = compiled.create_infer_request()
        self._indices = {port.any_name: index for index, port in enumerate(compiled.inputs)}
        self._states = next((port for port in compiled.outputs if STATES in port.get_names()), None)
        for name, tensor in pool.tensors.items():
            self._request.set_input_tensor(self._indices[name], tensor)
        self._bound: list[ov.Tensor] = []

    def compute(self, inputs: Inputs) -> tuple[FloatMatrix, float]:
        """See :class:`PagedModel`. Raises :class:`RunnerError` when the model fails."""
        request = self._request
        # The request reads these arrays in place, so they must outlive the pass.
        self._bound = [ov.Tensor(array, shared_memory=True) for array in inputs.values()]
        try:
            for name, tensor in zip(inputs, self._bound, strict=True):
                request.set_input_tensor(self._indices[name], tensor)
            begin = time.perf_counter()
            request.infer(share_outputs=True)
            seconds = time.perf_counter() - begin
        except RuntimeError as error:
            raise RunnerError(f"the model could not compute a pass: {error}") from error
        logits = request.get_output_tensor(0).data
        return logits.reshape(-1, logits.shape[-1]), seconds

    @property
    def hidden_size(self) -> int | None:
        """Floats in a hidden state; None if the graph's states were not found."""
        return None if self._states is None else int(self._states.get_partial_shape()[-1].get_length())

    def states(self) -> FloatMatrix:
        """See :class:`PagedModel`; only where :attr:`hidden_size` is known."""
        states: FloatMatrix = self._request.get_tensor(self._states).data
        states = states.reshape(-1, states.shape[-1])
        return states if self._restore is None else self._restore(states)

    def close(self) -> None:
        del self._request
        self._bound.clear()
        self.pool.tensors.clear()


def flat_inputs(
    rows: Sequence[InputRow], wanted: list[int], places: Sequence[int] = (), state_places: Sequence[int] = ()
) -> Inputs:
    """The inputs of one pass.

    ``wanted`` are the rows whose last token needs logits; ``places`` are the indices, among the tokens of all rows, of
    further tokens that need them, and ``state_places`` of tokens whose hidden states are wanted. These come last among
    the states.
    """
    tokens, starts, tables = zip(*rows, strict=True)
    token_ids, counts = list(chain(*tokens)), list(map(len, tokens))
    past = np.array(starts, np.int32)
    begins = _begins(counts)
    if len(token_ids) == len(rows):
        positions = past.astype(np.int64)
    else:
        positions = np.arange(len(token_ids), dtype=np.int64) + np.repeat(past - begins[:-1], counts)
    last = begins[1:] - 1
    state_rows, num_logits = last, len(last)
    if places or state_places or len(wanted) < len(rows) or len(rows) == 1:
        # If one token wants logits it is named twice (see above); if none does, the head must still run for one.
        chosen = [*last[wanted].tolist(), *places]
        chosen = chosen * 2 if len(chosen) == 1 else chosen or last[:1].tolist()
        num_logits = len(chosen)
        state_rows = np.array([*chosen, *state_places], np.int32)
    return {
        "input_ids": np.array(token_ids, np.int64),
        "position_ids": positions,
        "past_lens": past,
        "subsequence_begins": begins,
        "block_indices": np.array(list(chain(*tables)), np.int32),
        "block_indices_begins": _begins(list(map(len, tables))),
        "max_context_len": np.array(max(map(int.__add__, starts, counts)), np.int32),
        STATE_ROWS: state_rows,
        LOGIT_ROWS: np.arange(num_logits, dtype=np.int32),
    }


def _begins(counts: list[int]) -> npt.NDArray[np.int32]:
    """``[0, c0, c0 + c1, ...]``."""
    begins = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=begins[1:])
    return begins
