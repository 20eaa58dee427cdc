"""The command line as its users meet it: exit statuses, and one line for every mistake."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import click
import pytest

from ekiden.cli.main import COMMANDS, cli, main
from ekiden.config import ConfigError
from ekiden.errors import UserError
from ekiden.models.errors import ModelError


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch):
    for name in list(os.environ):
        if name.startswith("EKIDEN_"):
            monkeypatch.delenv(name)


def one_line(capsys) -> str:
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1, captured.err
    assert captured.err.startswith("ekiden: error: ")
    return str(captured.err)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["srve"], "no such command: srve; did you mean serve?"),
        (["serve", "--prot", "1"], "--prot"),
        (["serve", "a", "b"], "unexpected extra argument"),
        (["serve", "--port", "x"], "port is 'x' from --port; it must be a whole number"),
        (["serve", "--batching", "x"], "batching is 'x'; it must be one of"),
        (["serve", "--max-num-seqs", "600"], "max_num_batched_tokens is 512"),
        (["serve", "--config", "/nowhere.toml"], "cannot read the configuration file"),
        (["serve", "--host", "0.0.0.0"], "no API key is set"),
        (["config", "show", "--json=1"], "--json"),
        (["run", "/nowhere.jsonl"], "cannot read /nowhere.jsonl"),
        (["run"], "PROMPTS"),
        (["pull", "/nowhere.gguf"], "/nowhere.gguf"),
        (["pull", "--max-model-len", "1"], "max_model_len is 1"),
        (["chat", "--url", "ftp://x"], "url is 'ftp://x'"),
        (["bench", "serve", "--url", "ftp://x"], "url is 'ftp://x'"),
        (["bench", "serve", "--url", "http://127.0.0.1:1", "--batching", "static"], "--batching cannot be set"),
        (["bench", "engine", "--rate", "1", "--concurrency", "2"], "exclude each other"),
        (["bench", "engine", "--rows", "0"], "--rows"),
        (["demo", "--out", "/dev/null/x"], "cannot write to"),
    ],
)
def test_a_mistake_of_the_caller_is_one_line_and_status_2(capsys, argv, message):
    assert main(argv) == 2
    assert message in one_line(capsys)


def test_a_port_in_use_is_told_before_anything_is_loaded(capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["serve", "/nowhere.gguf", "--port", str(port)]) == 2
    assert f"port {port} on 127.0.0.1 is in use" in one_line(capsys)


def test_nobody_behind_the_url_is_told(capsys):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
        assert main(["bench", "serve", "--url", url]) == 2
        assert "is the server running?" in one_line(capsys)
        assert main(["chat", "--url", url]) == 2
        assert "is the server running?" in one_line(capsys)


@pytest.fixture
def failing(monkeypatch):
    """A command that raises what it is given."""

    def install(error: BaseException) -> None:
        @click.command()
        def command() -> None:
            raise error

        monkeypatch.setitem(COMMANDS, "pull", ("failing", ""))
        monkeypatch.setattr("importlib.import_module", lambda name: type("M", (), {"command": command}))

    return install


@pytest.mark.parametrize("kind", [ConfigError, ModelError, UserError])
def test_known_errors_end_with_status_2_whatever_their_layout(capsys, failing, kind):
    failing(kind("first line\n  second line"))
    assert main(["pull"]) == 2
    assert one_line(capsys) == "ekiden: error: first line second line\n"


def test_the_unexpected_is_one_line_with_status_1_and_a_traceback_only_on_request(capsys, failing, monkeypatch):
    failing(RuntimeError("boom"))
    assert main(["pull"]) == 1
    assert "RuntimeError: boom" in one_line(capsys)
    monkeypatch.setenv("EKIDEN_DEBUG", "1")
    assert main(["pull"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_the_debug_flag_shows_the_traceback(capsys, failing, monkeypatch):
    monkeypatch.setenv("EKIDEN_DEBUG", "")  # the flag sets it; this takes it back after the test
    failing(RuntimeError("boom"))
    assert main(["--debug", "pull"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_ctrl_c_ends_with_130(failing):
    failing(KeyboardInterrupt())
    assert main(["pull"]) == 130


def test_exit_statuses_of_commands_pass_through(failing):
    failing(click.exceptions.Exit(7))
    assert main(["pull"]) == 7


def test_every_command_has_help(capsys):
    for name in [*COMMANDS, "version"]:
        assert main([name, "--help"]) == 0
        assert "Usage: ekiden" in capsys.readouterr().out
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(name in text for name in COMMANDS)


def test_without_a_command_the_help_is_shown(capsys):
    assert main([]) == 2
    assert "Commands:" in capsys.readouterr().out


def test_the_help_lines_are_those_of_the_commands():
    for name, (module, line) in COMMANDS.items():
        command = cli.get_command(click.Context(cli), name)
        assert command is not None
        assert (command.help or "").splitlines()[0] == line, f"{module} says something else"


def test_config_show_tells_values_and_sources_and_keeps_secrets(capsys, monkeypatch):
    monkeypatch.setenv("EKIDEN_API_KEY", "hush")
    assert main(["config", "show", "--port", "1", "--no-enable-prefix-caching", "--json"]) == 0
    text = capsys.readouterr().out
    assert "hush" not in text
    shown = json.loads(text)
    assert shown["server.port"] == {"value": 1, "source": "--port"}
    assert shown["server.api_key"] == {"value": "(set)", "source": "EKIDEN_API_KEY"}
    assert shown["cache.enable_prefix_caching"] == {"value": False, "source": "--enable-prefix-caching"}
    assert shown["scheduler.batching"] == {"value": "continuous", "source": "default"}


def test_config_show_as_text_has_a_line_for_each_setting(capsys):
    assert main(["config", "show", "m.gguf"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["setting", "value", "from"]
    assert lines[1].split() == ["model.model", "m.gguf", "argument", "MODEL"]


def test_a_reader_that_leaves_early_is_no_error(tmp_path: Path):
    command = f"{sys.executable} -m ekiden config show | head -n 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == ""
    assert done.stdout.startswith("setting")
