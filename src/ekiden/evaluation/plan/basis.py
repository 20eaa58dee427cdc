"""What a plan's confirmation stands on, found out now: its workloads and their data, the lineage, the analysis."""

from typing import Any

from ekiden.evaluation.plan.model import Plan
from ekiden.evaluation.plan.registration import Basis, analysis_digest
from ekiden.evaluation.workloads.sources import make


def basis_of(plan: Plan, lineage: dict[str, Any]) -> Basis:
    """Makes every block of the confirmation. Raises :class:`UserError` for a workload that cannot be made."""
    data: dict[str, str] = {}
    workloads: dict[str, str] = {}
    for spec in plan.workloads:
        for block in range(spec.blocks or plan.confirm.blocks):
            made = make(spec, split="confirm", block=block, seed=plan.confirm.seed)
            workloads[f"{spec.name}/{block}"] = made.digest
            data |= made.sources
    return Basis(lineage=lineage, data=data, workloads=workloads, analysis=analysis_digest())
