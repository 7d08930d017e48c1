"""mistral.rs as its wheel for the CPU has it. It takes text alone, so prompts are spelled out and tokenised again."""

# isort: off
import wire  # type: ignore[import-not-found]
# isort: on

from importlib.metadata import version
from pathlib import Path
from typing import Any

import mistralrs  # type: ignore[import-not-found]


class MistralRs:
    """One request, without its prefix cache; it tells its own times."""

    def load(self, model: str, threads: int, dtype: str, max_length: int, batch: int) -> dict[str, Any]:
        path = Path(model)
        if path.is_file():
            which = mistralrs.Which.GGUF(quantized_model_id=str(path.parent), quantized_filename=path.name)
        else:
            which = mistralrs.Which.Plain(model_id=model)
        self.runner = mistralrs.Runner(which, max_seqs=batch, prefix_cache_n=0, token_source="none")  # noqa: S106
        kind = "the file's quantisation" if path.is_file() else "as stored"
        return {"versions": {"mistralrs": version("mistralrs")}, "note": f"{kind}, prompts as text"}

    def run(self, prompts: list[list[int]], new: int) -> dict[str, Any]:
        if len(prompts) > 1:
            raise ValueError("only one sequence is measured: the wheel tells no times of several together")
        text = self.runner.detokenize_text(prompts[0], False)
        request = mistralrs.CompletionRequest(
            prompt=text, model="default", max_tokens=new, temperature=0.0, ignore_eos=True
        )
        usage = self.runner.send_completion_request(request).usage
        if usage.completion_tokens != new:
            raise RuntimeError(f"{usage.completion_tokens} tokens instead of {new}")
        # The text may have become a token more or less.
        prefill_s = usage.total_prompt_time_sec * len(prompts[0]) / usage.prompt_tokens
        decode_s = usage.total_completion_time_sec
        return {"prefill_s": prefill_s, "decode_s": decode_s, "total_s": prefill_s + decode_s, "tokens": None}


if __name__ == "__main__":
    wire.serve(MistralRs())
