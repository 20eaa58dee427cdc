"""``POST /v1/score`` and ``POST /v1/rerank``: how well documents fit a query, by the query's likelihood.

A document's score is the geometric mean of the probabilities that the model gives to the query's tokens after
``Document: ... Query:``, which lies between 0 and 1 (query likelihood: Ponte and Croft 1998; by language models: Sachan
et al. 2022). It orders the documents of one query; as a number it says little, see docs/decisions/0017.
"""

from collections.abc import Mapping
from itertools import product
from math import exp
from typing import Annotated, Any, ClassVar, Final

from pydantic import Field

from ekiden.api.call import Call, Pairs
from ekiden.api.doors.door import Door, Job
from ekiden.api.doors.texts import MAX_TEXTS
from ekiden.api.errors import invalid, shown
from ekiden.api.fields import Count, Priority
from ekiden.api.hand_checks import rule, string_field
from ekiden.api.json_schema import TEXT, any_of, array
from ekiden.api.schema_base import ReadBy, Strict
from ekiden.api.shape import Fate, Shape, ignored, refused
from ekiden.api.text_output import Piece
from ekiden.state.sampling_params import SamplingParams


def _read_text(value: Any, at: str, *, may_be_empty: bool) -> str:
    if not isinstance(value, str):
        raise rule(f"is {shown(value)}; it must be a string", at)
    if not value and not may_be_empty:
        raise rule("is empty; it must have at least one character", at)
    return value


def _read_text_or_texts(value: Any, *, may_be_empty: bool) -> str | list[str]:
    if not isinstance(value, list):
        return _read_text(value, "", may_be_empty=may_be_empty)
    if not value:
        raise rule("is empty; it must hold at least one text")
    return [_read_text(text, f"[{index}]", may_be_empty=may_be_empty) for index, text in enumerate(value)]


def _read_queries(value: Any) -> str | list[str]:
    return _read_text_or_texts(value, may_be_empty=False)


def _read_compared(value: Any) -> str | list[str]:
    return _read_text_or_texts(value, may_be_empty=True)


def _read_documents(value: Any) -> list[str]:
    """Texts, or objects with a ``text`` as Cohere's older clients send them."""
    if not isinstance(value, list) or not value:
        raise rule(f"is {shown(value)}; it must be a list of at least one text")
    texts: list[str] = []
    for index, document in enumerate(value):
        if isinstance(document, dict):
            texts.append(string_field(document, "text", f"[{index}]"))
        else:
            texts.append(_read_text(document, f"[{index}]", may_be_empty=True))
    return texts


_OF_DOCUMENTS: Final = dict.fromkeys(("id", "title"), ignored("a document is its text"))
_QUERY_SCHEMA: Final = {"type": "string", "minLength": 1}
Queries = Annotated[str | list[str], ReadBy(_read_queries, any_of(_QUERY_SCHEMA, array(_QUERY_SCHEMA)))]
Compared = Annotated[str | list[str], ReadBy(_read_compared, any_of(TEXT, array(TEXT)))]
_DOCUMENTS_SCHEMA: Final = array(any_of(TEXT, {"type": "object", "properties": {"text": TEXT}, "required": ["text"]}))
Documents = Annotated[
    list[str], ReadBy(_read_documents, _DOCUMENTS_SCHEMA, Shape(names=frozenset({"text"}), fates=_OF_DOCUMENTS))
]


class PairFields(Strict):
    """What scores and rankings share. Of a longer document only the first ``max_tokens_per_doc`` tokens count."""

    fates: ClassVar[Mapping[str, Fate]] = {"user": ignored("nobody is told apart by it")}

    model: str
    max_tokens_per_doc: Count | None = None
    priority: Priority | None = None


class ScoreRequest(PairFields):
    """``queries`` and ``documents`` are other names of ``text_1`` and ``text_2``."""

    text_1: Queries | None = None
    text_2: Compared | None = None
    queries: Queries | None = None
    documents: Compared | None = None


class RerankRequest(PairFields):
    fates: ClassVar[Mapping[str, Fate]] = {
        "max_chunks_per_doc": ignored("a document is read whole"),
        "rank_fields": refused("a document is its text alone", fine=(["text"],)),
    }

    query: Annotated[str, Field(min_length=1)]
    documents: Documents
    top_n: Count | None = None
    return_documents: bool | None = None


