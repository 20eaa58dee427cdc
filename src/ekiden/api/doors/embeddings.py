"""``POST /v1/embeddings``: one vector of each input, pooled from the served model's last hidden states.

The model was trained to write text and not to compare it: see docs/decisions/0017.
"""

from base64 import b64encode
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Final, Literal

import numpy as np
import numpy.typing as npt

from ekiden.api.call import Call, Embedding, Texts
from ekiden.api.doors.door import Door, Job
from ekiden.api.doors.texts import TEXTS_SCHEMA, read_texts
from ekiden.api.errors import shown
from ekiden.api.fields import Count, Priority
from ekiden.api.hand_checks import rule
from ekiden.api.schema_base import ReadBy, Strict
from ekiden.api.shape import Fate, ignored
from ekiden.api.text_output import Piece
from ekiden.state.request import Pooling
from ekiden.state.sampling_params import MOST_32, Bound, SamplingParams

KEPT: Final = Bound(-1, MOST_32, f"between 1 and {MOST_32}, or -1 for as many tokens as the context holds")


def _check_kept(value: Any) -> int:
    if type(value) is not int or value == 0 or not KEPT.allows(value):
        raise rule(f"is {shown(value)}; it must be {KEPT.words}")
    return value


KeptTokens = Annotated[int, ReadBy(_check_kept, {"type": "integer", "minimum": KEPT.least, "not": {"const": 0}})]


class EmbeddingsRequest(Strict):
    fates: ClassVar[Mapping[str, Fate]] = {
        "user": ignored("nobody is told apart by it"),
        "input_type": ignored("the model knows one kind of input"),
    }

    model: str
    input: Annotated[Texts, ReadBy(read_texts, TEXTS_SCHEMA)]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Count | None = None
    # Extensions common elsewhere.
    pooling: Literal["mean", "last"] | None = None
    normalize: bool | None = None
    add_special_tokens: bool | None = None
    truncate_prompt_tokens: KeptTokens | None = None
    priority: Priority | None = None


def embeddings_call(fields: EmbeddingsRequest, defaults: SamplingParams) -> Call:
    special = fields.add_special_tokens is not False
    inputs = replace(fields.input, param="input", add_special=special, keep_last=fields.truncate_prompt_tokens)
    return Call(
        model=fields.model,
        prompt=inputs,
        sampling=SamplingParams(temperature=0.0),
        priority=fields.priority or 0,
        embedding=Embedding(pooling=Pooling(fields.pooling or Pooling.MEAN), dimensions=fields.dimensions),
    )


def embedding_of(pooled: bytes, dimensions: int | None, *, unit_length: bool) -> npt.NDArray[np.float32]:
    """The first ``dimensions`` numbers of a pooled vector; with ``unit_length`` scaled to it, if any is not zero."""
    vector = np.frombuffer(pooled, "<f4")[:dimensions].astype(np.float64)
    length = float(np.sqrt(np.square(vector).sum()))
    return (vector / length if unit_length and length > 0 else vector).astype("<f4")


class EmbeddingsWriter:
    def __init__(self, fields: EmbeddingsRequest, job: Job) -> None:
        self._fields, self._job = fields, job

    def whole(self, answers: list[Piece], usage: dict[str, Any]) -> dict[str, Any]:
        return {
            "object": "list",
            "data": [
                {"object": "embedding", "index": index, "embedding": self._written(answer.pooled or b"")}
                for index, answer in enumerate(answers)
            ],
            "model": self._job.card.model_id,
            "usage": {name: usage[name] for name in ("prompt_tokens", "total_tokens", "prompt_tokens_details")},
        }

    def _written(self, pooled: bytes) -> list[float] | str:
        unit_length = self._fields.normalize is not False
        vector = embedding_of(pooled, self._fields.dimensions, unit_length=unit_length)
        if self._fields.encoding_format == "base64":
            return b64encode(vector.tobytes()).decode()
        numbers: list[float] = vector.tolist()
        return numbers


DOOR: Final = Door(fields=EmbeddingsRequest, call=embeddings_call, writer=EmbeddingsWriter)
