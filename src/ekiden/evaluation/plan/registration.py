"""A plan fixed before its result is known, and whether it stayed as it was.

What is fixed: the plan to the byte, what makes the answers (the lineage), the data files, the workloads of the
confirmation, and the source of whatever decides a verdict. The registration is an entry of the evaluation's journal.
Its digest should be noted where others can see it (a ticket, a mail, a commit), and after the verdict the digest of
the journal's last entry: the chain shows every single change, and the published digests a journal rewritten whole.

A confirmation is run once. It is refused where anything fixed has changed, and where its data served one before.
"""

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ekiden.errors import UserError
from ekiden.evaluation.plan.journal import Entry, Event
from ekiden.evaluation.plan.parts import Known
from ekiden.evaluation.plan.read import PlanError, parse_plan, plan_digest, plan_text
from ekiden.evaluation.plan.store import CONFIRM, Store
from ekiden.evidence.lineage import changes, lineage_of
from ekiden.models.files import replace_file, sha256_of
from ekiden.state.lineage import Lineage

REGISTRATION_FORMAT = 1
_PACKAGE = Path(__file__).resolve().parents[2]
_DECIDING = (
    "evaluation/analysis", "evaluation/load", "evaluation/plan", "evaluation/workloads", "evaluation/outcome.py",
    "evaluation/results.py", "measure",
)  # fmt: skip
"""Whatever makes a verdict of measurements. The page is only drawn from the outcome, and is not here."""
_MAY_DIFFER = frozenset({("code", "commit"), ("code", "dirty")})
"""The digest of the source says whether the code is the same."""


class Basis(msgspec.Struct, frozen=True, kw_only=True):
    """What a confirmation stands on besides its plan."""

    lineage: dict[str, Any]
    """As ``Lineage.as_object`` gives it; empty where only other servers are measured."""
    data: dict[str, str]
    """SHA-256 of each data file by its path in the package: ``Workload.sources`` of all workloads together."""
    workloads: dict[str, str]
    """``Workload.digest`` of each block of the confirmation, by ``name/block``."""
    analysis: str
    """:func:`analysis_digest`."""


class Registration(msgspec.Struct, frozen=True, kw_only=True):
    format: int = REGISTRATION_FORMAT
    plan_digest: str
    """Over what the plan says."""
    plan_text: str
    """The plan's file, as it was."""
    basis: Basis

    @property
    def digest(self) -> str:
        """SHA-256 over everything above: what the owner publishes."""
        return hashlib.sha256(msgspec.json.encode(self, order="sorted")).hexdigest()


def analysis_digest() -> str:
    """SHA-256 over the source of whatever decides a verdict."""
    digest = hashlib.sha256()
    for path in sorted(path for name in _DECIDING for path in _sources(_PACKAGE / name)):
        digest.update(f"{path.relative_to(_PACKAGE).as_posix()}\0".encode() + path.read_bytes())
    return digest.hexdigest()


def data_digests(names: Collection[str]) -> dict[str, str]:
    """SHA-256 of the package's data files as they are now, by their paths in ``data``; empty for one that is gone."""
    found = {}
    for name in names:
        paths = [_PACKAGE / "data" / name, _PACKAGE / name]
        found[name] = next((sha256_of(path) for path in paths if path.is_file()), "")
    return found


def register(plan_path: Path, folder: Path, known: Known, basis: Basis) -> Registration:
    """Fix the plan. An earlier registration of the folder stays in its journal, superseded.

    Raises :class:`UserError`: the plan has faults, the same is registered, or a confirmation of the same plan began.
    """
    text = plan_text(plan_path)
    plan = parse_plan(text, known, where=str(plan_path))
    registration = Registration(plan_digest=plan_digest(plan), plan_text=text, basis=basis)
    store = Store(folder)

    def allowed(entries: Sequence[Entry]) -> None:
        if any(each.digest == registration.digest for _, each in _registrations(entries)[-1:]):
            raise UserError(f"{plan_path} is registered as it is ({registration.digest[:12]}); nothing has changed")
        for at, earlier in _registrations(entries):
            if earlier.plan_digest == registration.plan_digest and _confirmed(entries, at):
                raise UserError(
                    f"the confirmation of {plan_path} has begun (registration {earlier.digest[:12]}), and it is run "
                    "once; what is measured again is exploratory: `ekiden evaluate run`"
                )

    payload = {"registration": msgspec.to_builtins(registration), "digest": registration.digest}
    store.journal.append(Event.REGISTERED, payload, allowed=allowed)
    try:
        replace_file(folder / "registration.json", _file_of(registration))
    except OSError as error:
        raise UserError(f"cannot write {folder / 'registration.json'}: {error.strerror or error}") from error
    return registration


