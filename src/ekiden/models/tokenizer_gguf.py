"""Builds a :class:`Tokenizer` from the metadata of a GGUF file.

Two kinds can be built exactly: byte-level BPE (``gpt2``), with the splitting rule that ``tokenizer.ggml.pre`` names,
and SentencePiece BPE (``llama``), whose scores are turned into equivalent ranked merges. Every other kind is refused,
because a tokenizer that is nearly right makes answers worse without any error.

No special token has a default id: a file that names no BOS token has none.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from ekiden.models.architectures.fields import Fields
from ekiden.models.errors import ModelError, cut
from ekiden.models.sentencepiece_runs import Pair, merges_of_runs
from ekiden.models.tokenizer import END_OF_TURN, Tokenizer, failure

MAX_TOKEN = 1_024
"""Characters of one token; the longest of known vocabularies have some hundreds."""
NO_TOKEN = (-1, 0xFFFFFFFF)
"""What llama.cpp writes for a token that there is not."""
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
_WAY_OUT = "give the model's Hugging Face folder, whose tokenizer.json is used"


def _by(expression: str) -> tuple[pre_tokenizers.PreTokenizer, ...]:
    """Split a text by ``expression`` before its bytes are written as characters."""
    split = pre_tokenizers.Split(Regex(expression), behavior="isolated")
    return split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)


# The expressions by which each model's published tokenizer.json splits text.
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = _by(rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}")
_QWEN2 = _by(rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}")
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN = _by(
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|"
    rf"\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
)
_GPT2 = (pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),)
_DIGITS_THEN_GPT2 = (pre_tokenizers.Digits(individual_digits=True), *_GPT2)

# tokenizer.ggml.pre -> splitting rule.
_SPLITS: dict[str, tuple[pre_tokenizers.PreTokenizer, ...]] = {
    **dict.fromkeys(("gpt-2", "gpt2"), _GPT2),
    **dict.fromkeys(("smollm", "starcoder"), _DIGITS_THEN_GPT2),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3"), _LLAMA3),
    "qwen2": _QWEN2,
    "tekken": _TEKKEN,
}
_LIKE_LLAMA3 = {"llama-bpe", "llama3", "llama-v3", "tekken"}
"""Models that do not split a word which is a token itself (``ignore_merges``), and that begin a text with BOS."""
_COMPOSES = {"qwen2"}
"""Models whose tokenizer.json normalises text to NFC."""


class _Metadata(Fields):
    """The file's tokenizer keys, with the vocabulary checked."""

    def __init__(self, source: str, metadata: Mapping[str, Any]) -> None:
        super().__init__(source, metadata, "tokenizer.ggml.")
        tokens, types = self.get("tokens"), self.get("token_type")
        if not isinstance(tokens, list) or not tokens or not all(isinstance(token, str) for token in tokens):
            raise ModelError(f"{source}: the file holds no vocabulary (tokenizer.ggml.tokens); {_WAY_OUT}")
        if types is not None and not (isinstance(types, np.ndarray) and len(types) == len(tokens)):
            found = f"has {len(types):,} entries" if isinstance(types, np.ndarray) else "is no list of numbers"
            raise ModelError(f"{source}: tokenizer.ggml.token_type {found} for {len(tokens):,} tokens; {_WAY_OUT}")
        if (longest := max(map(len, tokens))) > MAX_TOKEN:
            raise ModelError(f"{source}: a token is {longest:,} characters long; fetch the file again")
        self.tokens: list[str] = list(tokens)
        self.vocabulary = {text: token_id for token_id, text in enumerate(self.tokens)}
        self.types: list[int] = [NORMAL] * len(tokens) if types is None else [int(value) for value in types]
        self.architecture = str(metadata.get("general.architecture"))

    def add(self, texts: list[str]) -> None:
        """Put further tokens at the end of the vocabulary."""
        self.vocabulary |= {text: len(self.tokens) + place for place, text in enumerate(texts)}
        self.tokens += texts
        self.types += [NORMAL] * len(texts)

    def token_id(self, name: str) -> int | None:
        value = self.get(f"{name}_token_id")
        if value is None or (isinstance(value, int) and value in NO_TOKEN):
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < len(self.tokens):
            raise ModelError(
                f"{self.source}: tokenizer.ggml.{name}_token_id is {value!r:.40}, outside the vocabulary of "
                f"{len(self.tokens):,}; convert the model again"
            )
        return value

    def flag(self, name: str, default: bool) -> bool:
        value = self.get(name)
        return value if isinstance(value, bool) else default

    def padding_id(self, warnings: list[str]) -> int | None:
        """None also for one outside the vocabulary: nothing here is padded."""
        try:
            return self.token_id("padding")
        except ModelError as error:
            warnings.append(f"{str(error).partition(';')[0]}; it is not used")
            return None