def _call(fields: PairFields, pairs: Pairs) -> Call:
    if len(pairs.wanted) > MAX_TEXTS:
        count = len(pairs.wanted)
        raise invalid(pairs.names[1], f"{count} pairs of texts are asked for; at most {MAX_TEXTS} are allowed.")
    return Call(
        model=fields.model, prompt=pairs, sampling=SamplingParams(temperature=0.0), priority=fields.priority or 0
    )


def _one_of(fields: ScoreRequest, first: str, second: str) -> tuple[str, str | list[str]]:
    """The one of two names of a field that was given, and its value."""
    given = [(name, value) for name in (first, second) if (value := getattr(fields, name)) is not None]
    if not given:
        raise invalid(first, f"{first} is required (or {second}, its other name).", code="missing_parameter")
    if len(given) > 1:
        raise invalid(second, f"{second} is given beside {first}; they are two names of one field, so give one.")
    return given[0]


def score_call(fields: ScoreRequest, defaults: SamplingParams) -> Call:
    """One query against one or many documents, or as many of each, pair by pair."""
    query_name, queries = _one_of(fields, "text_1", "queries")
    name, documents = _one_of(fields, "text_2", "documents")
    single_document = isinstance(documents, str)
    queries = [queries] if isinstance(queries, str) else queries
    documents = [documents] if isinstance(documents, str) else documents
    if len(queries) == 1:
        wanted = list(product((0,), range(len(documents))))
    elif len(queries) == len(documents):
        wanted = [(index, index) for index in range(len(queries))]
    else:
        allowed = f"one, or as many as {name} has, which is {len(documents)}"
        raise invalid(query_name, f"{query_name} has {len(queries)} entries; it must have {allowed}.")
    pairs = Pairs(
        queries=queries,
        documents=documents,
        wanted=wanted,
        names=(query_name, name),
        single_document=single_document,
        keep_first=fields.max_tokens_per_doc,
    )
    return _call(fields, pairs)


def rerank_call(fields: RerankRequest, defaults: SamplingParams) -> Call:
    pairs = Pairs(
        queries=[fields.query],
        documents=fields.documents,
        wanted=list(product((0,), range(len(fields.documents)))),
        names=("query", "documents"),
        keep_first=fields.max_tokens_per_doc,
    )
    return _call(fields, pairs)


def _score(answer: Piece) -> float:
    scored = answer.prompt_logprobs or ()
    return exp(sum(token.logprob for token in scored) / len(scored))


class _PairWriter:
    def __init__(self, job: Job, prefix: str) -> None:
        self.head = {
            "id": f"{prefix}-{job.origin.request_id}",
            "created": job.origin.created,
            "model": job.card.model_id,
        }


class ScoreWriter(_PairWriter):
    def __init__(self, fields: ScoreRequest, job: Job) -> None:
        super().__init__(job, "score")

    def whole(self, answers: list[Piece], usage: dict[str, Any]) -> dict[str, Any]:
        scores = [{"index": index, "object": "score", "score": _score(answer)} for index, answer in enumerate(answers)]
        return {**self.head, "object": "list", "data": scores, "usage": usage}


class RerankWriter(_PairWriter):
    def __init__(self, fields: RerankRequest, job: Job) -> None:
        super().__init__(job, "rerank")
        self._fields = fields

    def whole(self, answers: list[Piece], usage: dict[str, Any]) -> dict[str, Any]:
        """Best first; documents with the same score keep their order."""
        found: list[dict[str, Any]] = [
            {"index": index, "relevance_score": _score(answer)} for index, answer in enumerate(answers)
        ]
        found.sort(key=lambda result: -result["relevance_score"])
        if self._fields.return_documents is not False:
            found = [result | {"document": {"text": self._fields.documents[result["index"]]}} for result in found]
        return {**self.head, "object": "list", "results": found[: self._fields.top_n], "usage": usage}


SCORE_DOOR: Final = Door(fields=ScoreRequest, call=score_call, writer=ScoreWriter)
RERANK_DOOR: Final = Door(fields=RerankRequest, call=rerank_call, writer=RerankWriter)
