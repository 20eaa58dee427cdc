"""What a weight format costs in quality: the carried texts' perplexity, and how far greedy answers stay with float32's.

Everything runs through the engine that serves: answers are requests, and texts are readings whose tokens are scored.
The reference is the same model in float32, keys and values too. Each format is measured in a process of its own, so
that the memory it needs can be told.
"""

import math
import multiprocessing
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import fields, replace
from itertools import takewhile
from pathlib import Path
from statistics import fmean

import msgspec

from ekiden.build.core import build_core
from ekiden.build.model import load_model
from ekiden.config import AUTO_WEIGHTS, Config, ModelConfig
from ekiden.engine.driver import NO_LIMITS, Answer, run_batch
from ekiden.engine.parts import EngineParts
from ekiden.errors import UserError
from ekiden.evaluation.workloads.package_data import passages, prompts
from ekiden.evaluation.workloads.texts import FILES
from ekiden.measure.figures import Figures
from ekiden.models.conversation import chat_token_ids
from ekiden.models.load import ModelDescription
from ekiden.state.request import Reading, Request
from ekiden.state.sampling_params import SamplingParams

PASSAGE_TOKENS = 512
FIRST_PASSAGES = 16
"""So many give a first figure, the one that other tables of ours hold."""
ANSWER_TOKENS = 48
PROMPTS = 16
REFERENCE = "fp32"
_STATUS = Path("/proc/self/status")


class Material(msgspec.Struct, frozen=True, kw_only=True):
    """What is read and asked, as token ids of one model."""

    passages: list[list[int]]
    prompts: list[list[int]]


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """What one engine made of the material.

    ``losses``: for each passage the summed negative log-likelihoods of its tokens but the first, in nats; empty of an
    engine that does not tell them.
    ``answers``: greedy tokens of each prompt. ``same_choices``: how many tokens of the reference's answers this engine
    would choose too after the same text; None for the reference itself. Bytes are None where they cannot be told.
    """

    losses: list[float]
    answers: list[list[int]]
    same_choices: int | None = None
    stored_bytes: int | None = None
    resident_bytes: int | None = None
    fingerprint: str | None = None


class Failed(msgspec.Struct, frozen=True, kw_only=True):
    """Why a format could not be measured."""

    reason: str


def material_for(
    description: ModelDescription, *, language: str, num_passages: int | None, num_prompts: int, context: int
) -> Material:
    """The carried texts of ``language``, each cut to what the ``context`` holds, and the first prompts as chats.

    A model without a chat template gets the prompts as plain text. Raises :class:`UserError` for a model whose weights
    cannot be had in other formats.
    """
    if description.spec is None:
        raise UserError(
            f"{description.files.name} is an OpenVINO folder, whose weights stay as exported; give the GGUF file or "
            "the safetensors folder that it was made of"
        )
    tokenizer, most = description.tokenizer, min(PASSAGE_TOKENS, context - 1)
    texts = passages(language)[:num_passages]
    encoded = [tokenizer.encode(text, add_special_tokens=True)[:most] for text in texts]
    asked = [prompt.turns[0] for prompt in prompts(FILES[language])[:num_prompts]]
    if description.chat_template is None:
        chats = [tokenizer.encode(text, add_special_tokens=True) for text in asked]
    else:
        template = description.chat_template
        chats = [chat_token_ids(tokenizer, template, [{"role": "user", "content": text}]) for text in asked]
    fitting = [chat for chat in chats if len(chat) + ANSWER_TOKENS <= context]
    if not fitting:
        raise UserError(f"max_model_len is {context}; no prompt fits with its {ANSWER_TOKENS} tokens of answer")
    return Material(passages=encoded, prompts=fitting)


def measure(parts: EngineParts, config: Config, material: Material, reference: Measured | None = None) -> Measured:
    """Answer the prompts, note the memory, then score the passages and, where it is given, the reference's answers."""
    config = replace(config, limits=NO_LIMITS, tenants={})
    core = build_core(parts, config)

    def run(requests: list[Request]) -> list[Answer]:
        return [_whole(answer) for answer in run_batch(core, requests)]

    answers = [answer.token_ids for answer in run([_question(i, ids) for i, ids in enumerate(material.prompts)])]
    resident = resident_bytes()
    read = run([_reading(f"passage-{i}", ids, scored_from=1) for i, ids in enumerate(material.passages)])
    same = None
    if reference is not None:
        pairs = enumerate(zip(material.prompts, reference.answers, strict=True))
        forced = run([_reading(f"same-{i}", [*ids, *answer], scored_from=len(ids)) for i, (ids, answer) in pairs])
        same = sum(token.rank == 1 for answer in forced for token in answer.prompt_logprobs or ())
    return Measured(
        losses=[-math.fsum(token.logprob for token in answer.prompt_logprobs or ()) for answer in read],
        answers=answers,
        same_choices=same,
        stored_bytes=parts.runner.info.stored_bytes,
        resident_bytes=resident,
        fingerprint=parts.card.fingerprint,
    )


