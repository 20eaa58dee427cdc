"""``ekiden serve --backend fake``: the whole server, and no model in it."""

import io
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from ekiden.backends.registry import BACKENDS, import_backend
from ekiden.build.config_sources import all_settings
from ekiden.build.engines import build_llm
from ekiden.build.model import load_model
from ekiden.cli.main import main
from ekiden.cli.own_server import own_server
from ekiden.config import Config, ConfigError, EngineConfig, LedgerConfig, ModelConfig
from ekiden.state.sampling_params import SamplingParams
from tests.fake_answers import next_token

PROMPT = [5, 6, 7, 8]


@pytest.fixture
def config(reference_dir: Path, tmp_path: Path) -> Config:
    """A tiny model's folder, of which only the tokenizer and the sizes are used."""
    return Config(
        model=ModelConfig(model=str(reference_dir / "llama"), model_cache=str(tmp_path / "cache")),
        engine=EngineConfig(backend="fake"),
        ledger=LedgerConfig(ledger_dir=str(tmp_path / "ledger")),
    )


def expected(count: int, vocab_size: int) -> list[int]:
    tokens = list(PROMPT)
    for _ in range(count):
        tokens.append(next_token(tokens, vocab_size))
    return tokens[len(PROMPT) :]


def test_a_server_answers_with_the_fake_models_tokens(config: Config) -> None:
    with own_server(config) as url:
        (model,) = httpx.get(f"{url}/v1/models", timeout=60).json()["data"]
        body = {"model": model["id"], "prompt": PROMPT, "max_tokens": 6, "temperature": 0, "ignore_eos": True}
        answer = httpx.post(f"{url}/v1/completions", json=body | {"return_token_ids": True}, timeout=60).json()
        lineage = httpx.get(f"{url}/v1/lineage", timeout=60).json()
    assert answer["usage"]["completion_tokens"] == 6
    assert answer["choices"][0]["token_ids"] == expected(6, lineage["model"]["vocab_size"])
    assert lineage["backend"]["backend"] == "fake"
    assert not Path(str(config.model.model_cache), "converted").exists()


def test_an_offline_engine_does_too(config: Config) -> None:
    parts = load_model(config)
    with build_llm(parts, config) as llm:
        sampling = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
        assert list(llm.generate([PROMPT], sampling)[0].token_ids) == expected(6, parts.card.vocab_size)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_device_that_the_backend_has_not_is_refused(config: Config, backend: str) -> None:
    asked = replace(config, engine=EngineConfig(backend=backend, device="ABACUS.1"))
    with pytest.raises(ConfigError, match=rf"device is 'ABACUS\.1'; {backend} has .*CPU.* here"):
        import_backend(asked)


def test_the_setting_names_every_backend() -> None:
    (setting,) = (setting for setting in all_settings() if setting.name == "backend")
    assert all(name in setting.help for name in BACKENDS)


def test_a_backend_that_there_is_not_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--backend", "abacus"]) == 2
    assert "backend is 'abacus'; it must be one of openvino, fake" in capsys.readouterr().err


def test_a_chat_without_a_server_starts_one_of_its_own(reference_dir: Path, tmp_path: Path) -> None:
    folder, template = reference_dir / "llama", tmp_path / "template.jinja"
    template.write_text("{% for message in messages %}{{ message.content }} {% endfor %}", encoding="utf-8")
    command = [sys.executable, "-m", "ekiden", "chat", str(folder), "--backend", "fake", "--max-tokens", "5"]
    command += ["--model-cache", str(tmp_path / "cache"), "--chat-template", str(template)]
    state = tmp_path / "state"
    said = subprocess.run(
        command, input="hello\n", capture_output=True, encoding="utf-8", timeout=120, check=False,
        env={**os.environ, "XDG_STATE_HOME": str(state)},
    )  # fmt: skip
    assert (said.returncode, said.stderr) == (0, "")
    assert said.stdout.strip()
    assert not state.exists(), "a chat is not recorded"


def test_a_chat_shows_what_its_own_server_warned_of(
    reference_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shutil.copytree(reference_dir / "llama", tmp_path / "plain")
    settings = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    del settings["chat_template"]
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    assert main(["chat", str(folder), "--backend", "fake", "--model-cache", str(tmp_path / "cache")]) == 0
    warning = f"{folder}: has no chat template, so chat is refused; give one with --chat-template\n"
    assert capsys.readouterr().err == warning


COMMAND = """
import pickle, sys
from ekiden.cli.own_server import own_server
with own_server(pickle.load(open(sys.argv[1], "rb"))) as url:
    print(url, flush=True)
    sys.stdin.read()
"""


def test_a_command_that_is_told_to_end_ends_its_server_too(config: Config, tmp_path: Path) -> None:
    stored = tmp_path / "config"
    stored.write_bytes(pickle.dumps(config))
    with subprocess.Popen(
        [sys.executable, "-c", COMMAND, str(stored)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as command:
        assert command.stdout is not None
        url = command.stdout.readline().strip()
        assert httpx.get(f"{url}/health", timeout=60).status_code == 200
        command.send_signal(signal.SIGTERM)
        assert command.wait(60) == 1
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/health", timeout=60)


def test_the_servers_own_template_variables_cannot_be_those_it_sets(config: Config) -> None:
    wrong = replace(config, model=replace(config.model, default_chat_template_kwargs='{"messages": []}'))
    with pytest.raises(ConfigError, match="default_chat_template_kwargs has 'messages'"):
        load_model(wrong)