def tokenizer_from_metadata(
    source: str, metadata: Mapping[str, Any], warnings: list[str], *, rows: int | None = None
) -> Tokenizer:
    """Build the tokenizer that a GGUF file describes; what may be wrong with it is added to ``warnings``.

    ``rows`` is the number of token ids that the model knows.

    Raises:
        ModelError: the file holds no tokenizer, or one that cannot be built exactly.
    """
    described = _Metadata(source, metadata)
    model = described.text("model")
    try:
        if model == "gpt2":
            pre = _pre_tokenizer_name(described, warnings)
            backend = _byte_level(described, pre, warnings, rows)
            adds_bos, strips_space = pre in _LIKE_LLAMA3, False
        elif model == "llama":
            backend = _sentencepiece(described)
            adds_bos, strips_space = True, described.flag("add_space_prefix", True)
        else:
            raise ModelError(f"{source}: tokenizer {cut(model)} is not supported (gpt2 and llama are); {_WAY_OUT}")
    except ModelError:
        raise
    except Exception as error:  # the package raises Exception itself
        raise failure(source, error) from error
    texts = dict(enumerate(described.tokens))
    named = [described.token_id(name) for name in ("bos", "eos", "eot", "eom")]
    named.append(described.padding_id(warnings))
    types = described.types
    special = {i: text for i, text in texts.items() if text and (types[i] in (CONTROL, UNKNOWN) or i in named)}
    added = {i: text for i, text in texts.items() if types[i] in (CONTROL, USER_DEFINED, UNKNOWN) or i in special}
    backend.add_tokens([AddedToken(text, special=i in special, normalized=False) for i, text in added.items() if text])
    bos, eos, eot, eom, _ = named
    adds_bos = described.flag("add_bos_token", adds_bos)
    if adds_bos and bos is None:
        warnings.append(f"{source}: the file asks for a BOS token but names none, so none is added")
    ends = [token_id for token_id, text in special.items() if text in END_OF_TURN]
    return Tokenizer(
        backend=backend,
        rest=backend,
        byte_level=model == "gpt2",
        byte_fallback=model == "llama",
        strips_space=strips_space,
        added=added,
        special={text: token_id for token_id, text in special.items()},
        prefix=(bos,) if adds_bos and bos is not None else (),
        suffix=(eos,) if described.flag("add_eos_token", False) and eos is not None else (),
        bos_token_id=bos,
        eos_token_ids=frozenset(token_id for token_id in (*ends, eos, eot, eom) if token_id is not None),
        vocab_size=len(texts),
        bos_token="" if bos is None else texts[bos],
        eos_token="" if eos is None else texts[eos],
    )


def _pre_tokenizer_name(described: _Metadata, warnings: list[str]) -> str:
    named = described.text("pre")
    if named is None or named == "default":
        guess = "llama-bpe" if "<|begin_of_text|>" in described.tokens else "gpt-2"
        if described.architecture.startswith("qwen"):
            guess = "qwen2"
        warnings.append(
            f"{described.source}: the file does not say how text is split before merging (tokenizer.ggml.pre); "
            f"{guess!r} is assumed. If that is wrong, answers are worse: convert the model again, or {_WAY_OUT}"
        )
        return guess
    if named not in _SPLITS:
        raise ModelError(f"{described.source}: tokenizer.ggml.pre {cut(named)} is not known here; {_WAY_OUT}")
    return named


def _byte_level(described: _Metadata, pre: str, warnings: list[str], rows: int | None) -> tokenizers.Tokenizer:
    merges = described.get("merges")
    if not isinstance(merges, list):
        raise ModelError(f"{described.source}: the file holds no merges (tokenizer.ggml.merges); {_WAY_OUT}")
    try:
        pairs = [(left, right) for left, right in (str(merge).split(" ", 1) for merge in merges)]
    except ValueError as error:
        raise ModelError(f"{described.source}: an entry of tokenizer.ggml.merges is not a pair; {_WAY_OUT}") from error
    _complete(described, pairs, warnings, rows)
    backend = tokenizers.Tokenizer(models.BPE(described.vocabulary, pairs, ignore_merges=pre in _LIKE_LLAMA3))
    backend.pre_tokenizer = pre_tokenizers.Sequence(list(_SPLITS[pre]))
    if pre in _COMPOSES:
        backend.normalizer = normalizers.NFC()
    backend.decoder = decoders.ByteLevel()
    return backend


