"""A hardware profile: how fast one replica is and what it holds, as a TOML file of coefficients.

`ekiden evaluate project --save-profile` writes one from a recorded run; a profile of other hardware is written by hand
in the same form, and then says ``measured = false``. Every field is explained in the file that is written.
"""

import math
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from ekiden.config import CacheConfig, Config, LimitsConfig, SchedulerConfig
from ekiden.engine.simulated import EngineSpeed
from ekiden.engine.step_time import StepCost
from ekiden.errors import UserError
from ekiden.state.runner import ChunkRules, RunnerInfo

PROFILE_VERSION = 1
_LEAST = {"num_swap_blocks": 0, "max_drafts": 0, "tokens_per_change": 0, "max_model_len": 2}
"""Of the fields of a model; 1 for the others."""


class StepCosts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Seconds, as :class:`ekiden.engine.step_time.StepCost` has them."""

    step: float
    decode_row: float
    decode_context: float
    prefill_token: float
    prefill_pair: float


class ReplicaModel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the engine must know of a loaded model and its pool."""

    num_blocks: int
    """KV blocks of a replica."""
    block_size: int = 32
    num_swap_blocks: int = 0
    bytes_per_block: int = 1
    max_model_len: int = 4096
    vocab_size: int = 32_000
    chunk_border: int | None = None
    """A chunk that does not end its prompt ends at a multiple of so many tokens; a block where it is left out."""
    least_chunk: int = 1
    least_rows: int = 1
    """The backend fills its passes up to so many rows."""
    max_drafts: int = 0
    """The most tokens that are guessed ahead for a sequence in a step; 0 for none."""
    tokens_per_change: int = 0
    """How many tokens cost what it costs to compute another number of them than in the last step."""


class Accuracy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """How far the model was from what was measured. Errors are relative: 0.1 is 10 %."""

    steps: int = 0
    """Steps that the costs were fitted to."""
    median_step_error: float | None = None
    """Of single steps, at the fit."""
    spread: float = 0.0
    """Standard deviation of ln(measured / predicted)."""
    figures_error: float | None = None
    """The largest of the errors of p50 and p99 of TTFT and end-to-end time, simulating the run ``checked_on``."""
    checked_on: str = ""
    """A run; the same as the fitted one where no other was given."""


class HardwareProfile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One replica."""

    version: int
    name: str
    measured: bool
    """False for coefficients that nobody has measured; every projection then says so."""
    step_cost: StepCosts
    model: ReplicaModel
    gap: float = 0.0
    """Seconds between two steps of a busy engine."""
    scheduler: dict[str, Any] = {}
    """Settings under ``[scheduler]`` of Ekiden's configuration; those left out have their defaults."""
    cache: dict[str, Any] = {}
    limits: dict[str, Any] = {}
    accuracy: Accuracy = Accuracy()
    made: dict[str, str] = {}
    """Where it comes from: machine, model, run and the like, as free text."""

    @property
    def speed(self) -> EngineSpeed:
        cost, told = StepCost(**msgspec.structs.asdict(self.step_cost)), self.accuracy
        error = told.median_step_error or 0.0
        return EngineSpeed(cost=cost, gap=self.gap, median_error=error, spread=told.spread, steps=told.steps)

    @property
    def info(self) -> RunnerInfo:
        model = msgspec.structs.asdict(self.model)
        border, least, rows = (model.pop(name) for name in ("chunk_border", "least_chunk", "least_rows"))
        chunks = ChunkRules(border=border or self.model.block_size, least=least, least_rows=rows)
        return RunnerInfo(backend="simulated", chunks=chunks, **model)

    def config(self, changed: Mapping[str, Any] | None = None) -> Config:
        """The settings of a replica, with some of the scheduler's changed.

        Raises :class:`ekiden.config.ConfigError` for settings that cannot work.
        """
        cache = {**self.cache, "block_size": self.model.block_size}
        return Config(
            scheduler=SchedulerConfig(**{**self.scheduler, **(changed or {})}),
            cache=CacheConfig(**cache),
            limits=LimitsConfig(**self.limits),
        )


