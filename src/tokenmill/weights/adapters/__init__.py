"""Adapters (LoRA, arXiv 2106.09685): reading the files of PEFT and of llama.cpp, and what they change of a model."""
