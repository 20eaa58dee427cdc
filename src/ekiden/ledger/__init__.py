"""Writes the evidence: what every stage decided, stored as it happens. :mod:`ekiden.evidence` reads it.

- `records.py`: the rows that are stored, and the codes in them; `blobs.py`: what lies in a row's blobs.
- `details.py`: makes the blobs of a request and of its end: digests and lengths, and texts where they are kept.
- `recorder.py`: from an engine's turn to rows, with `scheduling.py` for what the stages decided and `numbering.py` for
  the numbers of requests; `store.py`: rows on disk; `retention.py`: how long runs are kept.

One run of an engine is one SQLite file. A turn has one row; what changes from turn to turn is written when it changes.
"""
