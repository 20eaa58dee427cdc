"""Finds, checks and loads the draft model."""

from dataclasses import replace

from ekiden.backends.registry import Backend
from ekiden.config import Config, ConfigError
from ekiden.models.fetch import model_cache_dir
from ekiden.models.load import ModelDescription, describe
from ekiden.models.resolve import resolve
from ekiden.models.tokenizer import Tokenizer
from ekiden.state.runner import ModelRunner


def describe_draft_model(config: Config, target: ModelDescription) -> ModelDescription | None:
    """The draft model that the settings name. Raises :class:`ConfigError` when its tokens are not the target's."""
    name = config.engine.draft_model
    if name is None:
        return None
    description = describe(resolve(name, model_cache_dir(config.model.model_cache)))
    difference = _difference(target.tokenizer, description.tokenizer)
    if difference is not None:
        raise ConfigError(
            f"draft_model is {name!r}, whose tokenizer is not that of {target.files.name}: {difference}; give a "
            "smaller model of the same family"
        )
    return description


def load_draft_runner(backend: Backend, description: ModelDescription, config: Config) -> ModelRunner:
    """The draft model in memory of its own. Its bits decide no token, so nothing is asked of them."""
    return backend.load_runner(
        description,
        replace(
            config,
            model=replace(config.model, model=description.files.name, max_model_len=None),
            cache=replace(config.cache, kv_cache_size=config.engine.draft_kv_cache_size, swap_size="0"),
            engine=replace(config.engine, determinism="relaxed", speculation="none", draft_model=None),
        ),
    )


def _difference(target: Tokenizer, draft: Tokenizer) -> str | None:
    """How two tokenizers differ; None when each token is the same in both."""
    if target.vocab_size != draft.vocab_size:
        return f"it has {draft.vocab_size} tokens and not {target.vocab_size}"
    for token in range(target.vocab_size):
        here, there = target.token_bytes(token), draft.token_bytes(token)
        if here != there:
            return f"token {token} is {there!r} and not {here!r}"
    if target.special_ids != draft.special_ids:
        return "it has other control tokens"
    return None