def registered(folder: Path) -> Registration | None:
    """The registration in force; None if there is none. Raises :class:`UserError` where it cannot be read."""
    entries, _ = _read(folder)
    found = _registrations(entries)
    return found[-1][1] if found else None


def superseded(folder: Path) -> list[str]:
    """For the report: earlier registrations, and what became of their confirmations."""
    entries, _ = _read(folder)
    told = []
    for at, registration in _registrations(entries)[:-1]:
        verdicts = [e.payload.get("verdict") for e in _under(entries, at) if e.event == Event.VERDICT]
        outcome = "its confirmation was never begun"
        if _confirmed(entries, at):
            outcome = f"its verdict was {verdicts[-1]}" if verdicts else "its confirmation began and gave no verdict"
        told.append(f"registration {registration.digest[:12]} of {entries[at].time} was superseded; {outcome}")
    return told


def begin_confirm(folder: Path, plan_path: Path, run_id: str, now: Basis) -> Registration:
    """Start the one confirmation, or resume it: an interrupted one goes on under the same ``run_id``.

    Raises :class:`UserError` that says what was changed since registration, or who has confirmed already.
    """
    entries, _ = _read(folder)
    if (registration := registered(folder)) is None:
        raise UserError(f"{plan_path} is not registered; run `ekiden evaluate register` first")
    store = Store(folder)
    at = _registrations(entries)[-1][0]
    _refuse_second(entries, at, run_id)
    started = _confirmed(entries, at)
    discarded = store.discard_leftovers(CONFIRM) if started else []
    if found := check(folder, plan_path, now):
        raise UserError(
            f"the confirmation of {plan_path} is refused, because since its registration: {'; '.join(found)}. Undo "
            "that, or register anew and confirm on data that no confirmation has seen"
        )

    def allowed(entries: Sequence[Entry]) -> None:
        at, registration = _registrations(entries)[-1]
        _refuse_second(entries, at, run_id)
        for earlier_at, earlier in _registrations(entries)[:-1]:
            if _confirmed(entries, earlier_at) and (shared := _shared(earlier.basis, registration.basis)):
                raise UserError(
                    f"the data of this confirmation ({shared}) served that of registration {earlier.digest[:12]}; what "
                    "is measured on them again is exploratory: `ekiden evaluate run`"
                )

    event = Event.CONFIRM_RESUMED if started else Event.CONFIRM_STARTED
    store.journal.append(event, {"run_id": run_id, "discarded": discarded}, allowed=allowed)
    return registration


def confirm_of(folder: Path) -> tuple[str, bool] | None:
    """The run id of the confirmation that has begun under the registration in force, and whether it is finished."""
    entries, _ = _read(folder)
    found = _registrations(entries)
    under = _under(entries, found[-1][0]) if found else []
    begun = [entry for entry in under if entry.event == Event.CONFIRM_STARTED]
    finished = any(entry.event == Event.CONFIRM_FINISHED for entry in under)
    return (str(begun[-1].payload.get("run_id")), finished) if begun else None


def check(folder: Path, plan_path: Path, now: Basis | None = None) -> list[str]:
    """What was changed since registration, in sentences; empty if nothing was.

    Without ``now`` the analysis and the data files are looked at as they are, and the lineage and the workloads are not
    compared.
    """
    entries, found = _read(folder)
    registrations = _registrations(entries)
    if not registrations:
        return [*found, "no registration can be read"]
    at, registration = registrations[-1]
    found += _plan_changes(registration, plan_path)
    found += _basis_changes(registration.basis, now)
    found += Store(folder).altered()
    found += _file_changes(folder, registration)
    ids = [
        str(e.payload.get("run_id"))
        for e in _under(entries, at)
        if e.event in (Event.CONFIRM_STARTED, Event.CONFIRM_RESUMED)
    ]
    finished = sum(entry.event == Event.CONFIRM_FINISHED for entry in _under(entries, at))
    if len(set(ids)) > 1 or finished > 1:
        found.append(f"the confirmation was run more than once ({max(len(set(ids)), finished)} times)")
    for earlier_at, earlier in registrations[:-1]:
        if ids and _confirmed(entries, earlier_at) and (shared := _shared(earlier.basis, registration.basis)):
            found.append(f"its data ({shared}) served the confirmation of registration {earlier.digest[:12]} before")
    return found


def _read(folder: Path) -> tuple[list[Entry], list[str]]:
    try:
        return Store(folder).journal.read()
    except OSError as error:
        raise UserError(f"the journal in {folder} cannot be read: {error.strerror or error}") from error


