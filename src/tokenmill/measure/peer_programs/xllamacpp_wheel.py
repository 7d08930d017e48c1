"""llama.cpp as the xllamacpp wheel has it: its server, without HTTP. The wheel's CPU kernels use AVX2 at most."""

# isort: off
import wire  # type: ignore[import-not-found]
# isort: on

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import xllamacpp  # type: ignore[import-not-found]


class Xllamacpp:
    """One request per prompt, at the same time where there are several."""

    def load(self, model: str, threads: int, dtype: str, max_length: int, batch: int) -> dict[str, Any]:
        if not model.endswith(".gguf"):
            raise ValueError("llama.cpp reads .gguf files only")
        params = xllamacpp.CommonParams()
        params.model.path = model
        params.n_ctx, params.n_parallel = batch * -(-max_length // 256) * 256, batch
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
        params.cache_prompt, params.warmup = False, False
        params.cache_ram_mib = 0
        self.server = xllamacpp.Server(params)
        return {"versions": {"xllamacpp": xllamacpp.__version__}, "note": "the file's quantisation, AVX2 only"}

    def run(self, prompts: list[list[int]], new: int) -> dict[str, Any]:
        started_s = time.perf_counter()
        with ThreadPoolExecutor(len(prompts)) as pool:
            done = list(pool.map(lambda prompt: self._complete(prompt, new), prompts))
        first_s = max(first_s for first_s, _ in done)
        return {**wire.times(started_s, first_s, time.perf_counter()), "tokens": [tokens for _, tokens in done]}

    def _complete(self, prompt: list[int], new: int) -> tuple[float, list[int]]:
        """When the first token came, and all of them."""
        first_s, tokens = 0.0, []

        def collect(pieces: Any) -> None:
            nonlocal first_s
            first_s = first_s or time.perf_counter()
            for piece in pieces if isinstance(pieces, list) else [pieces]:
                tokens.extend(piece.get("tokens", []))

        request = {
            "prompt": prompt,
            "n_predict": new,
            "temperature": 0.0,
            "samplers": ["top_k"],
            "top_k": 1,
            "ignore_eos": True,
            "cache_prompt": False,
            "return_tokens": True,
            "stream": True,
        }
        self.server.handle_completions(request, collect)
        return first_s, tokens


if __name__ == "__main__":
    wire.serve(Xllamacpp())
