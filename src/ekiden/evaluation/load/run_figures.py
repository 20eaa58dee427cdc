"""One run as a flat object of figures, for a command that shows a single run; reports have figures of their own."""

from ekiden.evaluation.plan.model import Objectives
from ekiden.evaluation.results import ArmRun
from ekiden.measure.figures import Figures, stream_figures


def run_figures(run: ArmRun, objectives: Objectives) -> Figures:
    """Counts, rates and latencies with the names of ``bench --json``, and how many answers were good."""
    records = [result.record for result in run.results]
    good = sum(record.meets(objectives.ttft, objectives.tpot) for record in records)
    steps = run.steps
    return stream_figures(records, duration=run.seconds) | {
        "good": good,
        "slo_attainment": good / len(records) if records else None,
        "goodput_per_second": good / run.arrival_seconds,
        "slot_utilisation": steps.useful_slot_steps / steps.slot_steps if steps and steps.slot_steps else None,
        "budget_share": steps.computed_tokens / steps.budget_tokens if steps and steps.budget_tokens else None,
        "kv_share": steps.used_block_steps / steps.block_steps if steps and steps.block_steps else None,
        "host_share": 1 - steps.model_seconds / steps.seconds if steps and steps.seconds else None,
        "steps": steps.steps if steps else None,
        "preemptions": steps.preemptions if steps else None,
        "cpu_seconds": run.cpu_seconds,
        "joules": run.joules,
        "loop": run.loop,
        "void": run.void,
        "run_id": run.run_id,
        "lineage": {
            "workload": run.workload,
            "workload_digest": run.workload_digest,
            "slo_ttft": objectives.ttft,
            "slo_tpot": objectives.tpot,
            "arrival_seconds": run.arrival_seconds,
        },
    }
