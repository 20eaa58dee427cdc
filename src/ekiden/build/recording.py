"""Opens the ledger of a run: makes its header, its file and the recorder for an engine core."""

import sqlite3
import time
from dataclasses import asdict
from datetime import UTC, datetime
from secrets import token_hex

import msgspec

from ekiden.build.core import build_core
from ekiden.config import Config, controls_of, parse_size
from ekiden.engine.engine_core import EngineCore
from ekiden.engine.parts import EngineParts
from ekiden.errors import UserError
from ekiden.ledger.recorder import Recorder, whole_microseconds
from ekiden.ledger.records import FORMAT, RunHeader
from ekiden.ledger.retention import SUFFIX, Retention, ledger_folder, remove_run
from ekiden.ledger.store import LedgerWriter
from ekiden.version import __version__

DAY_SECONDS = 86_400


class LedgerError(UserError, RuntimeError):
    """The ledger cannot be written; the message says where and what to do."""


def make_header(config: Config, parts: EngineParts, *, run_id: str, clock_base: int) -> RunHeader:
    """The first record of a run. ``clock_base``: the engine's clock now, in microseconds."""
    info, card = parts.runner.info, parts.card
    fields = {name: getattr(info, name) for name in RunHeader.__struct_fields__ if hasattr(info, name)}
    del fields["max_drafts"]
    fields |= {name: getattr(card, name) for name in ("model_id", "fingerprint", "lineage", "max_model_len")}
    return RunHeader(
        **fields,
        format=FORMAT,
        run_id=run_id,
        started=time.time(),
        clock_base=clock_base,
        version=__version__,
        chunk_border=info.chunks.border,
        least_chunk=info.chunks.least,
        least_rows=info.chunks.least_rows,
        max_drafts=0 if config.engine.speculation == "none" else info.max_drafts,
        eos_token_ids=sorted(parts.eos_token_ids),
        has_grammars=parts.grammars is not None,
        seed=config.engine.seed,
        scheduler=asdict(config.scheduler),
        cache=asdict(config.cache),
        limits=asdict(config.limits),
        tenants={name: msgspec.structs.asdict(limits) for name, limits in config.tenants.items()},
        prompts_kept=config.ledger.ledger_keep_prompts,
    )


def recorded_core(parts: EngineParts, config: Config, *, run_id: str | None = None) -> tuple[EngineCore, LedgerWriter]:
    """An engine core whose turns are recorded, and the writer, which its owner closes at the end.

    Raises :class:`LedgerError` when the ledger's folder cannot be written.
    """
    clock = whole_microseconds(time.monotonic)
    clock_base = round(clock() * 1e6)
    settings = config.ledger
    run_id = run_id or f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{token_hex(2)}"  # sorts by time and is unique
    header = make_header(config, parts, run_id=run_id, clock_base=clock_base)
    retention = Retention(
        max_bytes=parse_size("ledger_max_size", settings.ledger_max_size),
        max_seconds=settings.ledger_max_age_days * DAY_SECONDS,
    )
    path = ledger_folder(settings) / (run_id + SUFFIX)
    try:
        writer = LedgerWriter(path, header, retention)
    except (OSError, sqlite3.Error) as error:
        raise LedgerError(
            f"cannot record to {path}: {error}; choose another folder with --ledger-dir, or --no-ledger"
        ) from error
    recorder = Recorder(
        writer.put,
        clock_base=clock_base,
        block_size=parts.runner.info.block_size,
        prefix_caching=config.cache.enable_prefix_caching,
        keep_prompts=settings.ledger_keep_prompts,
        controls=controls_of(config),
    )
    try:
        return build_core(parts, config, clock=clock, recorder=recorder), writer
    except BaseException:
        writer.close()
        remove_run(path)
        raise
