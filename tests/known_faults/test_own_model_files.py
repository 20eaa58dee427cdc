"""Model files that are unusual, cut in parts, or crafted to take long."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ekiden.models.errors import MAX_MESSAGE, ModelError
from ekiden.models.load import ModelDescription, describe, open_checkpoint
from ekiden.models.resolve import resolve
from ekiden.models.sentencepiece_runs import merges_of_runs
from tests.unit.models.gguf_files import ADDED, byte_alphabet, metadata, tensors, write_gguf
from tests.unit.models.test_safetensors import entry, packed
from tests.unit.models.test_tokenizer_gguf import by_scores, sentencepiece, vocabulary


def loaded(path: Path) -> ModelDescription:
    return describe(resolve(str(path), path.parent / "cache"))


# --- 19: what a file holds may be of any length

LONG = "x" * 1_000_000


@pytest.mark.parametrize(
    "changes",
    [
        {"general.architecture": LONG},
        {"tokenizer.ggml.model": LONG},
        {"tokenizer.ggml.pre": LONG},
        {"llama.rope.scaling.type": LONG, "llama.rope.scaling.factor": 2.0},
        {"llama.context_length": LONG},
        {"general.alignment": LONG},
        {"tokenizer.ggml.bos_token_id": LONG},
        {"tokenizer.ggml.merges": ["h i", f"{LONG} x"]},
        {"tokenizer.ggml.tokens": [*byte_alphabet(), *ADDED[:-1], LONG]},
        {LONG: 1},
        {"tokenizer.chat_template": LONG + LONG},
    ],
    ids=lambda changes: next(iter(changes))[:30],
)
def test_own_19_a_value_of_a_million_characters_is_refused_and_cut(tmp_path: Path, changes: dict[str, Any]) -> None:
    path = write_gguf(tmp_path / "m.gguf", metadata() | changes)
    with pytest.raises(ModelError) as refused:
        loaded(path)
    message = str(refused.value)
    assert message.startswith(f"{path}: ")
    assert len(message) < MAX_MESSAGE
    assert "x" * 100 not in message


def test_own_19_whatever_is_quoted_a_message_keeps_its_beginning_and_its_end() -> None:
    message = str(ModelError(f"model.gguf: {LONG}; fetch it again"))
    assert message.startswith("model.gguf: xxx")
    assert message.endswith("xxx; fetch it again")
    assert len(message) <= MAX_MESSAGE + 3


def test_own_19_a_folders_values_are_cut_too(tmp_path: Path, reference_dir: Path) -> None:
    folder = shutil.copytree(reference_dir / "llama", tmp_path / "m")
    config = json.loads((folder / "config.json").read_text())
    for name, value in (("model_type", LONG), ("hidden_act", LONG), ("rope_parameters", {"rope_type": LONG})):
        (folder / "config.json").write_text(json.dumps(config | {name: value}))
        with pytest.raises(ModelError) as refused:
            loaded(folder)
        assert len(str(refused.value)) < MAX_MESSAGE + 10


# --- 20: a head that is stored beside a tied embedding


@pytest.fixture
def tied(tmp_path: Path, reference_dir: Path) -> Path:
    return shutil.copytree(reference_dir / "llama-tied", tmp_path / "tied")


def store_head(folder: Path, change: float, rows: int | None = None) -> None:
    """Store the folder's weights again with a head: the embedding's first rows, and ``change`` added."""
    checkpoint = open_checkpoint(resolve(str(folder), folder.parent))
    weights = {name: checkpoint.tensor(name) for name in checkpoint.shapes}
    weights["lm_head.weight"] = (weights["model.embed_tokens.weight"] + np.float32(change))[:rows]
    header, data = {}, b""
    for name, values in weights.items():
        stored = values.tobytes()
        header[name] = entry("F32", list(values.shape), len(data), len(data) + len(stored))
        data += stored
    (folder / "model.safetensors").write_bytes(packed(header, data))


def test_own_20_a_stored_head_of_other_values_is_used_and_said(tied: Path) -> None:
    store_head(tied, 1.0)
    description = loaded(tied)
    assert description.spec is not None
    assert not description.spec.tie_word_embeddings
    (warning,) = [warning for warning in description.warnings if "lm_head" in warning]
    assert "it is used as it is stored" in warning
    checkpoint = open_checkpoint(description.files)
    assert not np.array_equal(checkpoint.tensor("lm_head.weight"), checkpoint.tensor("model.embed_tokens.weight"))


def test_own_20_the_same_values_twice_are_one_head(tied: Path) -> None:
    store_head(tied, 0.0)
    description = loaded(tied)
    assert description.spec is not None
    assert description.spec.tie_word_embeddings
    assert not [warning for warning in description.warnings if "lm_head" in warning]


def test_own_20_a_stored_head_of_another_shape_is_refused(tied: Path) -> None:
    store_head(tied, 0.0, rows=100)
    with pytest.raises(
        ModelError, match=r"'lm_head\.weight' has the shape \[100, 64\], but its configuration says \[264"
    ):
        open_checkpoint(loaded(tied).files)


# --- 21: runs of spaces with one score

MISTRAL = [*range(2, 15), 16]
"""The lengths of the runs of spaces in Mistral's vocabularies."""


