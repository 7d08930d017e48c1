"""Tiny assistants of Gemma 4, which guess tokens for the models of tests/tiny_models.py, and what they draft in
transformers.
"""

from functools import cache

import torch
import transformers

from tests.tiny_models import TINY, VOCABULARY, reference

MODELS = ["gemma4_text-plain", "gemma4_text", "gemma4_text-small", "gemma4_unified_text", "gemma4"]
SHAPES = ("num_key_value_heads", "head_dim", "global_head_dim", "sliding_window", "attention_k_eq_v")
SHAPES += ("num_global_key_value_heads",)


@cache
def assistant_of(name, **changes):
    """An assistant with the heads of that model. changes: of its config; of the whole those with a begin of "whole"."""
    numbers = dict(TINY[name][1])
    numbers = numbers.get("text_config", numbers)
    text = {key: numbers[key] for key in SHAPES if key in numbers}
    text |= {"model_type": "gemma4_text", "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 40}
    text |= {"num_hidden_layers": 3, "num_attention_heads": 4, "max_position_embeddings": 128}
    text |= {"layer_types": ["sliding_attention", "sliding_attention", "full_attention"]}
    text |= {"hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0}
    whole = {key.removeprefix("whole_"): value for key, value in changes.items() if key.startswith("whole_")}
    text |= {key: value for key, value in changes.items() if not key.startswith("whole_")}
    whole = {"backbone_hidden_size": numbers["hidden_size"], **whole}
    config = transformers.Gemma4AssistantConfig(text_config=text, **whole)
    with torch.random.fork_rng():
        torch.manual_seed(41)
        model = transformers.Gemma4AssistantForCausalLM(config).eval()
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, mean=1.0 if parameter.dim() == 1 else 0.0, std=0.2)
        if config.use_ordered_embeddings:
            model.masked_embedding.token_ordering.copy_(torch.randperm(VOCABULARY))
    return model


def save_assistant(name, folder, **changes):
    """Its directory."""
    path = folder / f"assistant-of-{name}"
    assistant_of(name, **changes).save_pretrained(path)
    return path


@torch.inference_mode()
def drafts(name, tokens, count):
    """What it drafts greedily after these tokens, and how far apart its two largest logits are."""
    model, assistant, found, margins = reference(name), assistant_of(name), [], []
    seen = model(torch.tensor([tokens[:-1]]), output_hidden_states=True, return_shared_kv_states=True, use_cache=True)
    row, token, place = seen.hidden_states[-1][:, -1:], torch.tensor([tokens[-1:]]), torch.tensor([[len(tokens) - 1]])
    for _ in range(count):
        given = torch.cat([model.get_input_embeddings()(token), row], -1)
        out = assistant(
            inputs_embeds=given, position_ids=place, shared_kv_states=seen.shared_kv_states, attention_mask=None
        )
        largest = out.logits[0, -1].topk(2)
        found.append(int(largest.indices[0]))
        margins.append(float(largest.values[0] - largest.values[1]))
        token, row = largest.indices[:1][None], out.last_hidden_state
    return found, margins
