def worst_cases(plan, runs, ledger_dir): return []
