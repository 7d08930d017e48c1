"""The text part of Muse Glimmer as a model by itself, for which transformers has no class. tests/tiny_models.py has the
whole model, too, with transformers' own class.
"""

from typing import Any, ClassVar

import torch
from torch import nn
from transformers import AutoModelForCausalLM, GenerationMixin
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.models.muse_glimmer.configuration_muse_glimmer import MuseGlimmerTextConfig
from transformers.models.muse_glimmer.modeling_muse_glimmer import MuseGlimmerPreTrainedModel, MuseGlimmerTextModel


class MuseGlimmerText(MuseGlimmerPreTrainedModel, GenerationMixin):
    config_class = MuseGlimmerTextConfig
    config: MuseGlimmerTextConfig
    _tied_weights_keys: ClassVar[dict[str, str]] = {"lm_head.weight": "model.embed_tokens.weight"}

    def __init__(self, config: MuseGlimmerTextConfig) -> None:
        super().__init__(config)
        self.model = MuseGlimmerTextModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def forward(self, input_ids: torch.Tensor | None = None, **inputs: Any) -> CausalLMOutputWithPast:
        inputs = {key: value for key, value in inputs.items() if key not in ("return_dict", "logits_to_keep")}
        outputs = self.model(input_ids=input_ids, **inputs)
        logits, cap = self.lm_head(outputs.last_hidden_state), self.config.final_logit_softcapping
        logits = torch.tanh(logits * self.config.output_multiplier / cap) * cap
        return CausalLMOutputWithPast(logits=logits, cache=outputs.cache)


AutoModelForCausalLM.register(MuseGlimmerTextConfig, MuseGlimmerText, exist_ok=True)
