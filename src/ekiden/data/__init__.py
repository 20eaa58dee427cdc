"""Real prompts and real text that the demo, the benchmarks and the tests use, and the demo's page; see LICENSES.md for
the sources."""
