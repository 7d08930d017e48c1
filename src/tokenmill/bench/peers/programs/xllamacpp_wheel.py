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

    def load(
        self, model: str, threads: int, dtype: str, max_length: int, batch: int, flash_attention: bool
    ) -> dict[str, Any]:
        if not model.endswith(".gguf"):
            raise ValueError("llama.cpp reads .gguf files only")
        params = xllamacpp.CommonParams()
        params.model.path = model
        params.n_ctx, params.n_parallel = batch * -(-max_length // 256) * 256, batch
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
        params.cache_prompt, params.warmup = False, False
        params.cache_ram_mib = 0
        kinds = xllamacpp.llama_flash_attn_type
        params.flash_attn_type = (
            kinds.LLAMA_FLASH_ATTN_TYPE_ENABLED if flash_attention else kinds.LLAMA_FLASH_ATTN_TYPE_DISABLED
        )
        self.server = xllamacpp.Server(params)
        return {"versions": {"xllamacpp": xllamacpp.__version__}, "note": "the file's quantisation, AVX2 only"}

    def run(self, prompts: list[list[int]], new: int) -> dict[str, Any]:
        started_s = time.perf_counter()
        with ThreadPoolExecutor(len(prompts)) as pool:
            times_s = list(pool.map(lambda prompt: self._complete(prompt, new), prompts))
        first_s = max(times[0] for times in times_s)
        return {
            **wire.times(started_s, first_s, time.perf_counter()),
            "decode_tokens": sum(time_s > first_s for times in times_s for time_s in times),
            "tokens": None,  # the wheel hands out text alone
        }

    def _complete(self, prompt: list[int], new: int) -> list[float]:
        """Generate, and return when each token came."""
        times_s: list[float] = []
        last: dict[str, Any] = {}

        def collect(piece: Any) -> None:
            times_s.append(time.perf_counter())
            last.update(piece)

        request = {
            "prompt": prompt,
            "n_predict": new,
            "temperature": 0.0,
            "samplers": ["top_k"],
            "top_k": 1,
            "ignore_eos": True,
            "cache_prompt": False,
            "stream": True,
        }
        self.server.handle_completions(request, collect)
        done = last.get("usage", {}).get("completion_tokens")
        if done != new:
            raise RuntimeError(f"{done} tokens instead of {new}: {str(last)[:100]}")
        return times_s[:-1]  # the last piece is empty and says that it is done


if __name__ == "__main__":
    wire.serve(Xllamacpp())
