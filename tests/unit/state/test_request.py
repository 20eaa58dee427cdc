"""What waits in its thousands must cost the collector nothing."""

import gc

from ekiden.state.request import Refusal, RefusalReason, Request, RequestUpdate
from ekiden.state.sampling_params import SamplingParams


def test_values_of_a_request_are_not_walked_over_by_the_collector():
    sampling = SamplingParams(temperature=0.5, stop=("\n",), logit_bias={5: 1.0})
    request = Request(request_id="a", prompt_token_ids=(1, 2, 3), sampling=sampling, arrival_time=0.0)
    refusal = Refusal(reason=RefusalReason.DRAINING, message="it drains")
    for value in (sampling, request, refusal, RequestUpdate("a", (1,), refusal=refusal)):
        assert not gc.is_tracked(value), value
