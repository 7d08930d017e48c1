"""nanochat of Andrej Karpathy: norms without weights, one of them behind the embedding, and an MLP with relu².

It rotates the other way round. That is the usual rotation of pairs whose entries have changed places, which is folded
into the rows of Q and K.
"""

from typing import Any

from tokenmill.model.config import ConfigReader, QKNorm
from tokenmill.model.families import Family, sizes
from tokenmill.model.families.llama import NAMES

_LAYER = "layers.{i}."
_NAMES = {
    **{name: target for name, target in NAMES.items() if "norm" not in name and ".mlp." not in name},
    **{
        f"{_LAYER}self_attn.{letter}_proj{{p}}": f"{_LAYER}attention.qkv{{p}}:{letter} | halves swapped"
        for letter in "qk"
    },
    _LAYER + "mlp.fc1.weight": _LAYER + "mlp.up.weight",
    _LAYER + "mlp.fc2.weight": _LAYER + "mlp.down.weight",
}


def _nanochat(reader: ConfigReader) -> dict[str, Any]:
    return {
        **reader.attention_bias(),
        "norm_weight": False,
        "embedding_norm": "plain",
        "qk_norm": QKNorm(weight=False, after_rope=True),
        "gated_mlp": False,
        "logit_softcap": reader.number("final_logit_softcapping", None),
    }


NANOCHAT = Family(
    _NAMES,
    _nanochat,
    defaults={
        **sizes(50304, 768, 8192, 12, 6),
        "eos_token_id": 1,
        "final_logit_softcapping": 15.0,
        "hidden_act": "relu2",
    },
    nulls={"final_logit_softcapping": None, "num_key_value_heads": None},
)