def _registrations(entries: Sequence[Entry]) -> list[tuple[int, Registration]]:
    """Each registration with its place in the journal. One that was made unreadable is left out; the chain tells."""
    found = []
    for at, entry in enumerate(entries):
        if entry.event == Event.REGISTERED:
            try:
                found.append((at, msgspec.convert(entry.payload.get("registration"), Registration)))
            except msgspec.ValidationError:
                continue
    return found


def _under(entries: Sequence[Entry], at: int) -> list[Entry]:
    """What came after the registration at a place, up to the next one."""
    later = entries[at + 1 :]
    ends = [number for number, entry in enumerate(later) if entry.event == Event.REGISTERED]
    return list(later[: ends[0]] if ends else later)


def _confirmed(entries: Sequence[Entry], at: int) -> bool:
    return any(entry.event == Event.CONFIRM_STARTED for entry in _under(entries, at))


def _refuse_second(entries: Sequence[Entry], at: int, run_id: str) -> None:
    again = "what is measured again is exploratory: `ekiden evaluate run`"
    for entry in _under(entries, at):
        if entry.event == Event.CONFIRM_FINISHED:
            raise UserError(f"the confirmation was finished at {entry.time}, and it is run once; {again}")
    for entry in _under(entries, at):
        if entry.event == Event.CONFIRM_STARTED and entry.payload.get("run_id") != run_id:
            raise UserError(f"the confirmation was begun by run {entry.payload.get('run_id')} at {entry.time}; {again}")


def _shared(one: Basis, other: Basis) -> str:
    """A data file or a workload that both stand on; empty if there is none."""
    files = {digest: name for name, digest in one.data.items()}
    blocks = {digest: name for name, digest in one.workloads.items()}
    names = [files[digest] for digest in other.data.values() if digest in files]
    names += [blocks[digest] for digest in other.workloads.values() if digest in blocks]
    return names[0] if names else ""


def _plan_changes(registration: Registration, plan_path: Path) -> list[str]:
    try:
        text = plan_text(plan_path)
        if text == registration.plan_text:
            return []
        now, was = parse_plan(text, Known()), parse_plan(registration.plan_text, Known())
    except PlanError as error:
        return [f"the plan was changed, and cannot be read any more ({error.faults[0]})"]
    differing = list(_differences("", msgspec.to_builtins(was), msgspec.to_builtins(now)))
    if not differing:
        return ["the plan's comments or layout were changed, and nothing that it says"]
    return [f"the plan was changed: {differing[0]}" + (f" (and {len(differing) - 1} more)" if differing[1:] else "")]


def _differences(where: str, was: object, now: object) -> Iterator[str]:
    if isinstance(was, Mapping) and isinstance(now, Mapping):
        for name in dict.fromkeys([*was, *now]):
            yield from _differences(f"{where}.{name}" if where else name, was.get(name), now.get(name))
    elif isinstance(was, list) and isinstance(now, list) and len(was) == len(now):
        for at, (before, after) in enumerate(zip(was, now, strict=True), 1):
            yield from _differences(f"{where}[{at}]", before, after)
    elif was != now:
        yield f"{where} was {was!r:.80} and is {now!r:.80}"


def _basis_changes(was: Basis, now: Basis | None) -> list[str]:
    data = data_digests(was.data) if now is None else now.data
    found = [f"the data file {name} was changed" for name in was.data if data.get(name) != was.data[name]]
    if (analysis_digest() if now is None else now.analysis) != was.analysis:
        found.append("the analysis (its source) was changed")
    if now is None:
        return found
    found += [f"the data file {name} is read in addition" for name in now.data if name not in was.data]
    for name in dict.fromkeys([*was.workloads, *now.workloads]):
        if was.workloads.get(name) != now.workloads.get(name):
            found.append(f"the confirmation's workload {name} comes out otherwise")
    for change in changes(_lineage(was.lineage), _lineage(now.lineage)):
        if change.section != "apart" and (change.section, change.name) not in _MAY_DIFFER:
            found.append(f"{change.section}.{change.name} was {change.before!s:.40} and is {change.after!s:.40}")
    return found


def _lineage(value: dict[str, Any]) -> Lineage:
    return lineage_of(value) if value else Lineage()


def _file_changes(folder: Path, registration: Registration) -> list[str]:
    try:
        same = (folder / "registration.json").read_bytes() == _file_of(registration)
    except OSError:
        return ["registration.json cannot be read"]
    return [] if same else ["registration.json was edited: it is not what the journal holds"]


def _file_of(registration: Registration) -> bytes:
    whole = {"digest": registration.digest, **msgspec.to_builtins(registration)}
    return msgspec.json.format(msgspec.json.encode(whole, order="sorted"), indent=2) + b"\n"


def _sources(path: Path) -> Iterator[Path]:
    yield from path.rglob("*.py") if path.is_dir() else [path]
