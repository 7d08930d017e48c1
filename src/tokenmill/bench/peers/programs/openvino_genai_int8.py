"""OpenVINO GenAI: the model is converted to int8 weights by optimum-intel the first time, and kept."""

# isort: off
import wire  # type: ignore[import-not-found]
from unpacked import kept_folder, plain_folder  # type: ignore[import-not-found]
# isort: on

import time
from pathlib import Path
from typing import Any

import numpy as np
import openvino  # type: ignore[import-not-found]
import openvino_genai  # type: ignore[import-not-found]

CACHE_GB = 2


class OpenVino:
    """OpenVINO's continuous-batching pipeline, all prompts submitted at once."""

    def load(self, model: str, threads: int, dtype: str, max_length: int, batch: int) -> dict[str, Any]:
        plain = plain_folder(model)
        folder = kept_folder(plain, "openvino", lambda folder: convert(plain, folder))
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.enable_prefix_caching = False  # else a prompt costs nothing the second time
        scheduler.max_num_seqs, scheduler.cache_size = batch, CACHE_GB
        how = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"}
        self.pipeline = openvino_genai.ContinuousBatchingPipeline(str(folder), scheduler, "CPU", how)
        self.started = 0  # requests so far: each needs a number of its own
        return {
            "versions": {"openvino-genai": openvino_genai.__version__},
            "note": f"int8 weights, {' '.join(openvino.Core().get_property('CPU', 'OPTIMIZATION_CAPABILITIES'))}",
        }

    def run(self, prompts: list[list[int]], new: int) -> dict[str, Any]:
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample = new, True, False
        tokens: list[list[int]] = [[] for _ in prompts]
        started_s, first_s, before = time.perf_counter(), 0.0, 0
        handles = [self._submit(prompt, config) for prompt in prompts]
        while self.pipeline.has_non_finished_requests():
            self.pipeline.step()
            for handle, row in zip(handles, tokens, strict=True):
                while handle.can_read():
                    row += [int(token) for output in handle.read().values() for token in output.generated_ids]
            if not first_s and all(tokens):
                first_s, before = time.perf_counter(), sum(map(len, tokens))
        return {
            **wire.times(started_s, first_s, time.perf_counter()),
            "decode_tokens": new * len(prompts) - before,
            "tokens": tokens,
        }

    def _submit(self, prompt: list[int], config: Any) -> Any:
        self.started += 1
        return self.pipeline.add_request(self.started, openvino.Tensor(np.array([prompt], dtype=np.int64)), config)


def convert(source: Path, folder: Path) -> None:
    """Convert weights, tokenizer and detokenizer of a plain folder to OpenVINO's form."""
    # Only who converts needs these, and they take seconds to import.
    import transformers  # noqa: PLC0415
    from openvino_tokenizers import convert_tokenizer  # type: ignore[import-not-found]  # noqa: PLC0415
    from optimum.intel import OVModelForCausalLM  # type: ignore[import-not-found]  # noqa: PLC0415

    small = OVModelForCausalLM.from_pretrained(source, export=True, load_in_8bit=True, compile=False)
    small.save_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(source)
    tokenizer.save_pretrained(folder)
    both = convert_tokenizer(tokenizer, with_detokenizer=True)
    for part, file in zip(both, ("openvino_tokenizer.xml", "openvino_detokenizer.xml"), strict=True):
        openvino.save_model(part, folder / file)


if __name__ == "__main__":
    wire.serve(OpenVino())
