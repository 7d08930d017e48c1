"""llama.cpp's own llama-bench, a binary that was built for this machine: its path is the only argument."""

# isort: off
import wire  # type: ignore[import-not-found]
# isort: on

import json
import subprocess
import sys
import time
from typing import Any


class LlamaBench:
    """Loads the model in every run, which is not counted; tells times but no tokens."""

    def load(self, model: str, threads: int, dtype: str, max_length: int, batch: int) -> dict[str, Any]:
        if not model.endswith(".gguf"):
            raise ValueError("llama.cpp reads .gguf files only")
        self.command = [sys.argv[1], "-m", model, "-t", str(threads), "-r", "1", "-o", "json"]
        [report] = self._bench("-p", "8", "-n", "0")
        commit = f"{report['build_commit']} ({report['build_number']})"
        return {"versions": {"llama.cpp": commit}, "note": f"{report['model_type']}, {report['cpu_info']}"}

    def run(self, prompts: list[list[int]], new: int) -> dict[str, Any]:
        if len(prompts) > 1:
            raise ValueError("llama-bench runs one sequence at a time")
        length = len(prompts[0])
        [prefill] = self._bench("-p", str(length), "-n", "0")
        [decode] = self._bench("-p", "0", "-n", str(new), "-d", str(length))
        prefill_s, decode_s = length / prefill["avg_ts"], (new - 1) / decode["avg_ts"]
        return {"prefill_s": prefill_s, "decode_s": decode_s, "total_s": prefill_s + decode_s, "tokens": None}

    def _bench(self, *arguments: str) -> list[dict[str, Any]]:
        done = subprocess.run([*self.command, *arguments], capture_output=True, text=True)  # noqa: S603, PLW1510  (the user named it)
        if done.returncode:
            said = done.stderr.strip().splitlines() or ["nothing on stderr"]
            raise RuntimeError(f"{self.command[0]} ended with exit code {done.returncode}: {said[-1]}")
        reports: list[dict[str, Any]] = json.loads(done.stdout)
        time.sleep(0.1)
        return reports


if __name__ == "__main__":
    wire.serve(LlamaBench())
