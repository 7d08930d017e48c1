"""The same tasks with lm-evaluation-harness' own model "hf" (transformers) and with tokenmill, in one process, in turn.

    python benchmarks/eval_tasks.py [--rounds 3] [--threads 2] [--hf-batch 8] [--size 1.0] [--model smollm2-135m]

Both have the same float32 weights: a file is converted once into a temporary folder. The data is Python's own
documentation (pydoc_data.topics). Three tasks: which of four texts goes on after a beginning, perplexity of whole
texts, and texts that are continued for 48 tokens. Prints the figures of both, the largest difference of any
log-probability, how many texts are equal, seconds and processor seconds by task, medians, and their ratio. Loading is
not counted.
"""

import argparse
import itertools
import json
import logging
import os
import statistics
import tempfile
import time
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

os.environ |= {"TQDM_DISABLE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HUB_OFFLINE": "1"}

import lm_eval
import torch
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager

from tokenmill.hub.names import locate
from tokenmill.hub.progress import Silent
from tokenmill.measure.harness.model import TokenmillLM
from tokenmill.weights.checkpoint import open_checkpoint
from tokenmill.weights.write.convert import convert

COMMON = "dataset_path: json\ndataset_kwargs: {{data_files: {{test: {file}}}}}\ntest_split: test\nnum_fewshot: 0\n"
TASKS = {
    "choice": COMMON
    + """task: choice
output_type: multiple_choice
doc_to_text: text
doc_to_choice: choices
doc_to_target: answer
metric_list: [{{metric: acc}}, {{metric: acc_norm}}]
""",
    "rolling": COMMON
    + """task: rolling
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: text
metric_list: [{{metric: word_perplexity}}, {{metric: bits_per_byte}}]
""",
    "writing": COMMON
    + """task: writing
output_type: generate_until
doc_to_text: text
doc_to_target: rest
generation_kwargs: {{until: ["\\n\\n"], max_gen_toks: 48, do_sample: false}}
metric_list: [{{metric: chrf}}]
""",
}


def documents(size: float) -> dict[str, list[dict[str, Any]]]:
    """The data of each task."""
    texts = [" ".join(text.split()) for _, text in sorted(topics.items()) if len(text) > 3000]
    choices = []
    for number, text in enumerate(itertools.islice(itertools.cycle(texts), int(32 * size))):
        start = 400 * (number // len(texts))
        words = text[start : start + 700].split(" ")
        ends = [" ".join(other[1500:1600].split(" ")[1:9]) for other in (*texts[number % 7 :], *texts)[:3]]
        ends.insert(number % 4, " ".join(words[-8:]))
        choices.append({"text": " ".join(words[:-8]), "choices": ends, "answer": number % 4})
    rolling = [{"text": text[: 1000 + 500 * (number % 5)]} for number, text in enumerate(texts[: int(12 * size)])]
    writing = [
        {"text": text[: 300 + 10 * number], "rest": text[300:500]}
        for number, text in enumerate(texts[: int(16 * size)])
    ]
    return {"choice": choices, "rolling": rolling, "writing": writing}


def evaluated(model: Any, name: str, manager: TaskManager) -> tuple[tuple[float, float], dict[str, float], list[Any]]:
    """Seconds and processor seconds, figures, and the answers in the order of the documents."""
    started, worked = time.perf_counter(), time.process_time()
    found = lm_eval.evaluate(lm=model, task_dict=manager.load([name]), log_samples=True, bootstrap_iters=0)
    seconds, work = time.perf_counter() - started, time.process_time() - worked
    figures = {key: value for key, value in found["results"][name].items() if isinstance(value, float)}
    samples = sorted(found["samples"][name], key=lambda sample: sample["doc_id"])
    return (seconds, work), figures, [answer for sample in samples for answer in sample["filtered_resps"]]


def difference(name: str, ours: list[Any], theirs: list[Any]) -> str:
    """The distance of the answers of two models."""
    if name == "writing":
        return f"{sum(one == other for one, other in zip(ours, theirs, strict=True))} of {len(ours)} texts equal"
    values = [
        (one[0], other[0]) if isinstance(one, tuple | list) else (one, other)
        for one, other in zip(ours, theirs, strict=True)
    ]
    flags = sum(one[1] != other[1] for one, other in zip(ours, theirs, strict=True) if isinstance(one, tuple | list))
    largest = max(abs(one - other) for one, other in values)
    return f"log-probabilities differ by {largest:.2g} at most, {flags} greedy flags differ"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--hf-batch", type=int, default=8)
    parser.add_argument("--size", type=float, default=1.0, help="times as many documents")
    parser.add_argument("--max-length", type=int, default=2048)
    parser.add_argument("--programs", default="native,eager")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for task, rows in documents(options.size).items():
            file = folder / f"{task}.jsonl"
            file.write_text("".join(json.dumps(row) + "\n" for row in rows))
            (folder / f"{task}.yaml").write_text(TASKS[task].format(file=file))
        weights = locate(options.model)
        if not weights.is_dir():
            weights = convert(open_checkpoint(weights), folder / "model", "float32", Silent())
        measure(folder, str(weights), options)


def measure(folder: Path, weights: str, options: argparse.Namespace) -> None:
    """Load all models, then let them take turns."""
    own = {"dtype": "float32", "threads": options.threads, "max_length": options.max_length}
    own |= {"packed_cache": False, "prefix_cache": False}  # every round has the same documents
    models: dict[str, Any] = {}
    for program in options.programs.split(","):
        models[program] = TokenmillLM(weights, program=program, **own)
    models["hf"] = HFLM(
        pretrained=weights,
        dtype="float32",
        device="cpu",
        batch_size=options.hf_batch,
        max_length=options.max_length,
    )
    torch.set_num_threads(options.threads)
    manager = TaskManager(include_path=str(folder), include_defaults=False)
    times: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for number in range(options.rounds):
        for task in TASKS:
            found = {}
            for name, model in models.items():
                seconds, *found[name] = evaluated(model, task, manager)
                times.setdefault((task, name), []).append(seconds)
            if number == 0:
                show(task, found)
    for number, kind in enumerate(("seconds", "processor seconds")):
        print(f"\n{kind}, median of {options.rounds}, {options.threads} threads", *models, "hf over each", sep=" | ")
        sums = dict.fromkeys(models, 0.0)
        for task in TASKS:
            medians = {name: statistics.median(pair[number] for pair in times[task, name]) for name in models}
            sums = {name: sums[name] + value for name, value in medians.items()}
            print_row(task, medians)
        print_row("all", sums)


def print_row(task: str, medians: dict[str, float]) -> None:
    """Seconds of each model, and how many times as long hf takes."""
    ratios = (f"{medians['hf'] / value:.2f}" for value in medians.values())
    print(task, *(f"{value:.2f}" for value in medians.values()), " ".join(ratios), sep=" | ", flush=True)


def show(task: str, found: dict[str, Any]) -> None:
    """The figures of each model, and how far its answers are from those of hf."""
    for name, (figures, answers) in found.items():
        shown = ", ".join(f"{key.partition(',')[0]} {value:.6f}" for key, value in figures.items())
        far = max(
            abs(value / found["hf"][0][key] - 1) if found["hf"][0][key] else abs(value)
            for key, value in figures.items()
        )
        print(
            f"{task:8} {name:8} {shown}; figures within {far:.2g} of hf; {difference(task, answers, found['hf'][1])}",
            flush=True,
        )


if __name__ == "__main__":
    main()
