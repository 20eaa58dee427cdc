"""The evidence: what every stage decided, stored as it happens, read back to explain a request or to replay a run.

- `records.py`: what is stored, as plain rows; `recorder.py`: from an engine's turn to rows; `store.py`: rows on disk.
- `reader.py`, `life.py`, `explain.py`: one request backwards (why) and forwards (its life).
- `replay.py`: recorded requests, outcomes and times for :mod:`ekiden.evidence.decision_replay`.

One run of an engine is one SQLite file. A turn has one row; what changes from turn to turn is written when it changes.
"""
