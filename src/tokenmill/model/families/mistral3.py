"""Models of Mistral AI that see: of Mistral Small 3.1 and 4, Ministral 3 and Devstral 2 the text part is read.

It is Mistral, Ministral 3 or Mistral 4. No two of them have one name for different tensors, apart from the matrix
behind attention.
"""

from dataclasses import replace

from tokenmill.model.families import InnerTextModel, sizes
from tokenmill.model.families.deepseek import MISTRAL4
from tokenmill.model.families.llama import MISTRAL

# The text part of Mistral Small 3.1, which the class takes where a config has none.
_TEXT = {
    **sizes(131072, 5120, 32768, 40, 32, 8, head_dim=128, context=131072),
    "model_type": "mistral",
    "rms_norm_eps": 1e-5,
    "rope_theta": 1e9,
    "sliding_window": None,
}
_OUT = "layers.{i}.self_attn.o_proj{p}"
MISTRAL3 = replace(
    MISTRAL,
    names={**MISTRAL.names, **MISTRAL4.names, _OUT: f"{MISTRAL.names[_OUT]} or {MISTRAL4.names[_OUT]}"},
    gguf=None,
    text=InnerTextModel(
        ("mistral", "ministral3", "mistral4"),
        default=_TEXT,
        ignored=(
            "vision_config", "image_token_index", "image_token_id", "multimodal_projector_bias", "projector_hidden_act",
            "spatial_merge_size", "vision_feature_layer",
        ),
    ),
)  # fmt: skip