def with_runs(lengths: list[int], words: list[str], character: str = "▁") -> tuple[list[str], list[int], list[float]]:
    pieces, types, scores = vocabulary([*words, character])
    runs = [character * length for length in lengths]
    return [*pieces, *runs], [*types, *[1] * len(runs)], [*scores, *[-1e9] * len(runs)]


@pytest.mark.parametrize("lengths", [MISTRAL, [2], [2, 3], [2, 4, 8, 16], [2, 3, 5, 8], [3]])
@pytest.mark.parametrize("tail", ["", "the"])
def test_own_21_runs_of_spaces_are_cut_as_sentencepiece_does(lengths: list[int], tail: str) -> None:
    parts = with_runs(lengths, ["▁the", "th", "he", "the", "t", "h", "e"])
    tokenizer = sentencepiece(*parts)
    for count in range(1, 60):
        text = " " * count + tail
        assert tokenizer.encode(text, add_special_tokens=False) == by_scores(" " + text, *parts), count


WORDY = with_runs(MISTRAL, ["▁the", "th", "he", "▁t", "▁▁h", "t", "h", "e", "="])
OF_WORDY = sentencepiece(*WORDY)


@given(text=st.text(alphabet="the \n=", max_size=60))
def test_own_21_among_words_too(text: str) -> None:
    wanted = by_scores(" " + text, *WORDY) if text else []
    assert OF_WORDY.encode(text, add_special_tokens=False) == wanted


@given(lengths=st.sets(st.integers(2, 12), min_size=1), text=st.text(alphabet=" a", min_size=1, max_size=50))
def test_own_21_any_lengths_are_exact_or_refused(lengths: set[int], text: str) -> None:
    parts = with_runs(sorted(lengths), ["▁a", "a"])
    made = {length for length in lengths if {left for left in lengths | {1} if length - left in lengths | {1}}}
    if len(made) > 1 and merges_of_runs("▁", made) is None:
        with pytest.raises(ModelError, match="have the same score"):
            sentencepiece(*parts)
    else:
        ids = sentencepiece(*parts).encode(text, add_special_tokens=False)
        assert ids == by_scores(" " + text, *parts)


def test_own_21_other_pieces_of_one_score_are_refused_as_before() -> None:
    pieces, types, scores = with_runs([2, 3], ["ab", "a", "b"])
    scores[pieces.index("ab")] = -1e9
    with pytest.raises(ModelError, match="have the same score, so the order of merging is not defined"):
        sentencepiece(pieces, types, scores)
    assert merges_of_runs("=", {2, 65}) is None


# --- 22: ids of tokens that nobody uses


@pytest.mark.parametrize("value", [264, 4_000_000])
def test_own_22_a_padding_token_outside_the_vocabulary_is_left_out_and_said(tmp_path: Path, value: int) -> None:
    description = loaded(write_gguf(tmp_path / "m.gguf", metadata(tokenizer__ggml__padding_token_id=value)))
    (warning,) = [warning for warning in description.warnings if "padding_token_id" in warning]
    assert warning.endswith("outside the vocabulary of 264; it is not used")
    assert description.tokenizer.encode("hi", add_special_tokens=False) == [260]


@pytest.mark.parametrize("name", ["bos", "eos", "eot", "eom", "padding"])
def test_own_22_what_stands_for_no_token_is_none(tmp_path: Path, name: str) -> None:
    path = write_gguf(tmp_path / "m.gguf", metadata() | {f"tokenizer.ggml.{name}_token_id": 0xFFFFFFFF})
    description = loaded(path)
    assert not [warning for warning in description.warnings if "token_id" in warning]
    assert 0xFFFFFFFF not in description.tokenizer.eos_token_ids


@pytest.mark.parametrize("name", ["bos", "eos", "eot", "eom"])
def test_own_22_one_that_is_used_is_refused(tmp_path: Path, name: str) -> None:
    path = write_gguf(tmp_path / "m.gguf", metadata() | {f"tokenizer.ggml.{name}_token_id": 264})
    with pytest.raises(ModelError, match=f"{name}_token_id is 264, outside the vocabulary of 264"):
        loaded(path)


# --- 27: split files


def split(folder: Path, count: int = 2, **changes: Any) -> list[Path]:
    """The small model in parts, as llama-gguf-split writes them."""
    folder.mkdir(exist_ok=True)
    weights = tensors()
    names = list(weights)
    paths = []
    for part in range(count):
        of_part = {name: weights[name] for name in names[part::count]}
        keys = metadata() if part == 0 else {"general.architecture": "llama"}
        keys |= {"split.no": part, "split.count": count, "split.tensors.count": len(names)} | changes
        paths.append(write_gguf(folder / f"tiny-{part + 1:05}-of-{count:05}.gguf", keys, of_part))
    return paths


