"""The demo on the fake model: the same tokens under both policies, and charts and figures that say so."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from ekiden.backends.fake import FakeRunner
from ekiden.build import model as build_model
from ekiden.cli import demo, loading
from ekiden.cli.main import main
from ekiden.config import CacheConfig, Config, SchedulerConfig
from ekiden.engine.interface import ModelCard
from ekiden.engine.parts import EngineParts
from ekiden.evaluation.benches.engine import scheduled
from ekiden.evaluation.charts.slots import slot_figures
from ekiden.evaluation.workloads.synthetic import demo_prompts

CONFIG = Config(cache=CacheConfig(block_size=16), scheduler=SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=128))


def make_parts(num_blocks: int = 512) -> EngineParts:
    runner = FakeRunner(num_blocks=num_blocks)
    card = ModelCard(
        model_id="fake",
        max_model_len=4096,
        vocab_size=1000,
        block_size=16,
        num_blocks=num_blocks,
        created=0,
        fingerprint="f",
    )
    return EngineParts(runner=runner, card=card)


@pytest.fixture(scope="module")
def runs() -> list[demo.ArmRun]:
    prompts = demo_prompts()
    token_ids = [[index + 1] * 30 for index in range(len(prompts))]
    parts = make_parts()
    arms = [scheduled(CONFIG, batching=arm) for arm in ("static", "continuous")]
    return [timed(demo.run_arm(parts, arm, prompts, token_ids)) for arm in arms]


def timed(run: demo.ArmRun) -> demo.ArmRun:
    """The run as if every step had taken 10 ms, so that the length of a chart says nothing of the machine's load."""
    steps = [replace(step, start=0.01 * i, end=0.01 * (i + 1)) for i, step in enumerate(run.steps)]
    return replace(run, steps=steps, slots=slot_figures(steps, 8))


def test_both_policies_give_the_same_tokens_of_the_lengths_asked_for(runs):
    static, continuous = runs
    assert [a.token_ids for a in static.answers] == [a.token_ids for a in continuous.answers]
    assert [len(a.token_ids) for a in static.answers] == [p.max_tokens for p in demo_prompts()]


def test_the_demo_makes_its_point(runs):
    static, continuous = runs
    # A freed slot waits for the longest answer under static and is taken at the next step under continuous.
    assert max(static.slots.handover_steps) > 100
    assert max(continuous.slots.handover_steps) == 0
    assert continuous.slots.slot_utilisation > 2 * static.slots.slot_utilisation
    assert continuous.slots.steps < static.slots.steps / 2


def test_the_terminal_shows_both_charts_and_every_figure(runs):
    console = Console(record=True, width=100, file=open("/dev/null", "w", encoding="utf-8"))  # noqa: SIM115
    demo.show(console, runs, demo_prompts(), 8)
    console.file.close()
    text = console.export_text()
    rows = re.findall(r"^slot \d  (\S+)", text, re.MULTILINE)
    assert len(rows) == 16
    static, continuous = rows[:8], rows[8:]
    assert any("·" * 5 in row for row in static)
    assert max(map(len, continuous)) < max(map(len, static)) <= 100
    assert {letter for row in rows for letter in row} - {"·"} <= set("ABCDEFGHIJKLMNOPQRSTUVWX")
    for name in ("TTFT p50", "E2E max", "throughput", "slot utilisation", "freed slot stayed empty"):
        assert name in text
    assert "The long answers are A, I, Q." in text


def test_the_page_holds_both_charts_and_every_prompt(runs):
    page = demo.html(runs, demo_prompts(), 8, same=True, model="fake")
    assert page.count("<svg") == 2
    assert "identical" in page
    assert "What is a QR code?" in page
    assert "which must not be" in demo.html(runs, demo_prompts(), 8, same=False, model="fake")


class FakeModel:
    """Stands in for a described model: a token for each character."""

    class tokenizer:
        bos_token_id = None
        adds_bos = False

        @staticmethod
        def protect(text: str) -> str:
            return text

        @staticmethod
        def encode(text: str, *, add_special_tokens: bool, parse_special: bool) -> list[int]:
            return [ord(character) % 1000 for character in text]

        @staticmethod
        def decode(token_ids: list[int]) -> str:
            return f"{len(token_ids)} tokens"

    class chat_template:
        @staticmethod
        def render(messages, *, protect):
            return protect(messages[0]["content"])


@pytest.fixture
def fake_model(monkeypatch):
    monkeypatch.setattr(loading, "describe_model", lambda config: FakeModel)
    monkeypatch.setattr(build_model, "load_described", lambda config, model: make_parts())


def test_the_command_writes_the_page_and_succeeds(fake_model, tmp_path: Path, capsys):
    folder = tmp_path / "out"
    assert main(["demo", "--out", str(folder), "--block-size", "16", "--show-text"]) == 0
    shown = capsys.readouterr().out
    assert "The tokens of the two runs are identical." in shown
    assert "160 tokens" in shown
    assert "<svg" in (folder / "demo.html").read_text(encoding="utf-8")


def test_every_policy_can_be_shown_against_continuous(fake_model, tmp_path: Path, capsys):
    for other in demo.OTHERS:
        assert main(["demo", "--out", str(tmp_path), "--block-size", "16", "--against", other]) == 0
        assert f"{other}: " in capsys.readouterr().out
        assert f"{other.capitalize()} against continuous" in (tmp_path / "demo.html").read_text(encoding="utf-8")


def test_different_tokens_fail_the_demo(fake_model, tmp_path: Path, capsys, monkeypatch):
    run_arm = demo.run_arm

    def tampered(parts, config, prompts, token_ids):
        run = run_arm(parts, config, prompts, token_ids)
        if config.scheduler.batching == "static":
            run.answers[5].token_ids[-1] ^= 1
        return run

    monkeypatch.setattr(demo, "run_arm", tampered)
    assert main(["demo", "--out", str(tmp_path), "--block-size", "16"]) == 1
    assert "DIFFERENT" in capsys.readouterr().out


def test_a_pool_too_small_for_the_demo_is_told(fake_model, tmp_path: Path, capsys, monkeypatch):
    monkeypatch.setattr(build_model, "load_described", lambda config, model: make_parts(num_blocks=4))
    assert main(["demo", "--out", str(tmp_path), "--block-size", "16"]) == 2
    assert "--kv-cache-size" in capsys.readouterr().err
