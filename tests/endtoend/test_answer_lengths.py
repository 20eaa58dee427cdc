"""On the real model, answers have the offered lengths and the scheduler sees the limits that clients state."""

from pathlib import Path

from ekiden.config import Config, LedgerConfig, SchedulerConfig
from ekiden.engine.parts import EngineParts
from ekiden.evaluation.load.engine_subject import EngineSubject
from ekiden.evaluation.plan.model import Objectives
from ekiden.evaluation.workloads.offer import Kind, Offer, Workload
from ekiden.evidence.runs import open_run

LENGTHS = (1, 2, 9, 14)


def test_limits_unlike_the_truth_change_no_length(
    parts: EngineParts, chat_prompts: list[list[int]], tmp_path: Path
) -> None:
    """Each length with the truth for its limit, with a higher limit and with none: the answers are one another's
    beginnings, up to the end that is forced."""
    limits = {"true": lambda length: length, "higher": lambda length: length + 77, "none": lambda length: None}
    offers = tuple(
        Offer(id=f"{name} {length}", at=0.0, output_tokens=length, max_tokens=limit(length))
        for name, limit in limits.items()
        for length in LENGTHS
    )
    workload = Workload(name="lengths", kind=Kind.NORMAL, seconds=1.0, offers=offers, made={}, sources={})
    subject = EngineSubject(
        parts,
        Config(scheduler=SchedulerConfig(max_num_seqs=12), ledger=LedgerConfig(ledger_dir=str(tmp_path))),
        objectives=Objectives(ttft=60.0, tpot=60.0),
        prompts=lambda served: chat_prompts[: len(LENGTHS)] * len(limits),
        ledger=True,
    )
    run = subject.serve(workload)
    assert [result.record.failure for result in run.results] == [None] * len(offers)
    tokens = {result.id: result.token_ids or () for result in run.results}
    for length in LENGTHS:
        true, higher, none = (tokens[f"{name} {length}"] for name in limits)
        assert len(true) == len(higher) == len(none) == length
        assert higher == none
        if not parts.eos_token_ids.intersection(true):
            assert higher[:-1] == true[:-1]
        assert higher[-1] in parts.eos_token_ids
    assert run.run_id is not None
    reader = open_run(tmp_path, run.run_id)
    stated = {row.request_id: row.max_tokens for row in reader.all_requests()}
    reader.close()
    room = min(parts.card.max_model_len, parts.card.num_blocks * parts.card.block_size)
    for length, prompt in zip(LENGTHS, chat_prompts, strict=False):
        assert stated[f"true {length}"] == length
        assert stated[f"higher {length}"] == length + 77
        assert stated[f"none {length}"] == room - len(prompt)
