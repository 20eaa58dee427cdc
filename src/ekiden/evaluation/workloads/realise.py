"""A workload's prompts as token ids of one model.

Made prompts are random ids, drawn from the seed of the workload and the id of the request: all different, but where
requests share a beginning. A change of premise leaves them as they are. Texts go through the model's chat template as a
chat would; a model without one reads them as plain text.

A prompt that leaves no room in the context for its answer (and for the limit that its client states) loses tokens from
its middle, so that what it shares with others and the beginning of the assistant's turn stay.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from ekiden.errors import UserError
from ekiden.evaluation.workloads.offer import Offer, Workload
from ekiden.evaluation.workloads.synthetic import random_ids
from ekiden.models.chat_template import ChatTemplate
from ekiden.models.conversation import chat_token_ids
from ekiden.models.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Realised:
    """Token ids in the order of the offers. ``cut`` has the ids of the requests whose prompt was too long."""

    prompts: Sequence[tuple[int, ...]]
    cut: tuple[str, ...]


def realise(
    workload: Workload,
    tokenizer: Tokenizer | None = None,
    *,
    max_model_len: int,
    chat_template: ChatTemplate | None = None,
    vocab_size: int | None = None,
) -> Realised:
    """The prompts of a workload for one model.

    Args:
        tokenizer: needed for texts only.
        max_model_len: tokens of the context, prompt and answer together.
        chat_template: the model's; None for a model that has none.
        vocab_size: where there is no tokenizer to tell it.

    Raises:
        UserError: texts without a tokenizer, a template that refuses them, an answer that the context cannot hold.
    """
    size = tokenizer.vocab_size if tokenizer else vocab_size
    made: dict[str, tuple[int, ...]] = {}
    groups: dict[str, list[int]] = {}
    cut = []
    for offer in workload.offers:
        if offer.text is not None:
            ids = _text_ids(offer, tokenizer, chat_template)
        else:
            ids = _made_ids(workload, offer, made, groups, size)
        room = max_model_len - max(offer.output_tokens, offer.max_tokens or 0)
        if room < 1:
            raise UserError(
                f"request {offer.id} wants {max_model_len - room} tokens of answer, and the context holds "
                f"{max_model_len} in all; set max_output_tokens or max_stated_tokens, or lower length_scale"
            )
        if len(ids) > room:
            cut.append(offer.id)
        made[offer.id] = _fitted(ids, room)
    return Realised(prompts=tuple(made[offer.id] for offer in workload.offers), cut=tuple(cut))


def _text_ids(offer: Offer, tokenizer: Tokenizer | None, template: ChatTemplate | None) -> Sequence[int]:
    if tokenizer is None:
        raise UserError(f"request {offer.id} has a text, and there is no tokenizer; take a source with made prompts")
    text = offer.text or ""
    if template is None:
        whole = f"{offer.system}\n\n{text}" if offer.system else text
        return tokenizer.encode(whole, add_special_tokens=True)
    system = [{"role": "system", "content": offer.system}] if offer.system else []
    return chat_token_ids(tokenizer, template, [*system, {"role": "user", "content": text}])


def _made_ids(
    workload: Workload,
    offer: Offer,
    made: dict[str, tuple[int, ...]],
    groups: dict[str, list[int]],
    vocab_size: int | None,
) -> Sequence[int]:
    """Random ids behind the tokens that the request shares."""
    origin = "/".join(str(workload.made.get(name, "")) for name in ("source", "split", "seed"))
    shared: Sequence[int] = ()
    if offer.prefix_of:
        shared = made[offer.prefix_of][: offer.prefix_tokens]
    elif offer.prefix_group:
        beginning = groups.setdefault(offer.prefix_group, [])
        if len(beginning) < offer.prefix_tokens:
            # Drawn from the start each time: a longer beginning begins like a shorter one.
            source = random.Random(f"{origin}/{workload.made.get('block')}/group {offer.prefix_group}")
            beginning[:] = random_ids(offer.prefix_tokens, source, vocab_size=vocab_size)
        shared = beginning[: offer.prefix_tokens]
    own = random_ids(offer.prompt_tokens - len(shared), random.Random(f"{origin}/{offer.id}"), vocab_size=vocab_size)
    return [*shared, *own]


def _fitted(ids: Sequence[int], room: int) -> tuple[int, ...]:
    """At most ``room`` ids: the beginning and the end."""
    if len(ids) <= room:
        return tuple(ids)
    end = room // 2
    return (*ids[: room - end], *ids[len(ids) - end :])
