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
    """Its continuous-batching pipeline, all prompts submitted at once."""

    def load(self, model: str, threads: int, dtype: str, max_length: int, batch: int) -> dict[str, Any]:
        plain = plain_folder(model)
        folder = kept_folder(plain, "openvino", lambda folder: convert(plain, folder))
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.enable_prefix_caching = False  # else a prompt costs nothing the second time
        scheduler.max_num_seqs, scheduler.cache_size = batch, CACHE_GB
        self.pipeline = openvino_genai.LLMPipeline(
            str(folder),
            "CPU",
            scheduler_config=scheduler,
            INFERENCE_NUM_THREADS=threads,
            PERFORMANCE_HINT="LATENCY",
        )
        return {
            "versions": {"openvino-genai": openvino_genai.__version__},
            "note": f"int8 weights, {' '.join(openvino.Core().get_property('CPU', 'OPTIMIZATION_CAPABILITIES'))}",
        }

    def run(self, prompts: list[list[int]], new: int) -> dict[str, Any]:
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample, config.apply_chat_template = new, True, False, False
        ids = np.array(prompts, dtype=np.int64)
        inputs = openvino_genai.TokenizedInputs(openvino.Tensor(ids), openvino.Tensor(np.ones_like(ids)))
        started_s = time.perf_counter()
        done = self.pipeline.generate(inputs, config)
        total_s = time.perf_counter() - started_s
        prefill_s = max(done.perf_metrics.raw_metrics.m_times_to_first_token) / 1e6
        tokens = [[int(token) for token in row] for row in done.tokens]
        return {"prefill_s": prefill_s, "decode_s": total_s - prefill_s, "total_s": total_s, "tokens": tokens}


def convert(source: Path, folder: Path) -> None:
    """Weights, tokenizer and detokenizer as OpenVINO wants them, from a plain folder."""
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
