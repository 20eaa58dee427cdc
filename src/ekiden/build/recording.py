"""Opens the ledger of a run: makes its header, its file and the recorder for an engine core."""

import sqlite3
import time
from dataclasses import asdict
from datetime import UTC, datetime
from secrets import token_hex

import msgspec

from ekiden.build.core import build_core
from ekiden.config import Config, controls_of, parse_size
from ekiden.engine.engine_core import Clock, EngineCore
from ekiden.engine.parts import EngineParts
from ekiden.errors import UserError
from ekiden.ledger.recorder import Recorder, whole_microseconds
from ekiden.ledger.records import FORMAT, RunHeader
from ekiden.ledger.retention import SUFFIX, Retention, ledger_folder
from ekiden.ledger.store import LedgerWriter
from ekiden.state.lineage import Lineage
from ekiden.state.runner import RunnerInfo
from ekiden.version import __version__

DAY_SECONDS = 86_400


class LedgerError(UserError, RuntimeError):
    """The ledger cannot be written; the message says where and what to do."""


def new_run_id() -> str:
    """An id that sorts by time and is unique, such as ``20250131-101530-9f3a``."""
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{token_hex(2)}"


def make_header(
    config: Config,
    info: RunnerInfo,
    *,
    run_id: str,
    clock_base: int,
    model_id: str = "",
    fingerprint: str = "",
    lineage: Lineage | None = None,
    max_model_len: int | None = None,
    eos_token_ids: frozenset[int] = frozenset(),
    has_grammars: bool = False,
) -> RunHeader:
    """The first record of a run. ``clock_base``: the engine's clock now, in microseconds."""
    return RunHeader(
        format=FORMAT,
        run_id=run_id,
        started=time.time(),
        clock_base=clock_base,
        version=__version__,
        fingerprint=fingerprint,
        lineage=lineage or Lineage(),
        model_id=model_id,
        backend=info.backend,
        details=info.details,
        chunk_border=info.chunks.border,
        least_chunk=info.chunks.least,
        max_drafts=info.max_drafts,
        vocab_size=info.vocab_size,
        max_model_len=min(max_model_len or info.max_model_len, info.max_model_len),
        block_size=info.block_size,
        num_blocks=info.num_blocks,
        num_swap_blocks=info.num_swap_blocks,
        bytes_per_block=info.bytes_per_block,
        eos_token_ids=sorted(eos_token_ids),
        has_grammars=has_grammars,
        seed=config.engine.seed,
        scheduler=asdict(config.scheduler),
        cache=asdict(config.cache),
        limits=asdict(config.limits),
        tenants={name: msgspec.structs.asdict(limits) for name, limits in config.tenants.items()},
        prompts_kept=config.ledger.ledger_keep_prompts,
    )


def recorded_core(
    parts: EngineParts,
    config: Config,
    *,
    clock: Clock = time.monotonic,
    run_id: str | None = None,
) -> tuple[EngineCore, LedgerWriter]:
    """An engine core whose turns are recorded, and the writer, which its owner closes at the end.

    Raises :class:`LedgerError` when the ledger's folder cannot be written.
    """
    clock = whole_microseconds(clock)
    clock_base = round(clock() * 1e6)
    tokenizer, settings = parts.tokenizer, config.ledger
    run_id = run_id or new_run_id()
    header = make_header(
        config,
        parts.runner.info,
        run_id=run_id,
        clock_base=clock_base,
        model_id=parts.card.model_id,
        fingerprint=parts.card.fingerprint,
        lineage=parts.card.lineage,
        max_model_len=parts.card.max_model_len,
        eos_token_ids=frozenset() if tokenizer is None else tokenizer.eos_token_ids,
        has_grammars=parts.grammars is not None,
    )
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
    return build_core(parts, config, clock=clock, recorder=recorder), writer
