"""Rows of a Parquet file answered by several engines: Ray Data divides them, and how it does changes no byte of a row.

python examples/ray_data.py rows.parquet answers --prompt 'Translate: {text}' --actors 2

Each actor has an engine of its own, on this machine or another one of the cluster. The rows are those that
`tokenmill batch rows.parquet --prompt 'Translate: {text}'` writes. Needs `pip install 'ray[data]' 'tokenmill[batch]'`.
"""

import argparse

import pyarrow as pa
import ray

import tokenmill
from tokenmill.batches.batch import answer_rows
from tokenmill.batches.formats.parquet import schema_of
from tokenmill.batches.template import TableTask, Template


class Answer:
    """One actor."""

    def __init__(self, model: str, prompt: str, sampling: tokenmill.SamplingParams, threads: int) -> None:
        self.engine = tokenmill.load(model, max_sequences=16, threads=threads)
        self.task = TableTask(lambda _: sampling, Template(prompt))

    def __call__(self, table: pa.Table) -> pa.Table:
        """The rows with their answers."""
        columns = self.task.columns(dict(zip(table.schema.names, table.schema.types, strict=True)))
        return pa.Table.from_pylist(
            answer_rows(self.engine.core, self.task, table.to_pylist()), schema=schema_of(columns)
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("source")
    parser.add_argument("target", help="a folder, into which Parquet files are written")
    parser.add_argument("--prompt", required=True)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--actors", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1, help="of each actor")
    asked = parser.parse_args()
    sampling = tokenmill.SamplingParams(max_new_tokens=asked.max_new_tokens, temperature=asked.temperature)
    given = {"model": asked.model, "prompt": asked.prompt, "sampling": sampling, "threads": asked.threads}
    ray.data.DataContext.get_current().execution_options.preserve_order = True
    rows = ray.data.read_parquet(asked.source)
    rows.map_batches(
        Answer,
        fn_constructor_kwargs=given,
        batch_size=256,
        batch_format="pyarrow",
        compute=ray.data.ActorPoolStrategy(size=asked.actors),
        num_cpus=asked.threads / 2,  # so that tasks which read and write find a processor beside all actors
    ).write_parquet(asked.target)
