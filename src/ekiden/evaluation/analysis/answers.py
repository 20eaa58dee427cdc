def answers(outcome): return []
def limits(outcome): return {"en": [], "ja": []}
