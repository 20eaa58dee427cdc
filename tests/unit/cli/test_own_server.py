"""The settings that a bench hands to the server it starts, and what it says when that server does not start."""

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from ekiden.build.config_sources import resolve
from ekiden.cli.own_server import _toml, own_server
from ekiden.config import Config, ModelConfig, SchedulerConfig
from ekiden.errors import UserError


def test_the_settings_file_gives_back_the_same_configuration(tmp_path: Path):
    config = Config(
        model=ModelConfig(model='odd "name".gguf', max_model_len=128),
        scheduler=SchedulerConfig(max_num_seqs=16, batching="static"),
    )
    path = tmp_path / "settings.toml"
    path.write_text(_toml(config), encoding="utf-8")
    assert resolve({}, {}, str(path)).config == config
    assert "server" not in tomllib.loads(path.read_text(encoding="utf-8"))


def test_a_server_that_cannot_start_is_quoted():
    config = replace(Config(), model=ModelConfig(model="/nowhere.gguf"))
    with pytest.raises(UserError, match=r"ended with status 2: .*/nowhere\.gguf"), own_server(config):
        pytest.fail("a server without a model must not become ready")
