"""The sampling settings that makers of the models with short names recommend, with the place where each says so.

The generation_config.json of a model's first repository comes first, since transformers and vLLM sample by it; where it
says nothing, the call that the model card shows, or its words. Empty where neither says anything. GGUF files of these
models say nothing themselves.
"""

from tokenmill.settings.recommended import NOTHING, Recommended

FILE, CARD = "the maker's generation_config.json", "the maker's model card"

SMOLLM2 = Recommended({"temperature": 0.2, "top_p": 0.9}, CARD)
SMOLLM3 = Recommended({"temperature": 0.6, "top_p": 0.95}, FILE)
QWEN25_SMALL = Recommended({"temperature": 0.7, "top_k": 20, "top_p": 0.8, "repetition_penalty": 1.1}, FILE)
QWEN3 = Recommended({"temperature": 0.6, "top_k": 20, "top_p": 0.95}, FILE)
LLAMA32 = Recommended({"temperature": 0.6, "top_p": 0.9}, FILE)
TINYLLAMA = Recommended({"temperature": 0.7, "top_k": 50, "top_p": 0.95}, CARD)
DEEPSEEK_R1 = Recommended({"temperature": 0.6, "top_p": 0.95}, FILE)
PHI = Recommended({"temperature": 0.0}, CARD)  # of Phi-3 and Phi-4 mini: do_sample is false in the call that is shown
GEMMA3 = Recommended({"temperature": 1.0, "top_k": 64, "top_p": 0.95}, FILE)  # do_sample without a temperature
MINISTRAL3 = Recommended({"temperature": 0.0}, CARD)  # "below 0.1" for daily use
GRANITE33 = FALCON3 = OLMO2 = NOTHING  # generation_config.json has ids of tokens alone, and the cards show no sampling