def read_profile(path: Path) -> HardwareProfile:
    """Read a profile's file; raises :class:`UserError` naming every field that cannot work."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read the profile {path}: {error.strerror or error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"the profile {path} is not valid TOML: {error}") from error
    if found := list(_faults(document)):
        raise UserError(f"the profile {path} cannot be used: " + "; ".join(found))
    profile = msgspec.convert(document, HardwareProfile)
    try:
        profile.config()
    except UserError as error:
        raise UserError(f"the profile {path} cannot be used: {error}") from error
    return profile


def _faults(document: dict[str, Any]) -> Iterator[str]:
    try:
        profile = msgspec.convert(document, HardwareProfile)
    except msgspec.ValidationError as error:
        yield str(error).replace("Object", "it").replace("`$.", "`")
        return
    if profile.version != PROFILE_VERSION:
        yield f"version is {profile.version}; this version of Ekiden reads version {PROFILE_VERSION}"
    costs = {f"step_cost.{name}": value for name, value in msgspec.structs.asdict(profile.step_cost).items()}
    for name, seconds in {**costs, "gap": profile.gap}.items():
        if not (math.isfinite(seconds) and seconds >= 0.0):
            yield f"{name} is {seconds}; write seconds, 0 or more"
    if not any(costs.values()):
        yield "step_cost has only zeros; a step takes some time"
    for name, value in msgspec.structs.asdict(profile.model).items():
        least = _LEAST.get(name, 1)
        if value is not None and value < least:
            yield f"model.{name} is {value}; it must be {least} or more"
    for section, kind in (("scheduler", SchedulerConfig), ("cache", CacheConfig), ("limits", LimitsConfig)):
        known = kind.__dataclass_fields__
        for name in getattr(profile, section):
            if name not in known:
                yield f"{section}.{name} is no setting; there are {', '.join(known)}"


def toml_of(profile: HardwareProfile) -> str:
    """The profile as a file that explains itself and reads back equal."""
    cost, model = profile.step_cost, profile.model
    lines = [
        "# A hardware profile for `ekiden evaluate project --profile FILE`: one replica. Times are seconds.",
        f"version = {profile.version}",
        f"name = {_toml(profile.name)}",
        "# false: nobody has measured these figures, and every projection says so",
        f"measured = {_toml(profile.measured)}",
        "# between two steps of a busy engine",
        f"gap = {_toml(profile.gap)}",
        "",
        "[step_cost]  # a step takes the sum of these",
        f"step = {_toml(cost.step)}  # every step",
        f"decode_row = {_toml(cost.decode_row)}  # for each sequence that decodes in it",
        f"decode_context = {_toml(cost.decode_context)}  # for each earlier token of each of these",
        f"prefill_token = {_toml(cost.prefill_token)}  # for each prompt token computed in it",
        f"prefill_pair = {_toml(cost.prefill_pair)}  # for each pair of such a token and an earlier one",
        "",
        "[model]",
        f"num_blocks = {model.num_blocks}  # KV blocks of a replica",
    ]
    others = msgspec.structs.asdict(model)
    lines += [f"{name} = {_toml(others[name])}" for name in others if name != "num_blocks" and others[name] is not None]
    for section in ("scheduler", "cache", "limits", "accuracy", "made"):
        values = msgspec.to_builtins(getattr(profile, section))
        given = {name: value for name, value in values.items() if value is not None}
        if given:
            lines += ["", f"[{section}]", *(f"{name} = {_toml(value)}" for name, value in given.items())]
    return "\n".join(lines) + "\n"


def _toml(value: object) -> str:
    """A number, truth value or string in TOML; JSON writes these in a form that TOML reads."""
    return msgspec.json.encode(value).decode()
