"""Precedence, refusals and messages of the configuration sources."""

from pathlib import Path

import pytest

from ekiden.build.config_sources import all_settings, resolve
from ekiden.config import Config, ConfigError


@pytest.fixture
def toml(tmp_path: Path):
    def write(text: str) -> str:
        path = tmp_path / "ekiden.toml"
        path.write_text(text, encoding="utf-8")
        return str(path)

    return write


def test_without_sources_every_value_is_the_default():
    resolved = resolve({}, {})
    assert resolved.config == Config()
    assert set(resolved.sources.values()) == {"default"}
    assert len(resolved.sources) == len(all_settings())


def test_flag_beats_variable_beats_file_beats_default(toml):
    path = toml("[server]\nport = 1\nhost = '::1'\nlog_level = 'debug'\n")
    environ = {"EKIDEN_PORT": "2", "EKIDEN_HOST": "0.0.0.0"}
    resolved = resolve({"port": "3"}, environ, path)
    server = resolved.config.server
    assert (server.port, server.host, server.log_level, server.shutdown_timeout) == (3, "0.0.0.0", "debug", 30.0)
    assert resolved.sources["server.port"] == "--port"
    assert resolved.sources["server.host"] == "EKIDEN_HOST"
    assert resolved.sources["server.log_level"] == path
    assert resolved.sources["server.shutdown_timeout"] == "default"


def test_the_file_may_be_named_by_a_variable(toml):
    path = toml("[scheduler]\nmax_num_seqs = 8\n")
    assert resolve({}, {"EKIDEN_CONFIG": path}).config.scheduler.max_num_seqs == 8


def test_whole_numbers_are_numbers_where_fractions_may_stand(toml):
    assert resolve({}, {}, toml("[server]\nshutdown_timeout = 5\n")).config.server.shutdown_timeout == 5.0


def test_an_empty_variable_means_no_value_for_optional_settings():
    assert resolve({}, {"EKIDEN_REQUEST_TIMEOUT": ""}).config.limits.request_timeout is None


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ("[servr]\nport = 1\n", "[servr] is not a section; did you mean server?"),
        ("[server]\nprot = 1\n", "prot under [server] is not a setting; did you mean port?"),
        ("[server]\nmax_num_seqs = 1\n", "max_num_seqs under [server] is not a setting; it belongs under [scheduler]"),
        ("port = 1\n", "port must stand under [server]"),
        ("server = 1\n", "server must be a section, written [server]"),
        ("[server]\nport = 'x'\n", "port is 'x' in "),
        ("[server]\nport = true\n", "port is True in "),
        ("[server]\nport = 1.5\n", "it must be a whole number"),
        ("[server\n", "is not valid TOML"),
    ],
)
def test_a_wrong_file_is_refused_with_the_way_out(toml, document, message):
    with pytest.raises(ConfigError) as caught:
        resolve({}, {}, toml(document))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_named():
    with pytest.raises(ConfigError, match="cannot read the configuration file /nowhere/e.toml"):
        resolve({}, {}, "/nowhere/e.toml")


@pytest.mark.parametrize(
    ("flags", "environ", "message"),
    [
        ({"port": "abc"}, {}, "port is 'abc' from --port; it must be a whole number"),
        ({}, {"EKIDEN_MAX_NUM_SEQS": "many"}, "max_num_seqs is 'many' from EKIDEN_MAX_NUM_SEQS; it must be"),
        ({}, {"EKIDEN_PORT": "70000"}, "between 0 and 65535 (from EKIDEN_PORT)"),
        ({"batching": "sometimes"}, {}, "batching is 'sometimes'; it must be one of continuous"),
        ({"kv_cache_size": "big"}, {}, "write a size such as 512MiB or 2GiB (from --kv-cache-size)"),
        ({}, {"EKIDEN_PROT": "1"}, "EKIDEN_PROT is not a setting; did you mean EKIDEN_PORT?"),
        ({}, {"EKIDEN_XYZZY": "1"}, "`ekiden config show` lists the settings"),
        ({}, {"EKIDEN_PORT": "tcp://10.0.0.1:80"}, "enableServiceLinks: false"),
    ],
)
def test_a_wrong_value_names_the_setting_the_value_and_its_source(flags, environ, message):
    with pytest.raises(ConfigError) as caught:
        resolve(flags, environ)
    assert message in str(caught.value)


def test_variables_of_kubernetes_service_links_are_not_taken_for_settings():
    environ = {"EKIDEN_SERVICE_HOST": "10.0.0.1", "EKIDEN_PORT_8000_TCP_ADDR": "10.0.0.1", "OTHER": "1"}
    assert resolve({}, environ).config == Config()
