"""Hugging Face transformers: `generate` as it comes, with its default cache and attention."""

# isort: off
import wire  # type: ignore[import-not-found]
from unpacked import gguf_arguments  # type: ignore[import-not-found]
# isort: on

import time
from pathlib import Path
from typing import Any

import torch
import transformers


class Clock:
    """A streamer, called with the prompt and then with every step's tokens: it notes when."""

    def __init__(self) -> None:
        self.times_s: list[float] = []

    def put(self, tokens: torch.Tensor) -> None:
        self.times_s.append(time.perf_counter())

    def end(self) -> None:
        pass


class Transformers:
    """A GGUF file is dequantised by transformers itself."""

    def load(self, model: str, threads: int, dtype: str, max_length: int, batch: int) -> dict[str, Any]:
        torch.set_num_threads(threads)
        path, how = Path(model), {}
        if path.is_file():
            path, how = path.parent, gguf_arguments(path)
        kind = transformers.AutoModelForCausalLM
        self.model = kind.from_pretrained(path, dtype=getattr(torch, dtype), **how).eval()
        # The model's own may hold penalties, which would change the greedy text.
        self.model.generation_config = transformers.GenerationConfig()
        attention = self.model.config._attn_implementation
        return {
            "versions": {"transformers": transformers.__version__, "torch": torch.__version__},
            "note": f"{dtype}, attention {attention}, {torch.backends.cpu.get_cpu_capability()}",
        }

    @torch.inference_mode()
    def run(self, prompts: list[list[int]], new: int) -> dict[str, Any]:
        clock, ids = Clock(), torch.tensor(prompts)
        started_s = time.perf_counter()
        out = self.model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=new,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
            streamer=clock,
        )
        ended_s = time.perf_counter()
        tokens = out[:, ids.shape[1] :].tolist()
        return {**wire.times(started_s, clock.times_s[1], ended_s), "tokens": tokens}


if __name__ == "__main__":
    wire.serve(Transformers())
