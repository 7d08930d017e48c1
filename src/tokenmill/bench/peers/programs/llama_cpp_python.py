"""llama.cpp through llama-cpp-python's low-level calls: its kernels, the likeliest token by numpy, nothing between."""

# isort: off
import wire  # type: ignore[import-not-found]
# isort: on

import ctypes
import time
from typing import Any

import llama_cpp  # type: ignore[import-not-found]
import numpy as np

# As llama-bench has them.
BATCH, SMALL_BATCH = 2048, 512
FLASH_ATTENTION = {True: llama_cpp.LLAMA_FLASH_ATTN_TYPE_ENABLED, False: llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED}


class LlamaCpp:
    """One context for all sequences; its memory is cleared before each run."""

    def load(
        self, model: str, threads: int, dtype: str, max_length: int, batch: int, flash_attention: bool
    ) -> dict[str, Any]:
        if not model.endswith(".gguf"):
            raise ValueError("llama.cpp reads .gguf files only")
        llama_cpp.llama_backend_init()
        self.model = llama_cpp.llama_model_load_from_file(model.encode(), llama_cpp.llama_model_default_params())
        params = llama_cpp.llama_context_default_params()
        # Each sequence has its share of the context; llama.cpp wants multiples of 256.
        params.n_ctx, params.n_seq_max = batch * -(-max_length // 256) * 256, batch
        params.n_batch, params.n_ubatch = BATCH, SMALL_BATCH
        params.n_threads = params.n_threads_batch = threads
        params.flash_attn_type = FLASH_ATTENTION[flash_attention]
        self.context = llama_cpp.llama_init_from_model(self.model, params)
        if not self.context:
            raise MemoryError(f"no context for {batch} sequences of {max_length} tokens")
        self.vocab_size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))
        self.batch = llama_cpp.llama_batch_init(BATCH, 0, 1)
        return {"versions": _versions(), "note": f"{self._kind()}, {_instruction_sets()}"}

    def run(self, prompts: list[list[int]], new: int) -> dict[str, Any]:
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)
        started_s = time.perf_counter()
        rows = [
            (token, position, sequence, position == len(prompt) - 1)
            for sequence, prompt in enumerate(prompts)
            for position, token in enumerate(prompt)
        ]
        tokens = [[token] for token in self._feed(rows)]
        first_s = time.perf_counter()
        for step in range(new - 1):
            rows = [(t[-1], len(p) + step, s, True) for s, (t, p) in enumerate(zip(tokens, prompts, strict=True))]
            for sequence, token in zip(tokens, self._feed(rows), strict=True):
                sequence.append(token)
        return {**wire.times(started_s, first_s, time.perf_counter()), "tokens": tokens}

    def _feed(self, rows: list[tuple[int, int, int, bool]]) -> list[int]:
        """Feed rows of token, position, sequence, and whether a token follows; return these tokens."""
        found = []
        for at in range(0, len(rows), BATCH):
            batch, part = self.batch, rows[at : at + BATCH]
            batch.n_tokens = len(part)
            for row, (token, position, sequence, wanted) in enumerate(part):
                batch.token[row], batch.pos[row], batch.logits[row] = token, position, wanted
                batch.n_seq_id[row], batch.seq_id[row][0] = 1, sequence
            code = llama_cpp.llama_decode(self.context, batch)
            if code:
                raise RuntimeError(f"llama_decode gives {code}")
            found += [self._likeliest(row) for row, (*_, wanted) in enumerate(part) if wanted]
        return found

    def _likeliest(self, row: int) -> int:
        logits = llama_cpp.llama_get_logits_ith(self.context, row)
        return int(np.argmax(np.ctypeslib.as_array(logits, shape=(self.vocab_size,))))

    def _kind(self) -> str:
        """Name the kind of the model, such as "llama 134M Q4_1"."""
        text = ctypes.create_string_buffer(128)
        llama_cpp.llama_model_desc(self.model, text, len(text))
        return str(text.value.decode())


def _versions() -> dict[str, str]:
    return {"llama-cpp-python": llama_cpp.__version__}


def _instruction_sets() -> str:
    """Name the instruction sets of the build that this processor has, out of "AVX512 = 1 | …"."""
    found = llama_cpp.llama_print_system_info().decode().replace("CPU :", "|").split("|")
    names = [part.split("=")[0].strip() for part in found if part.strip().endswith("= 1")]
    return " ".join(name for name in names if name.startswith(("AVX", "NEON", "ARM", "SVE", "AMX")))


if __name__ == "__main__":
    wire.serve(LlamaCpp())
