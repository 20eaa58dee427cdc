"""Who is served by the candidate, and when: the switchback inside one engine; later a share of the replicas.

Inside one engine requests of two arms would share its queue and its batch, so the whole engine serves one arm at a
time. The candidate's settings are put in force for one block by a change that expires by itself at the block's end:
a release whose process dies leaves nothing behind. The baseline is what is in force without that change.
"""

import hashlib
from collections.abc import Mapping
from typing import Any, Final, Protocol

from ekiden.release.plan import ReleasePlan, release_called
from ekiden.release.server import Server, Told
from ekiden.release.state import ArmName, Block

_TOLD_SECONDS: Final = 300.0
"""How long the end of a release stays among the controls in force."""
_OVERLAP: Final = 1.0
"""Seconds for which settings that were taken back hold longer than those they replace."""


class Exposure(Protocol):
    """A way to let a share of the traffic meet the candidate.

    The switchback is the one there is. Over replicas an implementation would give both blocks of a pair at the same
    time, to two sets of replicas that a coin tells apart, by their shares of the traffic.
    """

    def order(self, pair: int, attempt: int) -> tuple[ArmName, ArmName]:
        """The arms of a pair's two blocks, by a fair coin that falls the same way every time it is asked about."""

    def begin(self, block: Block) -> None:
        """Put a block in force. It ends by itself. Doing it twice does no harm."""

    def withdraw(self, why: str) -> None:
        """Take the candidate out wherever it serves now."""

    def promote(self, why: str) -> None:
        """Let the candidate serve all from now on."""

    def restore(self, why: str) -> None:
        """Take a promotion back."""


class Switchback:
    """Implements :class:`Exposure` for one engine, by changes of its controls.

    ``before``: what the candidate's settings were when the release was made.
    """

    def __init__(self, server: Server, plan: ReleasePlan, digest: str, before: Mapping[str, Any]) -> None:
        self._server, self._plan, self._before = server, plan, before
        self._reason = f"release {release_called(plan, digest)}"
        self._digest = digest

    def order(self, pair: int, attempt: int) -> tuple[ArmName, ArmName]:
        seed = self._plan.canary.seed
        coin = hashlib.sha256(f"{self._digest} {seed} {pair} {attempt}".encode()).digest()[0] & 1
        return (ArmName.CANDIDATE, ArmName.BASELINE) if coin else (ArmName.BASELINE, ArmName.CANDIDATE)

    def begin(self, block: Block) -> None:
        text = block.text(self._plan.name)
        values = self._plan.candidate if block.arm is ArmName.CANDIDATE else {}
        self._set({**values, "release": text}, text, self._plan.canary.block_seconds)

    def withdraw(self, why: str) -> None:
        ours = self._ours(self._server.policy())
        if ours:
            # What holds without the candidate is not known here, only what held before it. It is laid over it for as
            # long as the candidate would still have held: then neither is left.
            seconds = max(told.expires_in_seconds or 0.0 for told in ours.values()) + _OVERLAP
            self._set({name: self._before[name] for name in ours}, why, seconds)
        self._set({"release": f"{self._plan.name}: rolled back"}, why, _TOLD_SECONDS)

    def promote(self, why: str) -> None:
        self._set({**self._plan.candidate, "release": f"{self._plan.name}: promoted"}, why, None)

    def restore(self, why: str) -> None:
        # What somebody else has set for good since then, or is configured, is not the promotion's.
        policy = self._server.policy()
        ours = [
            name
            for name in self._before
            if policy[name].expires_in_seconds is not None or policy[name].why.startswith(self._reason)
        ]
        self._set({**{name: self._before[name] for name in ours}, "release": ""}, why, None)
        self._set({"release": f"{self._plan.name}: rolled back"}, why, _TOLD_SECONDS)

    def _ours(self, policy: Mapping[str, Told]) -> dict[str, Told]:
        """The candidate's settings that are in force through a block of this release."""
        return {
            name: policy[name]
            for name in self._plan.candidate
            if policy[name].why.startswith(self._reason) and policy[name].expires_in_seconds is not None
        }

    def _set(self, values: Mapping[str, Any], told: str, seconds: float | None) -> None:
        self._server.set(values, why=f"{self._reason}: {told}", seconds=seconds)
