"""Models that think before they answer: how they mark it, whether a prompt has begun it, and what clients ask of it.

A model is known to think by its chat template, which has the marks or a switch, or by marks in its vocabulary;
``--reasoning-parser`` says it outright. Whether the answer begins with reasoning is then seen from the end of the
rendered prompt: some templates open the reasoning themselves, and write an empty one when it is switched off.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from ekiden.models.chat_template import ChatTemplate
from ekiden.models.thinking import KNOWN_MARKS, MISTRAL, THINK, Marks
from ekiden.models.tokenizer import Tokenizer
from ekiden.state.sampling_params import Thinking

SWITCHES: Final = ("enable_thinking", "thinking")
"""The variables by which templates let reasoning be switched on and off."""
EFFORT: Final = "reasoning_effort"
THOUGHT: Final = "reasoning_content"
"""The key of an earlier message's reasoning, for templates."""


_PARSERS: Final = {"think": THINK, "qwen3": THINK, "deepseek_r1": THINK, "mistral": MISTRAL, "none": None}


def marks_of(parser: str, template: ChatTemplate | None, tokenizer: Tokenizer) -> Marks | None:
    """The marks of a model's reasoning; None for a model that does not think. ``parser`` is the setting."""
    if parser != "auto":
        return _PARSERS[parser]
    source = "" if template is None else template.source + template.tool_source
    for marks in KNOWN_MARKS:
        if any(mark in source or mark in tokenizer.added.values() for mark in marks):
            return marks
    return THINK if template is not None and not template.variables.isdisjoint(SWITCHES) else None


def thinking_after(marks: Marks | None, prompt: str, beginning: str) -> tuple[str, Thinking | None]:
    """The reasoning that may come first in what is generated after a prompt, None when none can come.

    ``beginning`` is the start of the answer that the client wrote; ``prompt`` ends before it. The text before it is
    given back with it: reasoning that the template has opened is closed before an answer that has begun.
    """
    if marks is None:
        return "", None
    written = prompt.rstrip()
    begun, closed = written.endswith(marks.opening), written.endswith(marks.closing)
    if beginning.strip():
        opened, ended = beginning.rfind(marks.opening), beginning.rfind(marks.closing)
        if opened < 0 and ended < 0:
            return (f"\n{marks.closing}\n\n" if begun else ""), None
        begun, closed = opened > ended, ended > opened
    return "", None if closed else Thinking(opening=marks.opening, closing=marks.closing, begun=begun)


class Wish(NamedTuple):
    """What a client asks of the model's reasoning: to think or not; None leaves it to the model.

    ``effort`` is a word for how much. ``param`` and ``effort_param`` are the fields that ask, empty when none does.
    """

    think: bool | None = None
    effort: str | None = None
    param: str = ""
    effort_param: str = ""

    def variables(self, template: ChatTemplate) -> dict[str, Any]:
        """The variables of the template that carry the wish; none where it has no such variable."""
        values: Mapping[str, Any] = dict.fromkeys(SWITCHES, self.think) | {EFFORT: self.effort}
        return {name: value for name, value in values.items() if value is not None and name in template.variables}

    def neglected(self, marks: Marks | None, template: ChatTemplate) -> list[str]:
        """The fields whose wish neither the template takes nor the model fulfils as it is."""
        heard = not template.variables.isdisjoint(SWITCHES) and self.think is not None
        weighed = EFFORT in template.variables and self.effort is not None
        names = []
        if self.param and not heard and (self.think is not False) is not (marks is not None):
            names.append(self.param)
        if self.effort_param and not weighed and self.effort_param != self.param:
            names.append(self.effort_param)
        return [name for name in names if not (weighed and name == self.effort_param)]


NO_WISH: Final = Wish()


def wish_of_effort(effort: str | None, param: str = EFFORT) -> Wish:
    """The wish that OpenAI's words for effort carry: "none" switches reasoning off."""
    return NO_WISH if effort is None else Wish(effort != "none", effort, param, param)
