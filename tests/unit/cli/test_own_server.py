"""The settings that a bench hands to the server it starts, and what it says when that server does not start."""

from dataclasses import replace

import pytest

from ekiden.build.config_sources import resolve
from ekiden.cli.own_server import _variables, own_server
from ekiden.config import CacheConfig, Config, ModelConfig, SchedulerConfig
from ekiden.errors import UserError


def test_the_variables_give_back_the_same_configuration():
    config = Config(
        model=ModelConfig(model='odd "name".gguf', max_model_len=128),
        cache=CacheConfig(enable_prefix_caching=False),
        scheduler=SchedulerConfig(max_num_seqs=16, batching="static", target_itl_ms=None),
    )
    variables = _variables(config)
    assert resolve({}, variables).config == config
    assert "EKIDEN_PORT" not in variables


def test_a_server_that_cannot_start_is_quoted():
    config = replace(Config(), model=ModelConfig(model="/nowhere.gguf"))
    with pytest.raises(UserError, match=r"ended with status 2: .*/nowhere\.gguf"), own_server(config):
        pytest.fail("a server without a model must not become ready")
