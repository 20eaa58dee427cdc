"""The phases of an evaluation in its folder: an exploratory run, the one confirmation, and the report of either.

What a phase needs to go on after an interruption lies in the folder: runs (:class:`Store`), what tuning chose, the
speed of the engine, and the slot charts.
"""

import secrets
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from ekiden.engine.simulated import EngineSpeed
from ekiden.errors import UserError
from ekiden.evaluation.analysis.analyse import analyse
from ekiden.evaluation.experiment.conduct import Conductor
from ekiden.evaluation.experiment.curves import rate_chart
from ekiden.evaluation.experiment.order import AGAIN, due_in
from ekiden.evaluation.experiment.subjects import Subjects
from ekiden.evaluation.outcome import Chart, Label, Outcome, Phase, SlotChart, Tuning
from ekiden.evaluation.plan.basis import basis_of
from ekiden.evaluation.plan.journal import Event
from ekiden.evaluation.plan.model import Plan
from ekiden.evaluation.plan.read import plan_digest
from ekiden.evaluation.plan.registration import begin_confirm, check, confirm_of, registered, superseded
from ekiden.evaluation.plan.store import DEV, RunKey, Store
from ekiden.evaluation.results import ArmRun
from ekiden.evaluation.workloads.source import Split
from ekiden.evaluation.workloads.sources import make
from ekiden.models.files import replace_file

PREPARED = "prepared.json"
LEDGER = "ledger"


class Prepared(msgspec.Struct, kw_only=True):
    """What was found out on dev, and what is drawn of the first runs."""

    tunings: list[Tuning] = []
    speed: EngineSpeed | None = None
    slots: dict[str, list[SlotChart]] = {}
    """By split."""
    charts: list[Chart] = []


class _Kept:
    """The runs of one split in the store, as :func:`serve_all` asks for them."""

    def __init__(self, store: Store, split: Split) -> None:
        self._store, self._split = store, split

    def finished(self) -> Collection[RunKey]:
        return self._store.finished(self._split).keys()

    def keep(self, run: ArmRun) -> None:
        self._store.save(self._split, run)

    def all_runs(self) -> list[ArmRun]:
        return self._store.load(self._split)


