"""The page: its files for the browser (``page/``), and what they ask for, made of ledgers and published statistics."""