def test_own_27_a_folder_of_parts_and_any_of_its_parts_are_the_model(tmp_path: Path) -> None:
    whole = open_checkpoint(resolve(str(write_gguf(tmp_path / "whole.gguf")), tmp_path))
    parts = split(tmp_path / "parts", 3)
    (tmp_path / "parts" / "mmproj-tiny.gguf").write_bytes(b"not read")
    for place in (tmp_path / "parts", *parts):
        files = resolve(str(place), tmp_path)
        assert files.weights == tuple(parts)
        checkpoint = open_checkpoint(files)
        assert checkpoint.shapes == whole.shapes
        assert all(np.array_equal(checkpoint.tensor(name), whole.tensor(name)) for name in whole.shapes)
        assert describe(files).tokenizer.encode("hi", add_special_tokens=False) == [260]
    assert resolve(str(parts[1]), tmp_path).name == "tiny"


def test_own_27_parts_that_are_not_a_whole_model_are_named(tmp_path: Path) -> None:
    first, second = split(tmp_path / "parts")
    renamed = tmp_path / "model.gguf"
    shutil.copy(first, renamed)
    with pytest.raises(ModelError, match=r"this is one of 2 parts .* `llama-gguf-split --merge`"):
        loaded(renamed)
    kept = second.read_bytes()
    shutil.copy(first, second)
    with pytest.raises(ModelError, match=r"00002-of-00002\.gguf: by its name part 2 of 2, by its content part 1 of 2"):
        loaded(first)
    second.unlink()
    for place in (first, first.parent):
        with pytest.raises(ModelError, match=r"of 2 parts .*, and tiny-00002-of-00002\.gguf cannot be found"):
            loaded(place)
    second.write_bytes(kept)
    split(tmp_path / "fewer", **{"split.tensors.count": 21})
    with pytest.raises(ModelError, match="its 2 parts hold 20 tensors of 21"):
        loaded(tmp_path / "fewer")
    write_gguf(first.parent / "another.gguf")
    with pytest.raises(ModelError, match=r"holds 3 \.gguf files"):
        loaded(first.parent)


# --- 32: lists that do not fit together


def in_merge_order(**changes: Any) -> dict[str, Any]:
    """Keys of a model whose last tokens are what merging makes, as is usual: 260 "hi", then "hit", "th" and "hith"."""
    tokens = [*byte_alphabet(), *ADDED[:4], "hi", "hit", "th", "hith"]
    keys = metadata(tokenizer__ggml__tokens=tokens, tokenizer__ggml__merges=["h i", "hi t", "t h", "hi th"])
    return keys | {"tokenizer.ggml.token_type": [1] * 256 + [3] * 4 + [1] * 4} | changes


@pytest.mark.parametrize("short", [1, 2, 3])
def test_own_32_tokens_that_are_missing_at_the_end_are_known_from_the_merges(tmp_path: Path, short: int) -> None:
    whole = loaded(write_gguf(tmp_path / "whole.gguf", in_merge_order()))
    keys = in_merge_order()
    cut = {name: keys[name][:-short] for name in ("tokenizer.ggml.tokens", "tokenizer.ggml.token_type")}
    description = loaded(write_gguf(tmp_path / "m.gguf", keys | cut))
    for text in ("hi", "hit", "th", "hith", "this hit hits"):
        assert description.tokenizer.encode(text, add_special_tokens=False) == whole.tokenizer.encode(
            text, add_special_tokens=False
        )
    assert description.tokenizer.decode([263]) == "hith"
    (warning,) = [warning for warning in description.warnings if "merges" in warning]
    assert f"ends {short} tokens before the merges do; they are added" in warning


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"tokenizer.ggml.tokens": 260, "tokenizer.ggml.token_type": 260}, "needs 'hi' and 3 more.* among the 260 "),
        ({"tokenizer.ggml.merges": ["h i", "hi t", "t h", "hi th", "hith hit"]}, "'hithhit', .* 264 rows"),
        ({"tokenizer.ggml.merges": ["h i", "q zz"]}, "needs 'zz' and 1 more"),
        ({"tokenizer.ggml.token_type": 262}, "token_type has 262 entries for 264 tokens"),
        ({"tokenizer.ggml.tokens": 262}, "token_type has 264 entries for 262 tokens"),
    ],
)
def test_own_32_what_does_not_fit_is_told_in_one_line(tmp_path: Path, changes: dict[str, Any], told: str) -> None:
    keys = in_merge_order()
    changed = {name: keys[name][:value] if isinstance(value, int) else value for name, value in changes.items()}
    with pytest.raises(ModelError, match=told) as refused:
        loaded(write_gguf(tmp_path / "m.gguf", keys | changed))
    assert "\n" not in str(refused.value)


def test_own_32_a_head_with_more_rows_than_tokens_loads(tmp_path: Path) -> None:
    keys = in_merge_order(**{"tokenizer.ggml.merges": ["h i"]})
    cut = {name: keys[name][:-3] for name in ("tokenizer.ggml.tokens", "tokenizer.ggml.token_type")}
    description = loaded(write_gguf(tmp_path / "m.gguf", keys | cut))
    assert (description.vocab_size, description.tokenizer.vocab_size) == (264, 261)
