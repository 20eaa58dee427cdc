"""Weight formats, a module each: what a model's matrices become in its graph. ``table.py`` has them by name."""
