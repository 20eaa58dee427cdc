def fairness(plan, runs): return []
def fairness_charts(plan, runs): return []
