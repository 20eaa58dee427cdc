def arm_figures(plan, runs): return []
