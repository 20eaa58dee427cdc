"""Makes the reference for tokens and perplexity: what SmolLM2-135M, the default model, answers in float32 PyTorch.

    refvenv/bin/pip install --group reference gguf
    refvenv/bin/python tests/reference/make_smollm2_reference.py SmolLM2-135M-Instruct.Q4_1.gguf

Nothing of Ekiden's reading, tokenising or computing is used: the weights come through the ``gguf`` package's own
reader, the tokens through transformers' conversion of the file, the numbers from ``LlamaForCausalLM``.

Written to ``smollm2_reference.json``: for 8 chat prompts the prompt's ids and 48 greedy ids (end tokens do not end
them), with the smallest gap between the best and the second-best logit; once with the dequantised weights (``fp32``)
and once with these rounded to float16 (``fp16``). Perplexity: exp of the mean negative log-likelihood of every token
but the first of the first 512 tokens of 16 passages, all passages together.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGUFReader
from gguf.quants import dequantize
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

HERE = Path(__file__).parent
DATA = HERE.parents[1] / "src" / "ekiden" / "data"
NUM_PROMPTS, NUM_TOKENS = 8, 48
NUM_PASSAGES, PASSAGE_TOKENS = 16, 512
PARTS = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}
SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"


def load(path: Path) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=8192,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 100000.0},
        tie_word_embeddings=True,
    )
    state: dict[str, torch.Tensor] = {}
    for tensor in GGUFReader(path).tensors:
        values = np.asarray(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        name = tensor.name
        if name == "token_embd.weight":
            target = "model.embed_tokens.weight"
        elif name == "output_norm.weight":
            target = "model.norm.weight"
        else:
            _, layer, part, kind = name.split(".")
            target = f"model.layers.{layer}.{PARTS[part]}.{kind}"
            heads = {"attn_q": 9, "attn_k": 3}.get(part)
            if heads:  # llama.cpp interleaves the rotary halves
                values = values.reshape(heads, 32, 2, 576).swapaxes(1, 2).reshape(values.shape)
        state[target] = torch.from_numpy(np.ascontiguousarray(values))
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model = LlamaForCausalLM(config).eval()
    model.load_state_dict(state)
    return model


def greedy(model: LlamaForCausalLM, prompt: list[int]) -> tuple[list[int], float]:
    ids = torch.tensor([prompt])
    cache: Any = None
    produced: list[int] = []
    smallest = float("inf")
    for _ in range(NUM_TOKENS):
        output = model(ids, past_key_values=cache, use_cache=True)
        cache = output.past_key_values
        best, second = torch.topk(output.logits[0, -1], 2).values.tolist()
        smallest = min(smallest, best - second)
        produced.append(int(output.logits[0, -1].argmax()))
        ids = torch.tensor([[produced[-1]]])
    return produced, smallest


def perplexity(model: LlamaForCausalLM, passages: list[list[int]]) -> float:
    total, count = 0.0, 0
    for ids in passages:
        logits = model(torch.tensor([ids])).logits[0, :-1].double()
        losses = torch.nn.functional.cross_entropy(logits, torch.tensor(ids[1:]), reduction="sum")
        total, count = total + float(losses), count + len(ids) - 1
    return float(np.exp(total / count))


@torch.no_grad()
def main() -> None:
    path = Path(sys.argv[1]).resolve()
    tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    prompts = [json.loads(line) for line in (DATA / "prompts/prompts_en.jsonl").read_text().splitlines()][:NUM_PROMPTS]
    texts = [json.loads(line)["text"] for line in (DATA / "text/perplexity_en.jsonl").read_text().splitlines()]
    passages = [tokenizer(text).input_ids[:PASSAGE_TOKENS] for text in texts[:NUM_PASSAGES]]
    rows = []
    for prompt in prompts:
        text = f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\n{prompt['turns'][0]}<|im_end|>\n"
        rows.append({"id": prompt["id"], "prompt": tokenizer(text + "<|im_start|>assistant\n").input_ids})
    model = load(path)
    result: dict[str, Any] = {"greedy": rows, "passages": passages, "perplexity": {}}
    for weights in ("fp32", "fp16"):
        if weights == "fp16":
            for parameter in model.parameters():
                parameter.data = parameter.data.half().float()
        for row in rows:
            row[weights], row[f"{weights}_smallest_gap"] = greedy(model, row["prompt"])
        result["perplexity"][weights] = perplexity(model, passages)
        print(weights, result["perplexity"][weights], [row[f"{weights}_smallest_gap"] for row in rows])
    (HERE / "smollm2_reference.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