class Evaluation:
    """One plan and its folder. ``subjects`` is made when something is to be served."""

    def __init__(
        self,
        plan: Plan,
        plan_path: Path,
        folder: Path,
        make_subjects: Callable[[Plan, Path], Subjects],
        *,
        bar: Callable[[str, int], Any],
    ) -> None:
        self.plan, self._plan_path, self.folder = plan, plan_path, folder
        self._make_subjects, self._bar = make_subjects, bar
        self.store = Store(folder)

    @property
    def ledger_folder(self) -> Path:
        return self.folder / LEDGER

    def explore(self) -> Outcome:
        """Tune, serve dev and the candidate against itself, and say what that lets expect.

        Raises :class:`StoppedError` and what the engine raises; what is served by then is kept.
        """
        with self._subjects() as subjects:
            self.store.begin_dev(secrets.token_hex(4), plan_digest(self.plan))
            self._serve("dev", subjects)
            lineage = subjects.lineage()
        return self._outcome("dev", Label.EXPLORATORY, lineage)

    def confirm(self) -> Outcome:
        """Make the one run that counts, or go on with it. Raises :class:`UserError` where that is refused."""
        begun = confirm_of(self.folder)
        run_id = begun[0] if begun and not begun[1] else secrets.token_hex(4)
        with self._subjects() as subjects:
            begin_confirm(self.folder, self._plan_path, run_id, basis_of(self.plan, subjects.lineage()))
            self._serve("confirm", subjects)
            lineage = subjects.lineage()
        self.store.journal.append(Event.CONFIRM_FINISHED, {"run_id": run_id})
        outcome = self._outcome("confirm", Label.CONFIRMATORY, lineage)
        self.store.journal.append(Event.VERDICT, {"run_id": run_id, "verdict": outcome.verdict.value})
        return outcome

    def report(self) -> Outcome:
        """The outcome again, of the confirmation if there is one: what was changed since is shown in it."""
        begun = confirm_of(self.folder)
        split: Split = "confirm" if begun and begun[1] else "dev"
        registration = registered(self.folder)
        lineage = registration.basis.lineage if registration else {}
        label = Label.CONFIRMATORY if split == "confirm" else Label.EXPLORATORY
        return self._outcome(split, label, lineage)

    def write_requests(self) -> Path:
        """``requests.parquet``: every request of every run that is stored."""
        return self.store.write_requests([*self.store.load(DEV), *self.store.load("confirm")], self.plan.objectives)

    # --- inside

    @contextmanager
    def _subjects(self) -> Iterator[Subjects]:
        subjects = self._make_subjects(self.plan, self.ledger_folder)
        try:
            yield subjects
        finally:
            subjects.close()

    def _prepare(self, subjects: Subjects) -> Conductor:
        """Find out the engine's speed and tune, where that has not been done."""
        prepared = self._prepared()
        conductor = Conductor(plan=self.plan, subjects=subjects, tunings=prepared.tunings, speed=prepared.speed)
        untuned = [name for name in conductor.to_tune if name not in {tuning.arm for tuning in prepared.tunings}]
        with self._bar("speed and tuning", len(untuned) + (prepared.speed is None)) as advance:
            conductor.advance = lambda what: advance()
            if conductor.speed is None:
                conductor.measure_speed()
            conductor.tune()
        if untuned or prepared.speed is None:
            prepared.tunings, prepared.speed = conductor.tunings, conductor.speed
            prepared.charts = [rate_chart(conductor)]
            self._keep(prepared)
            self.store.journal.append(Event.TUNED, {each.arm: each.chosen for each in prepared.tunings})
        return conductor

    def _serve(self, split: Split, subjects: Subjects) -> None:
        conductor, kept = self._prepare(subjects), _Kept(self.store, split)
        left = len({each.key for each in due_in(self.plan, split)}.difference(kept.finished()))
        conductor.slots = list(self._prepared().slots.get(split, []))
        with self._bar(split, left) as advance:
            conductor.advance = lambda what: advance()
            try:
                conductor.serve(split, kept)
            finally:
                prepared = self._prepared()
                prepared.slots[split] = conductor.slots
                self._keep(prepared)

    def _outcome(self, split: Split, label: Label, lineage: dict[str, Any]) -> Outcome:
        due = due_in(self.plan, split)
        if not self.store.finished(split):
            raise UserError(f"nothing has been served of {self._plan_path} yet; do `ekiden evaluate run` or `confirm`")
        runs, prepared, registration = self.store.load(split), self._prepared(), registered(self.folder)
        # A against A was served on dev, in blocks of its own.
        dev = runs if split == "dev" else self.store.load(DEV)
        noisy = {(run.workload, run.block) for run in dev if run.arm == AGAIN}
        integrity = self._changed_tuning()
        told = None
        if registration is not None:
            integrity += check(self.folder, self._plan_path)
            told = {
                "digest": registration.digest,
                "plan_digest": registration.plan_digest,
                "analysis": registration.basis.analysis,
                "superseded": superseded(self.folder),
                "journal": self.store.journal.last_digest(),
            }
        outcome = analyse(
            self.plan,
            [run for run in runs if split == "confirm" or (run.workload, run.block) not in noisy],
            label=label,
            noise_runs=[run for run in dev if (run.workload, run.block) in noisy],
            made={
                spec.name: make(spec, split=split, block=0, seed=self.plan.confirm.seed).made
                for spec in self.plan.workloads
                if spec.name in {each.workload.name for each in due}
            },
            tuning=prepared.tunings,
            integrity=integrity,
            registration=told,
            lineage=lineage,
            slots=prepared.slots.get(split, []),
            charts=prepared.charts,
            ledger_dir=self.ledger_folder,
        )
        missing = {each.key for each in due} - self.store.finished(split).keys()
        if missing and outcome.phase is not Phase.FAILED:
            outcome.phase = Phase.ERROR
        return outcome

    def _changed_tuning(self) -> list[str]:
        """What tuning chose stands in the journal; settings that are not those were put there later."""
        entries, _ = self.store.journal.read()
        told = next((entry.payload for entry in reversed(entries) if entry.event == Event.TUNED), {})
        kept = {each.arm: each.chosen for each in self._prepared().tunings}
        return [
            f"the tuned settings of arm {arm} in {PREPARED} were edited: {kept.get(arm)} and not {told.get(arm)}"
            for arm in sorted(told.keys() | kept.keys())
            if told.get(arm) != kept.get(arm)
        ]

    def _prepared(self) -> Prepared:
        path = self.folder / PREPARED
        try:
            return msgspec.json.decode(path.read_bytes(), type=Prepared)
        except FileNotFoundError:
            return Prepared()

    def _keep(self, prepared: Prepared) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        replace_file(self.folder / PREPARED, msgspec.json.encode(prepared))
