"""Tiny random encoders of each family, as transformers saves them."""

from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
import transformers

from tests.jina_bert import JinaBert
from tests.tiny_models import VOCABULARY

_SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 66,
}
_SHORT = {"dim": 48, "hidden_dim": 80, "n_layers": 3, "n_heads": 4}
ENCODERS: dict[str, dict[str, Any]] = {
    "bert": {"hidden_act": "gelu", "pad_token_id": 0},
    "roberta": {"pad_token_id": 1, "type_vocab_size": 1},
    "xlm-roberta": {"pad_token_id": 1, "type_vocab_size": 1},
    "camembert": {"pad_token_id": 1},
    "mpnet": {},
    "jina_bert": {},
    "distilbert": {**_SHORT, "activation": "gelu"},
    "modernbert": {"local_attention": 10, "norm_bias": True, "num_hidden_layers": 4},
    "nomic_bert": {},
    "eurobert": {"num_key_value_heads": 2},
    "gemma3_text": {"use_bidirectional_attention": True, "sliding_window": 8, "head_dim": 16, "num_hidden_layers": 6},
}
"""What each has beside the sizes; two of them differ in a norm or a window that the others lack."""
_NO_TOKENS = {"bos_token_id": None, "eos_token_id": None, "cls_token_id": None, "sep_token_id": None}


@cache
def encoder(name: str, **departures: Any) -> Any:
    """Make the model; every number is drawn, biases and norms too."""
    more = _NO_TOKENS if name in ("modernbert", "eurobert", "gemma3_text") else {}
    more = {**more, **({"pad_token_id": 0} if more else {})}
    if name == "gemma3_text":
        more = {**more, "num_key_value_heads": 1, "query_pre_attn_scalar": 16}
    sizes = {key: value for key, value in _SIZES.items() if name != "distilbert" or key[:5] in ("vocab", "max_p")}
    config_of = transformers.BertConfig if name == "jina_bert" else partial(transformers.AutoConfig.for_model, name)
    config = config_of(**{**sizes, **more, **ENCODERS[name], **departures})
    torch.manual_seed(len(name))
    model = (JinaBert(config) if name == "jina_bert" else transformers.AutoModel.from_config(config)).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(std=0.25).add_(0.5 * (weight.ndim == 1))
    return model


def save_encoder(name: str, directory: Path, **departures: Any) -> Path:
    path = directory / name
    if not path.exists():
        encoder(name, **departures).save_pretrained(path)
    return path


@torch.no_grad()
def rows_of(name: str, tokens: list[int]) -> torch.Tensor:
    """Compute what the encoder gives of each token, [T, D]."""
    found: torch.Tensor = encoder(name)(torch.tensor([tokens])).last_hidden_state[0]
    return found
