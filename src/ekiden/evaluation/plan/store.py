"""The folder of an evaluation.

::

    journal.jsonl, journal.head      what happened (plan/journal.py)
    registration.json                what is fixed (plan/registration.py)
    runs/dev/*.json                  one file a run of one arm; dev-2 and so on when it was begun anew
    runs/confirm/*.json              confirm-2 and so on under later registrations
    requests.parquet                 every request of all runs, a row each, written at the end

A run's file is written whole or not at all, and then told to the journal with its digest. What the journal does not
tell is the leftover of an interrupted run: it does not count as finished, and the next run of that name replaces it.
"""

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from ekiden.errors import UserError
from ekiden.evaluation.plan.journal import Entry, Event, Journal
from ekiden.evaluation.plan.model import Objectives
from ekiden.evaluation.results import ArmRun
from ekiden.evidence.extras import needed
from ekiden.models.files import replace_file, sha256_of

DEV, CONFIRM = "dev", "confirm"
CHUNK: Final = 20_000
_COLUMNS: Final = (
    "arm string, workload string, block int64, position int64, request_id string, tenant string, language string, "
    "pair string, priority int64, prompt_tokens int64, output_tokens int64, answered_tokens int64, intended double, "
    "sent double, ttft double, tpot double, largest_gap double, e2e double, slowest_alone double, failure string, "
    "good bool, void string, run_id string"
)


class RunKey(NamedTuple):
    """Which run of an evaluation. ``position`` is its place in the order of the block."""

    workload: str
    block: int
    position: int
    arm: str

    @classmethod
    def of(cls, run: ArmRun) -> "RunKey":
        return cls(run.workload, run.block, run.position, run.arm)


class _Stored(msgspec.Struct, frozen=True, kw_only=True):
    """The journal's payload for a run."""

    file: str
    """Relative to the folder."""
    sha256: str
    key: RunKey
    run_id: str | None


