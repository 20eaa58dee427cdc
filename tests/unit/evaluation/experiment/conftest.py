"""What all evaluations of this folder's tests do without."""

import pytest

from ekiden.evaluation.experiment import curves


@pytest.fixture(scope="module", autouse=True)
def few_rates():
    """Each evaluation draws goodput against two rates; all of them took a third of the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(curves, "FACTORS", (0.5, 2.0))
        yield
