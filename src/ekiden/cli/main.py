"""The ``ekiden`` command.

Rules: a mistake of the caller (a setting, a model, a file, an address) is one line on stderr and exit status 2;
anything else that goes wrong is one line and exit status 1, with the traceback under ``--debug`` or EKIDEN_DEBUG=1;
Ctrl-C is 130. When the reader of the output has ended, as `head` does, the status is 1 and nothing is said.
Commands import the heavy rooms inside their functions, so that ``--help`` answers at once.
"""

import os
import sys
import traceback

import click

from ekiden.build.config_sources import DEBUG_VARIABLE, is_text
from ekiden.cli import streams
from ekiden.cli.lazy import LazyGroup
from ekiden.errors import UserError
from ekiden.version import __version__

# command -> (module with a `command`, one line of help); a module is imported when its command runs.
COMMANDS = {
    "serve": ("ekiden.cli.serve", "Serve a model over an OpenAI-compatible HTTP API."),
    "chat": ("ekiden.cli.chat", "Talk to a model in the terminal."),
    "run": ("ekiden.cli.run", "Answer a file of prompts offline: JSON lines in, JSON lines out."),
    "pull": ("ekiden.cli.pull", "Fetch and convert a model, so that serving it starts at once."),
    "keys": ("ekiden.cli.keys", "Make API keys for `serve --api-keys-file`."),
    "config": ("ekiden.cli.config_show", "Show the settings and where each value comes from."),
    "bench": ("ekiden.cli.bench", "Measure the backend, the engine or any OpenAI-compatible server."),
    "evaluate": ("ekiden.cli.evaluate", "Compare ways of scheduling, with thresholds fixed beforehand."),
    "release": ("ekiden.cli.release", "Change a server's scheduling by shadow, canary and approval."),
    "explain": ("ekiden.cli.explain", "Say why a request took what it took, or ended as it did."),
    "top": ("ekiden.cli.top", "Watch a running engine: slots, queue, KV blocks, pace, tenants, rules in force."),
    "guard": ("ekiden.cli.guard", "See what a server's guard holds in force; acknowledge, override, pause it."),
    "policy": ("ekiden.cli.policy", "See and change the rules of a running server; drain it, pause or end a request."),
    "approve": ("ekiden.cli.approve", "Approve or refuse what waits for a person's yes."),
    "export": ("ekiden.cli.export", "Write a recorded run as Parquet tables or OpenTelemetry spans."),
    "lineage": ("ekiden.cli.lineage", "Say what made a run or a report, and what differs between two."),
    "replay": ("ekiden.cli.replay", "Run a record again and compare every decision, or ask what would have been."),
    "demo": ("ekiden.cli.demo", "Show static, or another policy, against continuous batching on 24 real prompts."),
}


@click.group(cls=LazyGroup, lazy=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--debug", is_flag=True, help=f"print the traceback of unexpected errors (or {DEBUG_VARIABLE}=1)")
def cli(debug: bool) -> None:
    """Ekiden: a continuous-batching LLM inference server."""
    if debug:
        os.environ[DEBUG_VARIABLE] = "1"


@cli.command()
def version() -> None:
    """Print the version."""
    click.echo(f"ekiden {__version__}")


def main(argv: list[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    streams.prepare()
    try:
        return streams.flushed(_run(sys.argv[1:] if argv is None else argv))
    except UserError as error:
        return _say(str(error), 1)


def _run(arguments: list[str]) -> int:
    try:
        for argument in arguments:
            if not is_text(argument):
                encoding = sys.getfilesystemencoding()
                raise UserError(f"the argument {argument!a:.80} holds bytes that are no {encoding}; write it in that")
        status = cli.main(args=arguments, prog_name="ekiden", standalone_mode=False)
        return status if isinstance(status, int) else 0
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.ctx.get_help())
        return 2
    except click.ClickException as error:
        where = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else "ekiden"
        message = error.format_message()  # a sentence of click's, which is put into the form of our own
        return _say(f"{message[:1].lower()}{message[1:].rstrip('.')} (see {where} --help)", 2)
    except UserError as error:
        return _say(str(error), 2)
    except (click.exceptions.Abort, KeyboardInterrupt):
        return 130
    except OSError as error:
        if error.errno in streams.UNWRITABLE and error.filename is None:
            return _say(f"the output cannot be written: {error.strerror}", 1)
        return _unexpected(error)
    except Exception as error:  # noqa: BLE001 - the last resort: every error is one line
        return _unexpected(error)


def _unexpected(error: Exception) -> int:
    if os.environ.get(DEBUG_VARIABLE, "") not in ("", "0"):
        traceback.print_exc()
    return _say(f"{type(error).__name__}: {error} ({DEBUG_VARIABLE}=1 shows where)", 1)


def _say(message: str, status: int) -> int:
    click.echo(f"ekiden: error: {' '.join(message.split())}", err=True)
    return status