class Store:
    """The runs of one evaluation. Errors are :class:`UserError` and name the file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.journal = Journal(folder)

    def path_of(self, split: str, key: RunKey) -> Path:
        """``split``: ``dev`` or ``confirm``. Names of arms and workloads are checked when a plan is read."""
        name = f"{key.workload}~{key.block:03}~{key.position:02}~{key.arm}.json"
        return self.folder / "runs" / self._series(split) / name

    def begin_dev(self, run_id: str, plan_digest: str, *, fresh: bool = False) -> str:
        """Start an exploratory run, or go on with the last one if it was of the same plan, unless it is to be
        ``fresh``. Returns the run id in force."""
        begun = [entry.payload for entry in self._entries() if entry.event == Event.DEV_RUN]
        if begun and begun[-1].get("plan") == plan_digest and not fresh:
            return str(begun[-1].get("run_id"))
        self.journal.append(Event.DEV_RUN, {"run_id": run_id, "plan": plan_digest})
        return run_id

    def save(self, split: str, run: ArmRun) -> Path:
        """Write a finished run, and tell the journal."""
        path = self.path_of(split, RunKey.of(run))
        with _told(path):
            replace_file(path, msgspec.json.encode(run))
            digest = sha256_of(path)
        told = _Stored(file=self._name(path), sha256=digest, key=RunKey.of(run), run_id=run.run_id)
        self.journal.append(Event.RUN_STORED, msgspec.to_builtins(told))
        return path

    def finished(self, split: str) -> dict[RunKey, Path]:
        """The runs that need not be run again, in the order in which they were finished."""
        told = [stored for stored in self._stored() if stored.file.startswith(f"runs/{self._series(split)}/")]
        return {stored.key: path for stored in told if (path := self.folder / stored.file).is_file()}

    def load(self, split: str) -> list[ArmRun]:
        """All finished runs, by workload, block and position."""
        return [self._read(path) for _, path in sorted(self.finished(split).items())]

    def leftovers(self, split: str) -> list[Path]:
        """Files beside the runs that the journal does not tell of."""
        return self._untold(self._series(split))

    def discard_leftovers(self, split: str) -> list[str]:
        """Delete what a run that was interrupted left half done; returns the files' names."""
        found = self.leftovers(split)
        for path in found:
            with _told(path):
                path.unlink()
        return [path.name for path in found]

    def altered(self) -> list[str]:
        """What is not as the journal tells, in sentences."""
        digests = {stored.file: stored.sha256 for stored in self._stored()}
        found = []
        for name, digest in digests.items():
            try:
                if sha256_of(self.folder / name) != digest:
                    found.append(f"the result file {name} was edited after it was stored")
            except FileNotFoundError:
                found.append(f"the result file {name} was removed")
            except OSError as error:
                found.append(f"the result file {name} cannot be read: {error.strerror or error}")
        unknown = [self._name(path) for path in self._untold(f"{CONFIRM}*")]
        return found + [f"the result file {name} is not in the journal" for name in unknown]

    def write_requests(self, runs: Sequence[ArmRun], objectives: Objectives) -> Path:
        """``requests.parquet``: one row a request. Times are seconds from the start of its run; lengths are tokens:
        ``output_tokens`` is what the answer should have had, ``answered_tokens`` what it had. ``good`` is by
        ``objectives``. Raises :class:`ExportError` without pyarrow."""
        pyarrow, parquet = needed("pyarrow", "evaluate"), needed("pyarrow.parquet", "evaluate")
        fields = [(name, pyarrow.type_for_alias(kind)) for name, kind in map(str.split, _COLUMNS.split(", "))]
        schema = pyarrow.schema(fields)
        path = self.folder / "requests.parquet"
        temporary = path.with_suffix(".parquet.new")
        with _told(path):
            self.folder.mkdir(parents=True, exist_ok=True)
            with parquet.ParquetWriter(temporary, schema, compression="zstd") as writer:
                for rows in _chunks(_rows(runs, objectives)):
                    writer.write_table(pyarrow.Table.from_pylist(rows, schema=schema))
            temporary.replace(path)
        return path

    def read_requests(self) -> list[dict[str, Any]]:
        """The rows of ``requests.parquet``."""
        path = self.folder / "requests.parquet"
        with _told(path):
            rows: list[dict[str, Any]] = needed("pyarrow.parquet", "evaluate").read_table(path).to_pylist()
        return rows

    def _entries(self) -> list[Entry]:
        with _told(self.journal.path):
            return self.journal.read()[0]

    def _series(self, split: str) -> str:
        """The folder of the runs that belong together: those since this split was last begun."""
        start = Event.DEV_RUN if split == DEV else Event.CONFIRM_STARTED
        times = sum(entry.event == start for entry in self._entries())
        return split if times < 2 else f"{split}-{times}"

    def _untold(self, pattern: str) -> list[Path]:
        """Files in the folders of the pattern that the journal does not tell of."""
        told = {self.folder / stored.file for stored in self._stored()}
        return [path for path in sorted((self.folder / "runs").glob(f"{pattern}/*")) if path not in told]

    def _stored(self) -> list["_Stored"]:
        """What the journal tells of stored runs."""
        found = []
        for entry in self._entries():
            if entry.event == Event.RUN_STORED:
                with contextlib.suppress(msgspec.ValidationError):  # a forger's entry: its file is then not told of
                    found.append(msgspec.convert(entry.payload, _Stored))
        return found

    def _read(self, path: Path) -> ArmRun:
        with _told(path):
            content = path.read_bytes()
        try:
            return msgspec.json.decode(content, type=ArmRun)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise UserError(f"{path} is no stored run ({error}); delete it, and the run is done again") from error

    def _name(self, path: Path) -> str:
        return path.relative_to(self.folder).as_posix()


@contextlib.contextmanager
def _told(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(f"{path} cannot be read or written: {error.strerror or error}") from error


def _rows(runs: Iterable[ArmRun], objectives: Objectives) -> Iterator[dict[str, Any]]:
    for run in runs:
        for answered in run.results:
            record = answered.record
            yield {
                "arm": run.arm, "workload": run.workload, "block": run.block, "position": run.position,
                "request_id": answered.id, "tenant": answered.tenant, "language": answered.language,
                "pair": answered.pair, "priority": answered.priority, "prompt_tokens": answered.prompt_tokens,
                "output_tokens": answered.output_tokens, "answered_tokens": record.output_tokens,
                "intended": record.intended, "sent": record.sent, "ttft": record.ttft, "tpot": record.tpot,
                "largest_gap": max(record.gaps, default=None), "e2e": record.e2e,
                "slowest_alone": answered.slowest_alone, "failure": record.failure,
                "good": record.meets(objectives.ttft, objectives.tpot), "void": run.void, "run_id": run.run_id,
            }  # fmt: skip


def _chunks(rows: Iterator[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    chunk: list[dict[str, Any]] = []
    for row in rows:
        chunk.append(row)
        if len(chunk) == CHUNK:
            yield chunk
            chunk = []
    if chunk:
        yield chunk
