"""Hugging Face transformers at its fastest on a CPU: static cache, decoding compiled by inductor, weights frozen."""

# isort: off
from transformers_generate import Transformers  # type: ignore[import-not-found]
import wire  # type: ignore[import-not-found]
# isort: on

from typing import Any

import torch
import transformers


class Compiled(Transformers):  # type: ignore[misc]
    """The same calls; the first of a length compiles."""

    def load(self, model: str, threads: int, dtype: str, max_length: int, batch: int) -> dict[str, Any]:
        told: dict[str, Any] = super().load(model, threads, dtype, max_length, batch)
        torch._inductor.config.freezing = True
        # What transformers 5.23 marks as static is frozen too, the cache's own length among it: texts would end in an
        # index out of bounds. The mark only matters for CUDA graphs.
        torch._dynamo.mark_static_address = lambda *_, **__: None
        config = self.model.generation_config
        config.cache_implementation = "static"
        config.compile_config = transformers.CompileConfig(fullgraph=False, dynamic=False, mode="default")
        config.compile_config._compile_all_devices = True  # not only on CUDA
        return {**told, "note": f"{told['note']}, static cache, compiled, frozen"}


if __name__ == "__main__":
    wire.serve(Compiled())
