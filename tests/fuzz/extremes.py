"""Whole request bodies with any two fields of a door at their extremes.

The fields come from the server's own OpenAPI document, which is made of the models that read the bodies: a new door or
a new field is attacked without a change here. Everything is drawn from one seed. The pairs of a door's fields are
walked through in a drawn order, so that in time each field meets each other one.
"""

import itertools
import json
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Final

Schema = dict[str, Any]

RAW: Final = "\ue000"
"""Begins a text that stands in the body as it is, without quotes: JSON that Python's encoder would not write."""
_RAW_TEXT: Final = re.compile(rf'"{json.dumps(RAW)[1:-1]}((?:[^"\\]|\\.)*)"'.replace("\\u", "\\\\u"))

NUMBERS: Final[tuple[Any, ...]] = (
    0, -0.0, 1, -1, 0.5, 5e-324, -5e-324, 1e-310, 1.2e-38, 1e-45, 1e-40, 1e-300, 1e-7, 1e38, 3.5e38, 1e300,
    2**31 - 1, 2**31, -(2**31) - 1, 2**32, 2**53, 2**53 + 1, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 2**64 - 1,
    2**64, 2**64 + 1, 10**30, 0.1 + 0.2, 1.0, 1e15 + 0.5,
    *(RAW + text for text in ("1e400", "-1e400", "NaN", "Infinity", "-Infinity", "1" + "0" * 400, "-0", "1E+2",
                              "1" + "0" * 5000, "0." + "0" * 400 + "1", "1e-5000")),
)  # fmt: skip
TEXTS: Final[tuple[str, ...]] = (
    "", " ", "hi", "\x00", "\ud800", "a\udfffb", "\U0001f336\ufe0f", "日本語" * 40, "a" * 5000, "\u202eabc", "\\", '"',
    "<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "\ufdd0\ufdd1", "%s%n{0}{{", "null", "0", "-1",
    "\r\nx: y", "../../etc/passwd", "1e400", "$ref", "\n" * 200, "é" * 1025, "\ufffd", "a\u0300" * 300, "\x7f\x80",
)  # fmt: skip
PATTERNS: Final[tuple[str, ...]] = (
    "[a-z]+", "(a|b)*c{3}", "a{0,5000}", "((a*)*)*", "\\p{L}+", "(?=a)b", "[", "", "\\d{1,999999}", "(?i)x", "^$", ".*",
    "(" * 60 + "a" + ")" * 60, "[^\\x00-\\x{10FFFF}]", "\\ud800", "a|" * 500 + "b",
)  # fmt: skip
GRAMMARS: Final[tuple[str, ...]] = (
    'start: "a"', "start: start", 'start: "a" start | "b"', "start: /[a-z]+/", "root ::= [a-z]+", 'root ::= "x" root',
    "start:", "%json {}", 'start: %json {"type": "integer"}', "start: " + "(" * 70 + '"a"' + ")" * 70, "nonsense",
)  # fmt: skip
SCHEMAS: Final[tuple[Any, ...]] = (
    {}, True, {"type": "object"}, {"type": "integer", "minimum": 2**53, "maximum": 2**53 + 2}, {"const": 1e300},
    {"enum": []}, {"enum": [None, 0, -0.0, "", 5e-324]}, {"$ref": "#"},
    {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}},
    {"type": "string", "minLength": 2**31, "maxLength": 1}, {"type": "string", "pattern": "^(a*)*$"},
    {"type": "array", "minItems": 1000, "items": {"type": "null"}}, {"type": "number", "multipleOf": 5e-324},
    {"type": "object", "properties": {"": {"type": "boolean"}, "é": {}, "x" * 300: {"type": "null"}}, "required": [""]},
    {"allOf": [{"type": "string"}, {"type": "integer"}]}, {"not": {}}, {"type": ["string", "null"], "format": "date"},
    {"type": "object", "additionalProperties": {"type": "array", "items": {"$ref": "#"}}},
)  # fmt: skip
MOST_BYTES: Final = 12 * 2**20
"""Over the server's limit, and little enough that it reads all of it before it closes the connection."""
LIMITS: Final = ("max_tokens", "max_completion_tokens", "max_output_tokens")
DEADLINE: Final = "x-request-deadline-ms"
USUAL_DEADLINE: Final = "4000"
"""Ends an answer that is long because its limit is at an extreme."""


class Bodies:
    """Draws bodies for every route of ``document`` that takes one, but those of administrators."""

    def __init__(self, document: Schema, *, model: str, vocab_size: int, seed: int) -> None:
        self._rng = random.Random(seed)
        self._components: dict[str, Schema] = document["components"]["schemas"]
        self._model = model
        self._vocab_size = vocab_size
        self._tokens = itertools.cycle(range(vocab_size))
        self.fields = {
            path: self._properties(operation["post"]["requestBody"]["content"]["application/json"]["schema"])
            for path, operation in document["paths"].items()
            if "requestBody" in operation.get("post", {}) and not path.startswith("/admin")
        }
        """The fields of each door with their schemas."""
        self._pairs = {path: self._cycle(path) for path in self.fields}
        self.pairs_sent: Counter[str] = Counter()
        self.tokens_sent = 0
        self._special: dict[str, Callable[[], Any]] = {
            "messages": self._messages, "prompt": self._prompt, "input": self._prompt, "tokens": self._token_ids,
            "stop_token_ids": self._token_ids, "logit_bias": self._logit_bias, "tools": self._tools,
            "guided_regex": self._one(PATTERNS), "regex": self._one(PATTERNS), "pattern": self._one(PATTERNS),
            "guided_grammar": self._one(GRAMMARS), "grammar": self._one(GRAMMARS), "ebnf": self._one(GRAMMARS),
            "guided_json": self._one(SCHEMAS), "json_schema": self._json_schema, "schema": self._one(SCHEMAS),
            "format": self._one([*SCHEMAS, "json", {"type": "json_schema", "name": "a", "schema": {"type": "object"}}]),
            "input_schema": self._one(SCHEMAS), "parameters": self._one(SCHEMAS),
        }  # fmt: skip

    @property
    def num_pairs(self) -> int:
        """The pairs of fields that there are."""
        return sum(len(fields) * (len(fields) - 1) // 2 for fields in self.fields.values())

    def draw(self) -> tuple[str, bytes, dict[str, str]]:
        """A path, a body and headers."""
        while len((drawn := self._draw())[1]) > MOST_BYTES:
            pass
        return drawn

    def _draw(self) -> tuple[str, bytes, dict[str, str]]:
        path = self._rng.choices(list(self.fields), [len(fields) for fields in self.fields.values()])[0]
        first, second = next(self._pairs[path])
        self.pairs_sent[f"{path} {first} {second}"] += 1
        body = self._usual(path)
        for name in (first, second, *(self._any_field(path) for _ in range(self._rng.choice((0, 0, 0, 1, 3))))):
            body[name] = self._extreme(name, self.fields[path][name])
        if self._rng.random() < 0.05:
            body[self._rng.choice(TEXTS)] = self._anything()
        headers = {DEADLINE: USUAL_DEADLINE}
        if self._rng.random() < 0.05:
            headers[DEADLINE] = self._rng.choice(("0", "-1", "1e400", "nan", "9" * 400, "", "1", "0x10", "\u0661"))
            headers[DEADLINE] = headers[DEADLINE].encode("utf-8").decode("latin-1")
        return path, encoded(body), headers

    def _cycle(self, path: str) -> Iterator[tuple[str, str]]:
        while True:
            pairs = list(itertools.combinations(self.fields[path], 2))
            self._rng.shuffle(pairs)
            yield from pairs

    def _any_field(self, path: str) -> str:
        return self._rng.choice(list(self.fields[path]))

    def _usual(self, path: str) -> Schema:
        """A body that is answered, and shortly."""
        fields = self.fields[path]
        usual: Schema = {
            "model": self._model, "messages": [{"role": "user", "content": "hi"}], "prompt": "hi", "input": "hi",
            "tokens": [1, 2], "query": "hi", "queries": "hi", "documents": ["a", "b"], "text_1": "a", "text_2": "b",
        }  # fmt: skip
        if path == "/v1/responses":  # its ``prompt`` is something else
            usual = {name: usual[name] for name in ("model", "input")}
        elif "messages" in fields:
            del usual["prompt"]
        if "query" not in fields and "queries" not in fields:
            usual.pop("documents", None)
        body = {name: value for name, value in usual.items() if name in fields}
        for name in LIMITS:
            if name in fields and not set(LIMITS) & body.keys():
                body[name] = self._rng.choice((1, 3, 8))
        if "stream" in fields:
            body["stream"] = self._rng.random() < 0.4
        return body

    # --- values

    def _extreme(self, name: str, schema: Schema, depth: int = 0) -> Any:
        if name == "model":
            return self._model if self._rng.random() < 0.9 else self._anything()
        if name in ("n", "best_of") and self._rng.random() < 0.8:
            return self._rng.choice((1, 2, 3, 0, -1, 2**64))
        if self._rng.random() < 0.12:
            return self._anything()
        if name in self._special and self._rng.random() < 0.7:
            return self._special[name]()
        return self._valid(self._resolved(schema), depth)

    def _valid(self, schema: Schema, depth: int) -> Any:
        """A value that the schema allows, at one of its edges, or just beyond it."""
        rng = self._rng
        if options := schema.get("anyOf") or schema.get("oneOf"):
            return self._valid(self._resolved(rng.choice(options)), depth)
        if "const" in schema:
            return schema["const"]
        if "enum" in schema:
            return rng.choice(schema["enum"])
        match schema.get("type"):
            case "number" | "integer" as kind:
                return self._number(schema, whole=kind == "integer")
            case "string":
                least, most = schema.get("minLength", 0), schema.get("maxLength")
                edges = [] if most is None else ["é" * min(most + extra, 10_000) for extra in (0, 1)]
                return rng.choice([*TEXTS, *edges, "x" * least])
            case "boolean":
                return rng.random() < 0.5
            case "null":
                return None
            case "array":
                most = min(schema.get("maxItems", 8), 5000)
                count = rng.choice((0, 1, 2, 3, *((most, most + 1) if rng.random() < 0.1 else ())))
                inner = self._resolved(schema.get("items", {}))
                if count > 8:  # all the same, as a long list is what counts
                    return [self._valid(inner, depth + 1) if depth < 4 else None] * count
                return [self._extreme("", inner, depth + 1) if depth < 4 else None for _ in range(count)]
            case "object":
                return self._object(schema, depth)
            case _:
                return self._anything()

    def _object(self, schema: Schema, depth: int) -> Schema:
        rng, made = self._rng, {}
        if depth < 4:
            for name, inner in schema.get("properties", {}).items():
                if name in schema.get("required", ()) or rng.random() < 0.3:
                    made[name] = self._extreme(name, inner, depth + 1)
        if schema.get("additionalProperties") is not False and rng.random() < 0.3:
            made[rng.choice(TEXTS)] = self._anything()
        return made

    def _number(self, schema: Schema, *, whole: bool) -> Any:
        bounds = [
            schema[key] for key in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum") if key in schema
        ]
        step = 1 if whole else 1e-9
        edges = [edge for bound in bounds for edge in (bound, bound, bound + step, bound - step)]
        within = [number for number in NUMBERS if not isinstance(number, str) and isinstance(number, int) >= whole]
        return self._rng.choice([*edges, *edges, *within, *NUMBERS] if edges else [*within, *NUMBERS])

    def _anything(self) -> Any:
        rng = self._rng
        kinds: tuple[Callable[[], Any], ...] = (
            lambda: rng.choice(NUMBERS), lambda: rng.choice(TEXTS), lambda: rng.choice((None, True, False, [], {})),
            lambda: [rng.choice(NUMBERS), rng.choice(TEXTS)], lambda: {rng.choice(TEXTS): rng.choice(NUMBERS)},
            self._deep, lambda: [rng.choice((0, "a", None))] * rng.choice((10, 3000)),
            lambda: {str(number): number for number in range(rng.choice((10, 1500)))},
        )  # fmt: skip
        return rng.choice(kinds)()

    def _deep(self) -> str:
        depth = self._rng.choice((10, 100, 190, 1000, 20_000))
        opening, closing = self._rng.choice((("[", "]"), ("{!a!:", "}")))
        return RAW + (opening * depth + "1" + closing * depth).replace("!", "\x01")

    def _one(self, values: Any) -> Callable[[], Any]:
        return lambda: self._rng.choice(values)

    def _token_ids(self, count: int | None = None) -> list[Any]:
        """Some token ids: the next ones in turn, so that in time all are sent; sometimes with one that is none."""
        rng = self._rng
        count = rng.choice((1, 3, 40, 200, 1024)) if count is None else count
        self.tokens_sent += count
        found: list[Any] = list(itertools.islice(self._tokens, count))
        if rng.random() < 0.15:
            found.insert(rng.randrange(count + 1), rng.choice((-1, self._vocab_size, 2**63, 2**64, 1.5, None, "1")))
        return found

    def _prompt(self) -> Any:
        rng = self._rng
        return rng.choice(
            (self._token_ids, lambda: rng.choice(TEXTS), lambda: [rng.choice(TEXTS) for _ in range(3)],
             lambda: [self._token_ids(20), self._token_ids(2)], self._messages)
        )()  # fmt: skip

    def _logit_bias(self) -> Schema:
        values = (100, -100, 5e-324, -0.0, 100.0000001, 1e300, RAW + "NaN")
        tokens = self._token_ids(self._rng.choice((1, 1, 5, 1024)))
        return {str(token): self._rng.choice(values[:4] if len(tokens) > 1 else values) for token in tokens}

    def _messages(self) -> list[Any]:
        rng, made = self._rng, []
        for _ in range(rng.choice((1, 1, 2, 3, 6))):
            content: Any = rng.choice(
                (rng.choice(TEXTS), [{"type": "text", "text": rng.choice(TEXTS)}], None, [], [{"type": "image_url"}])
            )
            message = {"role": rng.choice(("user", "user", "user", "assistant", "system", "tool")), "content": content}
            if rng.random() < 0.2:
                arguments = rng.choice(('{"a": 1}', "{", '{"a": "\\ud800"}', "", "[" * 500, "1e400", '{"a": 1e400}'))
                function = {"name": rng.choice(("f", "", "x" * 65)), "arguments": arguments}
                message["tool_calls"] = [{"id": rng.choice(TEXTS), "type": "function", "function": function}]
            if rng.random() < 0.1:
                message[rng.choice(("name", "tool_call_id", "refusal", "reasoning_content", "x"))] = self._anything()
            made.append(message)
        return made

    def _tools(self) -> list[Any]:
        rng, made = self._rng, []
        for at in range(rng.choice((1, 1, 2, 128, 129) if rng.random() < 0.2 else (1, 2))):
            name, schema = rng.choice((f"f{at}", f"f{at}", "", "é")), rng.choice(SCHEMAS)
            made.append(
                rng.choice(
                    (
                        {"type": "function", "function": {"name": name, "parameters": schema, "strict": True}},
                        {"type": "function", "name": name, "parameters": schema},
                        {"name": name, "input_schema": schema},
                        {"type": rng.choice(("web_search", "custom", ""))},
                    )
                )
            )
        return made

    def _json_schema(self) -> Any:
        schema = self._rng.choice(SCHEMAS)
        return self._rng.choice((schema, {"name": "a", "schema": schema, "strict": True}))

    # --- schemas

    def _resolved(self, schema: Schema) -> Schema:
        while "$ref" in schema:
            schema = self._components[schema["$ref"].rpartition("/")[2]]
        return schema

    def _properties(self, schema: Schema) -> dict[str, Schema]:
        found: dict[str, Schema] = self._resolved(schema)["properties"]
        return found


def encoded(body: Schema) -> bytes:
    """The body as JSON, with the raw texts in it as they are."""
    text = json.dumps(body)
    return _RAW_TEXT.sub(lambda found: found[1].replace("\\u0001", '"'), text).encode()
