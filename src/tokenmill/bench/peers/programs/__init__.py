"""One small program per engine that tokenmill is measured against. Each runs in that engine's own Python environment.

They share `wire.py`, import nothing of tokenmill (but for tokenmill's own), and know nothing of each other. A program
is a class with two methods, which `wire.serve` calls for the two requests there are:

    {"op": "load", "model": PATH, "threads": 2, "dtype": "bfloat16", "max_length": 640, "batch": 1}
        → {"ok": true, "load_s": 1.2, "versions": {"torch": "2.13.0"}, "note": "what it really computes in"}
    {"op": "run", "prompts": [[1, 2, 3]], "new": 128}
        → {"ok": true, "prefill_s": 0.1, "decode_s": 1.1, "total_s": 1.2, "tokens": [[4, 5, …]]}

Greedy, past the end-of-sequence token, exactly `new` tokens for each prompt. prefill_s ends when every prompt has its
first token, decode_s is the rest. `decode_tokens` is added by engines that mix the two for a batch: the tokens that
came in decode_s. `tokens` is null where the engine does not tell. What goes wrong is {"ok": false, "error": "…"}.
"""
