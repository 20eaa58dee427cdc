"""The traces and prompts that the package carries, read once, each file with its digest."""

import csv
import hashlib
import io
from functools import cache
from importlib.resources import files

import msgspec

import ekiden.data


class TraceRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One request of a trace. ``blocks`` names its 512-token blocks of prompt, where the trace tells which repeat."""

    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    tenant: str = "default"
    blocks: tuple[int, ...] = ()


class Prompt(msgspec.Struct, frozen=True, kw_only=True):
    """A real prompt; ``pair_id`` joins the same task in two languages, ``turns`` are the user's messages."""

    id: str
    lang: str
    source: str
    pair_id: str
    split: str
    turns: list[str]


class _System(msgspec.Struct, frozen=True):
    system: str


BLOCK_TOKENS = 512
"""Tokens of a block of the Mooncake trace."""


def _read(path: str) -> bytes:
    return files(ekiden.data).joinpath(path).read_bytes()


@cache
def digest_of(path: str) -> str:
    """SHA-256 of a data file, by its path under ``ekiden/data``."""
    return hashlib.sha256(_read(path)).hexdigest()


@cache
def trace(path: str) -> tuple[TraceRow, ...]:
    """The rows of a trace in order of arrival."""
    rows: list[TraceRow] = []
    fresh = 0
    for row in csv.DictReader(io.StringIO(_read(path).decode())):
        length = int(row["prompt_tokens"])
        blocks: tuple[int, ...] = ()
        if "prefix_of_row" in row:
            # The file names the request whose prompt begins alike and for how many blocks; all other blocks are new.
            shared = int(row["prefix_blocks_512"])
            blocks = rows[int(row["prefix_of_row"])].blocks[:shared] if shared else ()
            new = -(-length // BLOCK_TOKENS) - len(blocks)
            blocks, fresh = (*blocks, *range(fresh, fresh + new)), fresh + new
        rows.append(
            TraceRow(
                arrival_s=float(row["arrival_s"]),
                prompt_tokens=length,
                output_tokens=int(row["output_tokens"]),
                tenant=row.get("tenant", "default"),
                blocks=blocks,
            )
        )
    return tuple(rows)


@cache
def prompts(path: str) -> tuple[Prompt, ...]:
    return tuple(msgspec.json.Decoder(Prompt).decode_lines(_read(path)))


@cache
def system_prompts(path: str) -> tuple[str, ...]:
    return tuple(line.system for line in msgspec.json.Decoder(_System).decode_lines(_read(path)))
