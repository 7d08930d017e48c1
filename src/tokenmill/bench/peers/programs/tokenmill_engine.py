"""tokenmill itself, measured as every other engine is: in a process of its own, with the same tokens.

Its prefix cache is off, so that every prompt is computed.
"""

# isort: off
import wire  # type: ignore[import-not-found]
# isort: on

from typing import Any

import torch

from tokenmill import __version__
from tokenmill.bench.points import Point
from tokenmill.bench.run import take_sample
from tokenmill.engine.load import load
from tokenmill.kernels.native_library import best_build
from tokenmill.measure.machine import instruction_sets
from tokenmill.speculate.speculation import DraftStats


class Tokenmill:
    """Prefill and decode are told apart as `tokenmill bench` does."""

    def load(self, model: str, threads: int, dtype: str, max_length: int, batch: int, **options: Any) -> dict[str, Any]:
        own = {"threads": threads, "dtype": dtype, "max_length": max_length, "max_sequences": batch}
        self.engine = engine = load(model, prefix_cache=False, **{**own, **options})
        config = engine.config
        kernels = f"kernels {best_build()}" if engine.program_name == "native" else instruction_sets()
        return {
            "versions": {"tokenmill": __version__, "torch": torch.__version__},
            "note": f"{config.dtype}, scheme {config.scheme}, program {engine.program_name}, {kernels}, "
            f"speculate {config.speculate}",
        }

    def run(self, prompts: list[list[int]], new: int) -> dict[str, Any]:
        point = Point(prompt=len(prompts[0]), new=new, batch=len(prompts))
        self.engine.core.speculation.stats = stats = DraftStats()
        sample = take_sample(self.engine, point, prompts)
        return {
            "prefill_s": sample.prefill_s,
            "decode_s": sample.decode_s,
            "total_s": sample.total_s,
            "decode_tokens": sample.decode_tokens,
            "prefill_tokens": sample.prefill_tokens,
            "drafted": stats.num_drafted,
            "accepted": stats.num_accepted,
            "tokens": [sample.tokens[at : at + new] for at in range(0, len(sample.tokens), new)],
        }


if __name__ == "__main__":
    wire.serve(Tokenmill())
