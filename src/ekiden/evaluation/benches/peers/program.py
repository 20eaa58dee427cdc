"""A peer in its own environment, asked over its standard input and output: one JSON object a line, one answer each.

It is run by the peer's interpreter, where no Ekiden is installed, so it imports nothing of ours::

    python program.py vllm <<< '{"model": "...", "rows": 64, "context": 1024, "threads": 2, ...}'

The first line is the settings, and its answer says what was loaded. Then come ``{"prompts": ..., "tokens": n}``,
answered by greedy ``tokens`` of exactly that length, and ``{"passages": ...}``, answered by ``losses``: the summed
negative log-likelihoods of each passage's tokens but the first. What libraries print goes to standard error.
"""

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

Tokens = list[list[int]]


class VLLM:
    """vLLM's offline engine, with its own defaults but for the room: rows, context, memory of keys and values."""

    def __init__(self, settings: dict[str, Any]) -> None:
        import vllm

        self._vllm = vllm
        self._llm = vllm.LLM(
            model=settings["model"], max_num_seqs=settings["rows"], max_model_len=settings["context"], seed=0
        )
        model = self._llm.llm_engine.vllm_config.model_config
        self.about = {"version": vllm.__version__, "dtype": str(model.dtype), "quantization": str(model.quantization)}

    def generate(self, prompts: Tokens, tokens: int) -> Tokens:
        exact = {"max_tokens": tokens, "min_tokens": tokens, "ignore_eos": True}
        return [list(output.outputs[0].token_ids) for output in self._run(prompts, **exact)]

    def losses(self, passages: Tokens) -> list[float]:
        outputs = self._run(passages, max_tokens=1, prompt_logprobs=0)
        return [
            -sum(found[token].logprob for found, token in zip(output.prompt_logprobs[1:], passage[1:], strict=True))
            for output, passage in zip(outputs, passages, strict=True)
        ]

    def _run(self, prompts: Tokens, **sampling: Any) -> Any:
        wanted = self._vllm.SamplingParams(temperature=0.0, detokenize=False, **sampling)
        return self._llm.generate([{"prompt_token_ids": ids} for ids in prompts], wanted, use_tqdm=False)


class LlamaCpp:
    """llama.cpp's library: prompts in full batches, then one token of every sequence in each call."""

    def __init__(self, settings: dict[str, Any]) -> None:
        import llama_cpp
        import numpy

        self._lib, self._numpy = llama_cpp, numpy
        llama_cpp.llama_backend_init()
        path = settings["model"].encode()
        self._model = llama_cpp.llama_model_load_from_file(path, llama_cpp.llama_model_default_params())
        if not self._model:
            raise RuntimeError(f"llama.cpp cannot load {settings['model']}")
        wanted = llama_cpp.llama_context_default_params()
        wanted.n_ctx = settings["rows"] * settings["context"]
        wanted.n_seq_max = settings["rows"]
        wanted.n_threads = wanted.n_threads_batch = settings["threads"]
        self._context = llama_cpp.llama_init_from_model(self._model, wanted)
        if not self._context:
            raise RuntimeError("llama.cpp cannot make a context of that size")
        self._size, self._rows = int(wanted.n_batch), int(settings["rows"])
        self._batch = llama_cpp.llama_batch_init(self._size, 0, 1)
        self._vocabulary = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self._model))
        self.about = {"version": llama_cpp.__version__, "system": llama_cpp.llama_print_system_info().decode()}

    def generate(self, prompts: Tokens, tokens: int) -> Tokens:
        groups = [prompts[start : start + self._rows] for start in range(0, len(prompts), self._rows)]
        return [answer for group in groups for answer in self._together(group, tokens)]

    def _together(self, prompts: Tokens, tokens: int) -> Tokens:
        self._lib.llama_memory_clear(self._lib.llama_get_memory(self._context), True)
        answers: Tokens = [[] for _ in prompts]
        feed = [
            (token, position, row, position + 1 == len(prompt))
            for row, prompt in enumerate(prompts)
            for position, token in enumerate(prompt)
        ]
        for count in range(tokens):
            for row, _, _, logits in self._compute(feed):
                answers[row].append(int(logits.argmax()))
            feed = [
                (answer[-1], len(prompt) + count, row, True)
                for row, (prompt, answer) in enumerate(zip(prompts, answers, strict=True))
            ]
        return answers

    def losses(self, passages: Tokens) -> list[float]:
        numpy = self._numpy
        found = []
        for passage in passages:
            self._lib.llama_memory_clear(self._lib.llama_get_memory(self._context), True)
            total = 0.0
            for _, position, _, logits in self._compute([(token, at, 0, True) for at, token in enumerate(passage)]):
                if position + 1 < len(passage):
                    wide = logits.astype(numpy.float64)
                    top = wide.max()
                    total += float(top + numpy.log(numpy.exp(wide - top).sum()) - wide[passage[position + 1]])
            found.append(total)
        return found

    def _compute(self, feed: list[tuple[int, int, int, bool]]) -> Iterator[tuple[int, int, int, Any]]:
        """Row, position, token and logits of every token of ``feed`` (token, position, row, wanted) that is wanted."""
        batch = self._batch
        for start in range(0, len(feed), self._size):
            piece = feed[start : start + self._size]
            batch.n_tokens = len(piece)
            for index, (token, position, row, wanted) in enumerate(piece):
                batch.token[index], batch.pos[index], batch.n_seq_id[index] = token, position, 1
                batch.seq_id[index][0], batch.logits[index] = row, wanted
            if status := self._lib.llama_decode(self._context, batch):
                raise RuntimeError(f"llama_decode gave {status}")
            for index, (token, position, row, wanted) in enumerate(piece):
                if wanted:
                    pointer = self._lib.llama_get_logits_ith(self._context, index)
                    yield row, position, token, self._numpy.ctypeslib.as_array(pointer, (self._vocabulary,))


PEERS: dict[str, Callable[[dict[str, Any]], Any]] = {"vllm": VLLM, "llamacpp": LlamaCpp}


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(value: dict[str, Any]) -> None:
        answers.write(json.dumps(value) + "\n")
        answers.flush()

    peer = None
    with contextlib.suppress(KeyboardInterrupt):
        for line in sys.stdin:
            asked = json.loads(line)
            try:
                if peer is None:
                    peer = PEERS[sys.argv[1]](asked)
                    answer({"about": peer.about})
                elif "prompts" in asked:
                    answer({"tokens": peer.generate(asked["prompts"], asked["tokens"])})
                else:
                    answer({"losses": peer.losses(asked["passages"])})
            except Exception as error:  # noqa: BLE001 - whatever it is, the bench tells it
                answer({"error": f"{type(error).__name__}: {error}"})


if __name__ == "__main__":
    main()
