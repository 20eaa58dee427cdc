"""Makes what guesses the next tokens: the lookup, and a draft model where one is given."""

from ekiden.config import Config
from ekiden.engine.draft_model import DraftModel, LookupFirst
from ekiden.engine.parts import EngineParts
from ekiden.policies.lookup import Lookup
from ekiden.state.drafting import Drafter


def make_drafter(parts: EngineParts, config: Config) -> Drafter | None:
    """None where nothing is to be guessed, or the backend takes no drafts."""
    kind = config.engine.speculation
    if kind == "none" or not parts.runner.info.max_drafts:
        return None
    if parts.draft_runner is None:
        return Lookup()
    model = DraftModel(parts.draft_runner, vocab_size=parts.runner.info.vocab_size)
    return model if kind == "draft-model" else LookupFirst(Lookup(), model)
