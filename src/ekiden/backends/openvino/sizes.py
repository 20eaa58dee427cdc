"""How many tokens a pass is filled up to, since a change of that number costs time.

The plugin prepares all of its nodes anew when a pass has another number of tokens than the one before. For the 30
layers of SmolLM2 that takes 9 ms, for 2 tokens as for 200, and as long again for a number that never was, for which
kernels have to be made (docs/decisions/0028). So a pass with somewhat fewer tokens than the last one is filled up with
dummy rows, until these have cost together as much as a change would have: the rule of those who rent until they might
have bought, which never costs more than twice what the best foreknowledge would (Karlin et al., 1988, "Competitive
snoopy caching").
"""

from ekiden.backends.openvino.passes import DUMMY, Pass
from ekiden.models.architectures.spec import ModelSpec

_TOKENS = 16
"""Tokens that took as long as a change, measured with int8 weights on a machine with integer dot products ..."""
_LAYER_WEIGHTS = 3_500_000
"""... and layers of this many weights. A change costs the same for larger layers, a token more."""
_SLOWER = 4
"""How much longer a token takes without such instructions, or with float weights."""


def tokens_per_change(spec: ModelSpec | None, *, integer_products: bool) -> int:
    """How many tokens a pass computes in the time that a change of their number costs; 0 where that is not known."""
    if spec is None:
        return 0
    tokens = min(_TOKENS, _TOKENS * _LAYER_WEIGHTS * spec.num_layers // spec.layer_weights)
    return tokens if integer_products else tokens // _SLOWER


class PassSizes:
    """Fills the passes of a runner, which must be given in the order in which they are computed.

    ``worth``: what a change costs, in tokens; with 0 no pass is filled.
    """

    def __init__(self, worth: int = 0) -> None:
        self._worth = worth
        self._spent = 0
        """Tokens that were computed in vain since the number last changed."""
        self._last = 0
        self._seen: set[int] = set()

    def fill(self, piece: Pass) -> bool:
        """Add dummy rows to the pass, or none; returns whether it has a number of tokens that no pass had before."""
        missing = self._last - piece.tokens
        if 0 <= missing <= self._worth - self._spent:
            self._spent += missing
            for _ in range(missing):
                piece.add(DUMMY, 0, 1, wanted=False)
        else:
            self._last, self._spent = piece.tokens, 0
        new = piece.tokens not in self._seen
        self._seen.add(piece.tokens)
        return new