def measure_apart(config: Config, material: Material, reference: Measured | None = None) -> Measured | Failed:
    """:func:`measure` in a process of its own, whose memory is counted from before the model is loaded."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        try:
            return pool.submit(_load_and_measure, config, material, reference).result()
        except BrokenProcessPool:
            return Failed(reason="its process ended without a word; was there memory enough?")


def _load_and_measure(config: Config, material: Material, reference: Measured | None) -> Measured | Failed:
    before = resident_bytes()
    try:
        parts = load_model(config)
    except UserError as error:  # its class may not survive the way to another process
        return Failed(reason=str(error))
    try:
        found = measure(parts, config, material, reference)
    finally:
        parts.runner.close()
    if found.resident_bytes is None or before is None:
        return found
    return msgspec.structs.replace(found, resident_bytes=found.resident_bytes - before)


def formats(wanted: str | None) -> list[str]:
    """The weight formats named in ``wanted``, separated by commas; where it names none, all but the reference's and
    the choice that is one of the others."""
    known = next(field.metadata["choices"] for field in fields(ModelConfig) if field.name == "weights")
    if wanted is None:
        return [name for name in known if name not in (REFERENCE, AUTO_WEIGHTS)]
    names = [name.strip() for name in wanted.split(",") if name.strip()]
    for name in names:
        if name not in known:
            raise UserError(f"--weights names {name!r}; the formats are {', '.join(known)}")
    return list(dict.fromkeys(names))


def with_weights(config: Config, weights: str) -> Config:
    """``config`` in another weight format. Raises ``ConfigError`` where other settings forbid it."""
    return replace(config, model=replace(config.model, weights=weights))


def reference_config(config: Config) -> Config:
    """Float32 throughout: weights, keys and values."""
    plain = replace(config.model, weights=REFERENCE, expand_weights="auto")
    return replace(config, model=plain, cache=replace(config.cache, kv_dtype="f32"))


def quality_figures(found: Measured, reference: Measured, material: Material) -> Figures:
    """What the table shows. ``left_after``: the tokens of each answer before it leaves the reference's."""
    losses, counts = found.losses, [len(ids) - 1 for ids in material.passages]
    first = every = ratio = None
    if losses:
        first = perplexity(losses[:FIRST_PASSAGES], counts[:FIRST_PASSAGES])
        every = perplexity(losses, counts)
        ratio = every / perplexity(reference.losses, counts)
    left = [left_after(ours, theirs) for ours, theirs in zip(found.answers, reference.answers, strict=True)]
    return {
        "perplexity_first": first,
        "perplexity": every,
        "perplexity_ratio": ratio,
        "left_after": left,
        "left_after_mean": fmean(left),
        "same_choices": found.same_choices,
        "compared_choices": None if found.same_choices is None else sum(map(len, reference.answers)),
        "stored_bytes": found.stored_bytes,
        "resident_bytes": found.resident_bytes,
        "fingerprint": found.fingerprint,
    }


def perplexity(losses: Sequence[float], counts: Sequence[int]) -> float:
    """``exp`` of the mean loss of a token: ``losses`` are sums in nats over ``counts`` tokens each."""
    return math.exp(math.fsum(losses) / sum(counts))


def left_after(answer: Sequence[int], reference: Sequence[int]) -> int:
    """How many tokens of ``answer`` come before the first that differs from the reference's."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(answer, reference, strict=True)))


def resident_bytes() -> int | None:
    """The memory that this process holds now (VmRSS); None on systems that do not tell."""
    try:
        lines = _STATUS.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:")), None)


def _question(index: int, prompt: Sequence[int]) -> Request:
    sampling = SamplingParams(temperature=0.0, max_tokens=ANSWER_TOKENS, ignore_eos=True)
    return Request(request_id=f"ask-{index}", prompt_token_ids=tuple(prompt), sampling=sampling, arrival_time=0.0)


def _reading(request_id: str, tokens: Sequence[int], *, scored_from: int) -> Request:
    return Request(
        request_id=request_id,
        prompt_token_ids=tuple(tokens),
        sampling=SamplingParams(temperature=0.0),
        arrival_time=0.0,
        reading=Reading(scored_from=scored_from),
    )


def _whole(answer: Answer) -> Answer:
    """The answer, if it ended as it should. Raises :class:`UserError`."""
    if answer.refusal is not None:
        raise UserError(f"the engine refused a request of the bench: {answer.refusal.message}")
    if answer.finish is None or answer.finish.message is not None:
        raise UserError(f"a request of the bench failed: {answer.finish and answer.finish.message}")
    return answer
