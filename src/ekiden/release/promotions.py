"""What releases have promoted on a server, in force again after its restart.

The journals of releases are all that is kept. A promotion names the server it was for, by its address and its model:
the folder of releases may be that of several. At a start those of this server come into force in the order of their
promotions, each by one change of the controls, which the ledger has with the release, who promoted and who approved it,
and the digest of the journal.

A promotion is left out where what it was compared with is no longer what is configured, where the engine refuses it,
and where its journal cannot be believed: the server starts as configured, and says why.
"""

import asyncio
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from ekiden.engine.interface import Engine, EngineDied
from ekiden.errors import UserError
from ekiden.release.plan import ReleaseError
from ekiden.release.state import Phase, Place, State
from ekiden.release.store import stores
from ekiden.state.controls import ControlChange, Controls, InvalidControls, SetBy, typed_values

logger = logging.getLogger(__name__)


class Promotion(msgspec.Struct, frozen=True, kw_only=True):
    """``digest``: of the newest entry of its journal, which stands for all of it."""

    state: State
    digest: str

    @property
    def name(self) -> str:
        return self.state.plan.name

    @property
    def told(self) -> str:
        """Who made it stand, for the ledger."""
        approved = ", ".join(f"{each.who} ({each.why})" for each in self.state.approvals)
        return (
            f"release {self.state.subject}: in force again after a start, promoted by {self.state.promoting}, approved "
            f"by {approved}; journal {self.digest}"
        )


async def stand(engine: Engine, folder: Path, place: Place) -> list[str]:
    """Put this server's promotions in force; returns in sentences what is not, and why."""
    found, faults = await asyncio.to_thread(promotions, folder, place)
    for each in found:
        try:
            change = change_of(each, engine.controls().controls)
            if change is not None:
                await engine.set_controls(change)
                told = ", ".join(f"{name} = {value}" for name, value in each.state.plan.candidate.items())
                logger.info("the release %s is in force again: %s", each.name, told)
        except ReleaseError as error:
            faults.append(str(error))
        except (InvalidControls, EngineDied) as error:
            faults.append(_unfit(each, str(error)))
    return faults


async def left_out(folder: Path, place: Place) -> list[str]:
    """What a start without promotions leaves out, in sentences."""
    found, _ = await asyncio.to_thread(promotions, folder, place)
    why = "the server was started without promotions"
    return [f"the release {each.name} is promoted and not in force: {why}" for each in found]


def promotions(folder: Path, place: Place) -> tuple[list[Promotion], list[str]]:
    """Those of this server, in the order in which they were promoted, and in sentences what cannot be told."""
    found: list[Promotion] = []
    faults: list[str] = []
    for store in reversed(stores(folder)):  # of two in one second the later stands
        try:
            state = store.known()
            if not _is_for(state, place):
                continue
            if state.phase is Phase.HEALTHY:
                found.append(Promotion(state=state, digest=store.last_digest()))
            elif not state.abort:
                faults.append(
                    f"the release {state.plan.name} was being promoted when that was interrupted, and is not in force; "
                    "`ekiden release start` with its plan carries it on"
                )
        except (UserError, OSError, msgspec.DecodeError, msgspec.ValidationError) as error:
            faults.append(f"the release in {store.folder} cannot be read, and nothing of it is in force: {error}")
    return sorted(found, key=lambda each: each.state.promoted_at), faults


def change_of(promotion: Promotion, controls: Controls) -> ControlChange | None:
    """What puts it in force, with ``controls`` in force before; None where all of it is. Raises :class:`ReleaseError`
    where it no longer fits them."""
    state = promotion.state
    now: Mapping[str, Any] = msgspec.to_builtins(controls)
    try:
        wanted: dict[str, Any] = msgspec.to_builtins(typed_values(state.plan.candidate))
    except InvalidControls as error:
        raise ReleaseError(_unfit(promotion, str(error))) from error
    for name, value in wanted.items():
        if now[name] not in (value, state.before[name]):
            told = f"{name} is {now[name]!r} now, and {value!r} was compared with {state.before[name]!r}"
            raise ReleaseError(_unfit(promotion, told))
    values = {name: value for name, value in wanted.items() if now[name] != value}
    if not values:
        return None
    return ControlChange(
        values=typed_values({**values, "release": f"{promotion.name}: promoted"}),
        set_by=SetBy.SOFTWARE_RULE,
        who=f"release:{promotion.name}",
        why=promotion.told,
    )


def _unfit(promotion: Promotion, why: str) -> str:
    return (
        f"the release {promotion.name} is promoted and does not fit the configuration, so it is not in force: {why}. "
        f"Configure what you want, and `ekiden release abort {promotion.name}` or release it again"
    )


def _is_for(state: State, place: Place) -> bool:
    return bool(state.promoting) and state.promoted_on is not None and state.promoted_on.is_same(place)
