"""Whether two arms gave the same answers: scheduling must change no token of a greedy answer."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final

from ekiden.evaluation.analysis.metric import MetricDef, PairFinding
from ekiden.evaluation.analysis.requests import whole
from ekiden.evaluation.results import Answered, ArmRun


def same_answers(ours: Sequence[ArmRun], theirs: Sequence[ArmRun]) -> PairFinding:
    """The share of requests that got the same tokens from both, or the same text where tokens are not told.

    Compared are the requests of the same block that both answered whole: the first time that one arm served the block
    with the other's first time, and so on.
    """
    others = _answers(theirs)
    compared = same = 0
    first = ""
    for key, answer in _answers(ours).items():
        other = others.get(key)
        difference = None if other is None else _difference(answer, other)
        if difference is None:
            continue
        compared += 1
        same += difference == ""
        first = first or (difference and f"{answer.id}: {difference}")
    return PairFinding(value=same / compared if compared else None, compared=compared, first_difference=first)


def _answers(runs: Iterable[ArmRun]) -> dict[tuple[str, int, int, str], Answered]:
    """Whole answers by workload, block, how many times the block had been served before, and request."""
    served: dict[tuple[str, int], int] = defaultdict(int)
    found = {}
    for run in sorted(runs, key=lambda run: run.position):
        time = served[run.workload, run.block]
        served[run.workload, run.block] += 1
        found.update({(run.workload, run.block, time, one.id): one for one in run.results if whole(one)})
    return found


def _difference(ours: Answered, theirs: Answered) -> str | None:
    """Where two answers part, empty for equal ones, None where they cannot be compared."""
    if ours.token_ids is not None and theirs.token_ids is not None:
        return _first_token_apart(ours.token_ids, theirs.token_ids)
    if ours.text_digest is not None and theirs.text_digest is not None:
        return "" if ours.text_digest == theirs.text_digest else "SHA-256 of text"
    return None


def _first_token_apart(ours: Sequence[int], theirs: Sequence[int]) -> str:
    if ours == theirs:
        return ""
    pairs = zip(ours, theirs, strict=False)
    position = next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(ours), len(theirs)))
    a, b = (str(tokens[position]) if position < len(tokens) else "end" for tokens in (ours, theirs))
    return f"token {position}: {a} / {b}"


TOKENS_EQUAL: Final = MetricDef(
    name="tokens_equal",
    formula="requests with the same tokens from both arms / requests that both answered whole, block by block",
    unit="share",
    direction="up",
    pair_value=same_answers,
)
