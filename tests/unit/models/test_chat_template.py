"""Chat templates: rendered as transformers does, one form for null, absent and empty content, no way out of the box."""

from datetime import datetime

import pytest

from ekiden.models.chat_template import ChatTemplate, ChatTemplateError

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.content %}{{ message.content }}{% endif %}"
    "{% for call in message.tool_calls or [] %}CALL {{ call.function.name }}({{ call.function.arguments | tojson }})"
    "{% endfor %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def user(content: object) -> list[dict[str, object]]:
    return [{"role": "user", "content": content}]


def test_generation_prompt_is_optional():
    template = ChatTemplate(CHATML)
    assert template.render(user("hi")) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert template.render(user("hi"), add_generation_prompt=False) == "<|im_start|>user\nhi<|im_end|>\n"


def test_blocks_are_trimmed_as_in_transformers():
    source = "{% for m in messages %}\n    {% if true %}\n{{ m.content }}\n    {% endif %}\n{% endfor %}\n"
    assert ChatTemplate(source).render(user("x")) == "x\n"


def test_tokens_tools_and_variables_reach_the_template():
    source = (
        "{{ bos_token }}|{{ eos_token }}|{{ tools | tojson }}|{{ enable_thinking }}|{{ tools[0].x | tojson(indent=1) }}"
    )
    rendered = ChatTemplate(source, bos_token="<s>", eos_token="</s>").render(
        user("x"), tools=[{"x": {"é": "<&>"}}], variables={"enable_thinking": False}
    )
    assert rendered == '<s>|</s>|[{"x": {"é": "<&>"}}]|False|{\n "é": "<&>"\n}'


def test_the_template_for_tools_is_taken_when_there_are_some():
    template = ChatTemplate("plain", tool_source="with tools")
    assert template.render(user("x")) == "plain"
    assert template.render(user("x"), tools=[]) == "plain"
    assert template.render(user("x"), tools=[{}]) == "with tools"


def test_loop_controls_generation_blocks_and_the_clock():
    source = (
        "{% for m in messages %}{% if m.role == 'tool' %}{% continue %}{% endif %}"
        "{% generation %}{{ m.content }}{% endgeneration %}{% break %}{% endfor %}{{ strftime_now('%Y-%m') }}"
    )
    template = ChatTemplate(source, now=lambda: datetime(2031, 5, 6))  # noqa: DTZ001 (the template's local time)
    assert template.render([{"role": "tool", "content": "t"}, *user("a"), *user("b")]) == "a2031-05"


class TestContent:
    """PB-34: null, absent and empty are one thing, and the word None never gets into a prompt."""

    CALL = ({"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}},)

    def conversation(self, **assistant: object) -> list[dict[str, object]]:
        return [
            {"role": "user", "content": "w?"},
            {"role": "assistant", "tool_calls": list(self.CALL), **assistant},
            {"role": "tool", "tool_call_id": "c1", "content": "ok"},
        ]

    @pytest.mark.parametrize("source", [CHATML, "{% for m in messages %}[{{ m['content'] }}]{% endfor %}"])
    def test_null_absent_and_empty_render_the_same(self, source):
        template = ChatTemplate(source)
        ways: tuple[dict[str, object], ...] = ({}, {"content": None}, {"content": ""})
        rendered = {template.render(self.conversation(**extra)) for extra in ways}
        assert len(rendered) == 1
        assert "None" not in rendered.pop()

    def test_no_calls_in_three_ways(self):
        template = ChatTemplate(CHATML)
        ways: tuple[dict[str, object], ...] = ({}, {"tool_calls": None}, {"tool_calls": []})
        rendered = {template.render([{"role": "assistant", "content": "x", **extra}]) for extra in ways}
        assert len(rendered) == 1

    @pytest.mark.parametrize(
        ("arguments", "shown"),
        [
            ('{"a": 1}', '{"a": 1}'),
            ("{}", "{}"),
            ("", "{}"),
            (None, "{}"),
            ("null", "{}"),
            ("not json", '"not json"'),
            ("[1]", '"[1]"'),
            ({"a": 2}, '{"a": 2}'),
            ("[" * 100_000, '"' + "[" * 100_000 + '"'),
        ],
    )
    def test_arguments(self, arguments, shown):
        call = {"type": "function", "function": {"name": "f", "arguments": arguments}}
        rendered = ChatTemplate(CHATML).render([{"role": "assistant", "content": None, "tool_calls": [call]}])
        assert f"CALL f({shown})<|im_end|>" in rendered

    def test_text_parts_are_joined(self):
        parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
        assert "user\na\nb<|im_end|>" in ChatTemplate(CHATML).render(user(parts))
        assert "user\n<|im_end|>" in ChatTemplate(CHATML).render(user([]))

    def test_other_parts_are_refused(self):
        with pytest.raises(ChatTemplateError, match="takes text only"):
            ChatTemplate(CHATML).render(user([{"type": "image_url", "image_url": {"url": "x"}}]))

    def test_messages_are_left_as_they_were(self):
        messages = self.conversation(content=None)
        ChatTemplate(CHATML).render(messages, protect=str.upper)
        assert messages == self.conversation(content=None)


def test_protect_changes_all_that_the_client_wrote_and_nothing_else():
    template = ChatTemplate("<|{{ messages[0].role }}|>{{ messages[0].content }}{{ tools[0].description }}<|end|>")
    rendered = template.render(
        user("<|x|>"), tools=[{"description": "<|y|>"}], protect=lambda text: text.replace("<|", "<.|")
    )
    assert rendered == "<|user|><.|x|><.|y|><|end|>"


def test_protect_reaches_the_names_that_the_client_chose():
    template = ChatTemplate("{{ tools[0] | tojson }}")
    rendered = template.render(user("x"), tools=[{"a<|b|>": 1}], protect=lambda text: text.replace("<|", "<.|"))
    assert "<|b|>" not in rendered
    assert "a<.|b|>" in rendered


class TestErrors:
    def test_not_a_template(self):
        for source in ("{% if %}", "{{ x ", "{% nonsense %}", "{% for a in b %}"):
            with pytest.raises(ChatTemplateError, match="cannot be read") as caught:
                ChatTemplate(source)
            assert "\n" not in str(caught.value)

    def test_what_the_template_says(self):
        template = ChatTemplate("{{ raise_exception('roles must\nalternate') }}")
        with pytest.raises(ChatTemplateError, match="refuses the conversation: roles must alternate"):
            template.render(user("x"))

    @pytest.mark.parametrize(
        "source",
        [
            "{{ messages[0].nothing.more }}",
            "{{ messages + 1 }}",
            "{{ 1 / 0 }}",
            "{{ messages[0]['content'].no_such() }}",
            "{% macro a() %}{{ a() }}{% endmacro %}{{ a() }}",
            "{{ range(10 ** 9) }}",
        ],
    )
    def test_any_failure_is_one_line(self, source):
        with pytest.raises(ChatTemplateError) as caught:
            ChatTemplate(source).render(user("x"))
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize(
        "source",
        [
            "{{ messages.__class__.__mro__ }}",
            "{{ ''.__class__.__base__.__subclasses__() }}",
            "{{ raise_exception.__globals__ }}",
            "{{ messages.append(1) }}",
            "{{ messages[0].update({}) }}",
            "{{ cycler.__init__.__globals__.os.system('true') }}",
            "{% include '/etc/passwd' %}",
        ],
    )
    def test_the_sandbox_holds(self, source):
        try:
            rendered = ChatTemplate(source).render(user("x"))
        except ChatTemplateError:
            return
        assert rendered == ""
