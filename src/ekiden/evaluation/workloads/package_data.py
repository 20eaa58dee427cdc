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


class _Lengths(msgspec.Struct, frozen=True, kw_only=True):
    pool: str
    client: int
    window_start_s: int
    input_tokens: tuple[float, ...]
    output_tokens: tuple[float, ...]


class Client(msgspec.Struct, frozen=True, kw_only=True):
    """One client of ServeGen in one window of ten minutes; its lengths are quantiles at :data:`LEVELS`."""

    pool: str
    client: int
    window_start_s: int
    rate_rps: float
    iat_family: str
    iat_shape: float
    input_tokens: tuple[float, ...]
    output_tokens: tuple[float, ...]


class _System(msgspec.Struct, frozen=True):
    system: str


class _Passage(msgspec.Struct, frozen=True):
    text: str


BLOCK_TOKENS = 512
"""Tokens of a block of the Mooncake trace."""
LEVELS = (0.0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1.0)
"""Levels of the quantiles of ServeGen's lengths."""
LENGTHS_SECONDS = 6 * 3600
"""ServeGen tells lengths for six hours at a time."""


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


@cache
def passages(language: str) -> tuple[str, ...]:
    """Texts of some hundred words in ``en`` or ``ja``, for perplexity."""
    return tuple(
        line.text for line in msgspec.json.Decoder(_Passage).decode_lines(_read(f"text/perplexity_{language}.jsonl"))
    )


@cache
def clients(rates: str, lengths: str) -> tuple[Client, ...]:
    """Every client of every window, with the lengths of the six hours that the window lies in."""
    known = {(row.pool, row.client, row.window_start_s): row for row in _lengths(lengths)}
    found = []
    for row in csv.DictReader(io.StringIO(_read(rates).decode())):
        start = int(row["window_start_s"])
        spread = known[row["pool"], int(row["client"]), start - start % LENGTHS_SECONDS]
        found.append(
            Client(
                pool=row["pool"],
                client=int(row["client"]),
                window_start_s=start,
                rate_rps=float(row["rate_rps"]),
                iat_family=row["iat_family"],
                iat_shape=float(row["iat_shape"]),
                input_tokens=spread.input_tokens,
                output_tokens=spread.output_tokens,
            )
        )
    return tuple(found)


def _lengths(path: str) -> list[_Lengths]:
    return msgspec.json.Decoder(_Lengths).decode_lines(_read(path))
