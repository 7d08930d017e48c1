"""The model of jina-embeddings-v2 in transformers' classes: BERT, with ALiBi as a mask and the MLP of jina's own code
(https://huggingface.co/jinaai/jina-bert-implementation), which is not installed here.
"""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import BertConfig, BertModel
from transformers.models.bloom.modeling_bloom import build_alibi_tensor

PUBLISHED = {  # the words of jina-embeddings-v2-base-en
    "_name_or_path": "jinaai/jina-bert-implementation",
    "model_max_length": 8192,
    "architectures": ["JinaBertForMaskedLM"],
    "attention_probs_dropout_prob": 0.0,
    "auto_map": {"AutoModel": "jinaai/jina-bert-implementation--modeling_bert.JinaBertModel"},
    "classifier_dropout": None,
    "emb_pooler": "mean",
    "feed_forward_type": "geglu",
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "max_position_embeddings": 8192,
    "model_type": "bert",
    "position_embedding_type": "alibi",
    "torch_dtype": "float32",
    "type_vocab_size": 2,
    "use_cache": True,
}


class GatedMlp(nn.Module):
    """The second half of a layer: the first rows of one matrix are gates."""

    def __init__(self, config: BertConfig, kind: str) -> None:
        super().__init__()
        self.gated_layers = nn.Linear(config.hidden_size, 2 * config.intermediate_size, bias=False)
        self.act = {"geglu": nn.GELU(), "reglu": nn.ReLU()}[kind]
        self.wo = nn.Linear(config.intermediate_size, config.hidden_size)
        self.layernorm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)

    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        gates, others = self.gated_layers(x).chunk(2, -1)
        normed: Tensor = self.layernorm(self.wo(self.act(gates) * others) + residual)
        return normed


class JinaBert(BertModel):
    def __init__(self, config: BertConfig, kind: str = "geglu") -> None:
        super().__init__(config, add_pooling_layer=False)
        self.kind = kind
        for layer in self.encoder.layer:
            layer.intermediate, layer.output = nn.Identity(), GatedMlp(config, kind)

    def forward(self, input_ids: Tensor, **given: Any) -> Any:
        """transformers' BERT, without its positions and with BLOOM's slopes."""
        nn.init.zeros_(self.embeddings.position_embeddings.weight)
        places = torch.arange(input_ids.shape[1])
        slopes_N11 = build_alibi_tensor(torch.ones(1, 2), self.config.num_attention_heads, torch.float32)[:, :, 1:]
        mask = -slopes_N11 * (places[None] - places[:, None]).abs()
        return super().forward(input_ids, attention_mask=mask[None], **given)

    def save_pretrained(self, path: Path) -> None:  # type: ignore[override]
        """Write the files under their published names."""
        path.mkdir(parents=True)
        tensors = {
            name if ".attention." in name else name.replace(".output.", ".mlp."): each.contiguous()
            for name, each in self.state_dict().items()
            if "position_embeddings" not in name
        }
        save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
        sizes = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
        own = {name: getattr(self.config, name) for name in (*sizes, "max_position_embeddings", "layer_norm_eps")}
        (path / "config.json").write_text(json.dumps({**PUBLISHED, **own, "feed_forward_type": self.kind}))
