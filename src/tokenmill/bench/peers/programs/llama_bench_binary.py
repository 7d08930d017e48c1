"""llama-bench of llama.cpp or of ik_llama.cpp, a binary that was built for this machine: its path is the only argument.

llama-bench runs one sequence; for several, llama-batched-bench is taken, if it lies beside it. With repack, which
ik_llama.cpp alone knows, weights are put into the layout of its fastest kernels while they are loaded.
"""

# isort: off
import wire  # type: ignore[import-not-found]
# isort: on

import json
import subprocess
import sys
from pathlib import Path
from typing import Any


class LlamaBench:
    """Loads the model in every run, which is not counted; tells times but no tokens."""

    def load(
        self,
        model: str,
        threads: int,
        dtype: str,
        max_length: int,
        batch: int,
        flash_attention: bool,
        repack: bool = False,
    ) -> dict[str, Any]:
        if not model.endswith(".gguf"):
            raise ValueError("llama.cpp reads .gguf files only")
        self.binary, self.repack = Path(sys.argv[1]), repack
        self.model, self.threads, self.flash_attention = model, str(threads), flash_attention
        [report] = self._bench("-p", "8", "-n", "0")
        commit = f"{report['build_commit']} ({report['build_number']})"
        name = "ik_llama.cpp" if repack else "llama.cpp"
        return {"versions": {name: commit}, "note": f"{report['model_type']}, {report['cpu_info']}"}

    def run(self, prompts: list[list[int]], new: int) -> dict[str, Any]:
        length = len(prompts[0])
        if len(prompts) > 1:
            prefill_s, decode_s = self._batched(length, new, len(prompts))
        else:
            [prefill] = self._bench("-p", str(length), "-n", "0")
            # Generation behind a prompt: each has its own word for it.
            behind = ("-n", "0", "-gp", f"{length},{new}") if self.repack else ("-n", str(new), "-d", str(length))
            [decode] = self._bench("-p", "0", *behind)
            prefill_s, decode_s = length / prefill["avg_ts"], (new - 1) / decode["avg_ts"]
        return {"prefill_s": prefill_s, "decode_s": decode_s, "total_s": prefill_s + decode_s, "tokens": None}

    def _bench(self, *arguments: str) -> Any:
        flash_attention = "1" if self.flash_attention else "0"
        how = ["-t", self.threads, "-fa", flash_attention, *(["-rtr", "1"] if self.repack else [])]
        out, _ = _run([str(self.binary), "-m", self.model, *how, "-r", "1", "-o", "json", *arguments])
        return json.loads(out)

    def _batched(self, length: int, new: int, batch: int) -> tuple[float, float]:
        """Return the seconds of prefill and decode, out of the one row of figures that llama-batched-bench prints."""
        binary = self.binary.with_name("llama-batched-bench")
        if not binary.exists():
            raise ValueError(f"llama-bench runs one sequence at a time, and {binary} is not there")
        context = str(batch * -(-(length + new) // 256) * 256)
        how = ["-t", self.threads, "-tb", self.threads, "-c", context, "-fa", "on" if self.flash_attention else "off"]
        how += ["-npp", str(length), "-ntg", str(new), "-npl", str(batch), *(["-rtr"] if self.repack else [])]
        for line in "\n".join(_run([str(binary), "-m", self.model, *how])).splitlines():
            cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
            if cells[:3] == [str(length), str(new), str(batch)]:
                return float(cells[4]), float(cells[6]) * (new - 1) / new
        raise RuntimeError(f"{binary} printed no row of figures")


def _run(command: list[str]) -> tuple[str, str]:
    """Run a command, and return the texts that it prints on stdout and on stderr."""
    done = subprocess.run(command, capture_output=True, text=True)  # noqa: S603, PLW1510  (the user named it)
    if done.returncode:
        said = done.stderr.strip().splitlines() or ["nothing on stderr"]
        raise RuntimeError(f"{command[0]} ended with exit code {done.returncode}: {said[-1]}")
    return done.stdout, done.stderr


if __name__ == "__main__":
    wire.serve(LlamaBench())
