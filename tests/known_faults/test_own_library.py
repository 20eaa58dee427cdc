"""The library, as its README shows it: an answer has an end, and a terminal shows that something goes on."""

from pathlib import Path

import pytest

import ekiden
from ekiden.engine.llm import DEFAULT_MAX_TOKENS, LLM
from ekiden.state.sampling_params import SamplingParams

ENDLESS = SamplingParams(temperature=0, ignore_eos=True)


@pytest.fixture
def llm(reference_dir: Path, tmp_path: Path) -> LLM:
    """A model with room for 256 tokens."""
    return ekiden.load(str(reference_dir / "llama"), backend="fake", model_cache=str(tmp_path))


def lengths(llm: LLM, sampling: SamplingParams, max_tokens: int | None = DEFAULT_MAX_TOKENS) -> list[int]:
    return [len(one.token_ids) for one in llm.generate([[5, 6, 7], [8, 9]], sampling, max_tokens=max_tokens)]


def test_own_26_an_answer_for_which_nobody_gave_a_limit_has_one(llm: LLM) -> None:
    with llm:
        assert [len(one.token_ids) for one in llm.generate([[5, 6], [7]], ENDLESS)] == [DEFAULT_MAX_TOKENS] * 2
        (answer,) = llm.generate(["Once upon a time"])
        assert 0 < len(answer.token_ids) <= DEFAULT_MAX_TOKENS
        assert lengths(llm, ENDLESS, max_tokens=7) == [7, 7]
        assert lengths(llm, ENDLESS, max_tokens=None) == [253, 254]
        given = SamplingParams(temperature=0, ignore_eos=True, max_tokens=9)
        assert lengths(llm, given, max_tokens=7) == [9, 9]
        with pytest.raises(ValueError, match="max_tokens is 0; it must be at least 1"):
            lengths(llm, ENDLESS, max_tokens=0)


def test_own_26_a_terminal_shows_how_far_it_is_and_a_log_does_not(
    llm: LLM, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with llm:
        llm.generate([[5, 6, 7]] * 3, max_tokens=3)
        assert capsys.readouterr().err == ""
        monkeypatch.setenv("FORCE_COLOR", "1")  # by which rich takes any stream for a terminal
        llm.generate([[5, 6, 7]] * 3, max_tokens=3)
        captured = capsys.readouterr()
        assert "3/3" in captured.err
        assert captured.out == ""
