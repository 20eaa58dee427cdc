"""The doors: chat, completions, responses and messages. Each reads its own protocol straight into one neutral call
(:mod:`ekiden.api.call`) and writes the answer in its own shape; what lies between is shared (``door.py``)."""
