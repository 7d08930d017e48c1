"""Prints, as JSON, what lm-eval makes of one task through a server and through the library: give URL and MODEL."""

import json
import sys
import tempfile
from pathlib import Path

import lm_eval
from lm_eval.tasks import TaskManager

from tokenmill import load
from tokenmill.measure.harness.model import TokenmillLM

TASK = """
task: words
dataset_path: json
dataset_kwargs: {{data_files: {{test: {file}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: question
doc_to_choice: choices
doc_to_target: answer
metric_list: [{{metric: acc}}, {{metric: acc_norm}}]
"""


def documents() -> list[dict]:
    """Questions of a few words, each with four answers of one to three."""
    words = [f"w{number * 37 % 200}" for number in range(1000)]
    takes = iter(words)

    def text(count: int) -> str:
        return " ".join(next(takes) for _ in range(count))

    return [
        {"question": text(2 + number % 7), "choices": [text(1 + each % 3) for each in range(4)], "answer": number % 4}
        for number in range(40)
    ]


def measured(model: object, folder: Path) -> dict:
    """Scores of the task, and the log-probability of every answer."""
    tasks = TaskManager(include_path=str(folder), include_defaults=False)
    found = lm_eval.simple_evaluate(model, tasks=["words"], task_manager=tasks, log_samples=True, bootstrap_iters=0)
    samples = sorted(found["samples"]["words"], key=lambda sample: sample["doc_id"])
    metrics = {name: value for name, value in found["results"]["words"].items() if name.startswith("acc")}
    return {"metrics": metrics, "answers": [each["filtered_resps"] for each in samples]}


def main(url: str, path: str) -> None:
    """Measure twice."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        file = folder / "words.json"
        file.write_text("\n".join(map(json.dumps, documents())))
        (folder / "words.yaml").write_text(TASK.format(file=file))
        settings = {"model": "words", "base_url": f"{url}/v1/completions", "num_concurrent": 4, "max_length": 96}
        server = lm_eval.api.registry.get_model("local-completions")(**settings, tokenizer_backend="remote")
        with load(path, dtype="float32", max_length=96) as engine:
            found = {"server": measured(server, folder), "library": measured(TokenmillLM(engine), folder)}
    print(json.dumps(found))  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
