"""lm-evaluation-harness, its command: answers ranked by their log-probability, and answers generated, over small tasks.

It has no tokenizer of its own here: it uses the server's.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from report import MODEL, URL, run

HOME = Path(os.environ["HOME"])
QUESTIONS = [
    {"question": "The sky is", "choices": ["blue", "seventeen"], "answer": 0},
    {"question": "The capital of France is", "choices": ["tomorrow", "Paris"], "answer": 1},
    {"question": "Snow is white and grass is", "choices": ["green", "Tuesday"], "answer": 0},
]
RANKED = {
    "output_type": "multiple_choice",
    "doc_to_text": "{{question}}",
    "doc_to_choice": "choices",
    "doc_to_target": "answer",
    "metric_list": [{"metric": "acc"}],
}
GENERATED = {
    "output_type": "generate_until",
    "doc_to_text": "{{question}}",
    "doc_to_target": "{{choices[answer]}}",
    "generation_kwargs": {"until": ["."], "max_gen_toks": 8, "temperature": 0},
    "metric_list": [{"metric": "exact_match"}],
}


def evaluate(kind: str, path: str, task: dict[str, Any], *more: str) -> dict[str, Any]:
    """The results of one small task over one kind of model of the harness."""
    folder = HOME / kind / task["output_type"]
    folder.mkdir(parents=True)
    (folder / "data.jsonl").write_text("\n".join(map(json.dumps, QUESTIONS)), encoding="utf-8")
    data = {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(folder / "data.jsonl")}}}
    told = {"task": "small", "test_split": "test", **data, **task}
    (folder / "small.yaml").write_text(json.dumps(told), encoding="utf-8")  # JSON is YAML
    arguments = f"model={MODEL},base_url={URL}{path},num_concurrent=4,max_retries=1"
    command = [
        sys.executable, "-m", "lm_eval", "run", "--model", kind, "--model_args", arguments, "--tasks", "small",
        "--include_path", str(folder), "--output_path", str(folder / "results.json"), "--log_samples", *more,
    ]  # fmt: skip
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    (written,) = folder.glob("results*.json")
    results: dict[str, Any] = json.loads(written.read_text(encoding="utf-8"))["results"]["small"]
    assert results["sample_len"] == len(QUESTIONS)
    (samples,) = folder.glob("samples*.jsonl")
    answers = [json.loads(line)["resps"] for line in samples.read_text(encoding="utf-8").splitlines()]
    return {**results, "answers": answers}


def log_probabilities() -> None:
    assert evaluate("local-completions", "/v1/completions", RANKED)["acc,none"] == 1.0


def completions() -> None:
    assert all(
        answer[0][0].strip() for answer in evaluate("local-completions", "/v1/completions", GENERATED)["answers"]
    )


def chat() -> None:
    path = "/v1/chat/completions"
    found = evaluate("local-chat-completions", path, GENERATED, "--apply_chat_template")
    assert all(answer[0][0].strip() for answer in found["answers"])


if __name__ == "__main__":
    run("lm_eval", {"log-probabilities": log_probabilities, "completions": completions, "chat": chat})
