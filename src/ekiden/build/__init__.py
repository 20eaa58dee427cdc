"""From a configuration to an engine, whatever stands behind it: the only room that picks a backend.

- :mod:`~ekiden.build.config_sources`: where each setting's value comes from;
- :mod:`~ekiden.build.model`: a model found, described and loaded (:class:`~ekiden.engine.parts.EngineParts`);
- :mod:`~ekiden.build.provenance` and :mod:`~ekiden.build.installation`: the lineage of what was loaded;
- :mod:`~ekiden.build.core`: an engine core over the parts, recorded or not;
- :mod:`~ekiden.build.engines`: the engines that drive such a core: ``LLM``, ``AsyncEngine`` and the engine's process;
- :mod:`~ekiden.build.early`: the engine's process started before its work is known.
"""
