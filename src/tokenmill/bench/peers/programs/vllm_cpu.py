"""vLLM on the CPU, stepped by hand in this process, so that first tokens can be timed."""

# isort: off
import wire  # type: ignore[import-not-found]
from unpacked import plain_folder  # type: ignore[import-not-found]
# isort: on

import os
import time
from typing import Any

# Read when vllm is imported: one process, with as many threads as OMP_NUM_THREADS says, wherever they run.
os.environ.update(
    VLLM_ENABLE_V1_MULTIPROCESSING="0",
    VLLM_CPU_OMP_THREADS_BIND="nobind",
    VLLM_CPU_KVCACHE_SPACE="2",
    HF_HUB_OFFLINE="1",
)

import torch
import vllm  # type: ignore[import-not-found]


class Vllm:
    """vLLM's own engine loop; the prefix cache is off."""

    def load(self, model: str, threads: int, dtype: str, max_length: int, batch: int) -> dict[str, Any]:
        torch.set_num_threads(threads)
        self.engine = vllm.LLM(
            str(plain_folder(model)),
            dtype=dtype,
            max_model_len=max_length,
            max_num_seqs=batch,
            enable_prefix_caching=False,
            disable_log_stats=True,
        ).llm_engine
        return {"versions": {"vllm": vllm.__version__, "torch": torch.__version__}, "note": dtype}

    def run(self, prompts: list[list[int]], new: int) -> dict[str, Any]:
        params = vllm.SamplingParams(temperature=0.0, max_tokens=new, ignore_eos=True, detokenize=False)
        started_s = time.perf_counter()
        for number, prompt in enumerate(prompts):
            self.engine.add_request(str(number), {"prompt_token_ids": prompt}, params)
        tokens: dict[int, list[int]] = {}
        first_s, before = 0.0, 0
        while self.engine.has_unfinished_requests():
            for output in self.engine.step():
                tokens[int(output.request_id)] = list(output.outputs[0].token_ids)
            if not first_s and len(tokens) == len(prompts):
                first_s, before = time.perf_counter(), sum(map(len, tokens.values()))
        return {
            **wire.times(started_s, first_s, time.perf_counter()),
            "decode_tokens": new * len(prompts) - before,
            "tokens": [tokens[number] for number in range(len(prompts))],
        }


if __name__ == "__main__":
    wire.serve(Vllm())