def _complete(described: _Metadata, pairs: list[tuple[str, str]], warnings: list[str], rows: int | None) -> None:
    """Add the tokens that merging makes and that the list lacks, where their ids can be known.

    They can when the list ends with what merges made, in the order of the merges: then it goes on so, as far as the
    model has rows. Raises :class:`ModelError` saying what does not fit otherwise.
    """
    vocabulary, unions = described.vocabulary, [left + right for left, right in pairs]
    lacking = list(dict.fromkeys(text for text in unions if text not in vocabulary))
    known = vocabulary.keys() | set(lacking)
    loose = [part for pair in pairs for part in pair if part not in known]
    if not lacking and not loose:
        return
    listed, first = len(described.tokens), unions.index(lacking[0]) if lacking else 0
    room = (rows or 0) - listed
    goes_on = first > 0 and described.tokens[-1] == unions[first - 1] and set(unions[first:]) == set(lacking)
    if loose or not goes_on or len(lacking) > room:
        missing = list(dict.fromkeys([*loose, *lacking]))
        more = f" and {len(missing) - 1:,} more" if len(missing) > 1 else ""
        has = "" if rows is None else f" (the model has {rows:,} rows)"
        raise ModelError(
            f"{described.source}: tokenizer.ggml.merges needs {cut(missing[0])}{more}, not to be found among the "
            f"{listed:,} of tokenizer.ggml.tokens{has}; fetch or convert the model again, or {_WAY_OUT}"
        )
    described.add(lacking)
    warnings.append(
        f"{described.source}: tokenizer.ggml.tokens ends {len(lacking):,} tokens before the merges do; they are added, "
        f"from {cut(lacking[0])} as {listed:,} on"
    )


def _sentencepiece(described: _Metadata) -> tokenizers.Tokenizer:
    scores = described.get("scores")
    if not isinstance(scores, np.ndarray):
        raise ModelError(f"{described.source}: the tokens have no scores (tokenizer.ggml.scores); {_WAY_OUT}")
    if len(scores) != len(described.tokens):
        raise ModelError(
            f"{described.source}: tokenizer.ggml.scores has {len(scores):,} entries for {len(described.tokens):,} "
            f"tokens; {_WAY_OUT}"
        )
    unknown = described.token_id("unknown")
    unknown_text = None if unknown is None else described.tokens[unknown]
    bytes_there = sum(token_type == BYTE for token_type in described.types)
    if bytes_there not in (0, 256):
        raise ModelError(f"{described.source}: the file holds {bytes_there} byte tokens of 256; {_WAY_OUT}")
    merges, options = _ranked_merges(described, scores), {"fuse_unk": True, "byte_fallback": bytes_there == 256}
    backend = tokenizers.Tokenizer(models.BPE(described.vocabulary, merges, unk_token=unknown_text, **options))
    prepend = [normalizers.Prepend("▁")] if described.flag("add_space_prefix", True) else []
    backend.normalizer = normalizers.Sequence([*prepend, normalizers.Replace(" ", "▁")])
    return backend


def _ranked_merges(described: _Metadata, scores: npt.NDArray[np.floating[Any]]) -> list[tuple[str, str]]:
    """The merges of a BPE model that is equivalent to a SentencePiece one.

    SentencePiece merges the pair whose union has the highest score, BPE the pair with the lowest rank. The merges are
    therefore all ways to cut a piece into two pieces, ordered by the piece's score, highest first (``transformers``
    converts such models in the same way).

    Raises:
        ModelError: two pieces that merging can make have the same score, and are not runs of one character as Mistral's
            runs of spaces are. SentencePiece then decides by position, which ranks cannot express.
    """
    normal = {text: token_id for text, token_id in described.vocabulary.items() if described.types[token_id] == NORMAL}
    by_score: dict[float, dict[str, list[Pair]]] = {}
    for text, token_id in normal.items():
        cuts = [(text[:at], text[at:]) for at in range(1, len(text)) if text[:at] in normal and text[at:] in normal]
        if cuts:
            by_score.setdefault(float(scores[token_id]), {})[text] = cuts
    merges: list[Pair] = []
    for _, pieces in sorted(by_score.items(), reverse=True):
        if len(pieces) == 1:
            (cuts,) = pieces.values()
            merges += sorted(cuts, key=lambda pair: (normal[pair[0]], normal[pair[1]]))
            continue
        character = next(iter(pieces))[0]
        runs = {text for group in by_score.values() for text in group if set(text) == {character}}
        of_runs = merges_of_runs(character, {len(text) for text in runs}) if runs == pieces.keys() else None
        if of_runs is None:
            first, second = list(pieces)[:2]
            raise ModelError(
                f"{described.source}: pieces {cut(first)} and {cut(second)} have the same score, so the order of "
                f"merging is not defined; {_WAY_OUT}"
            )
        merges += of_runs
    return merges
