"""Gemma 4's assistants: checkpoints that guess the next tokens of another one, see engine/assistant.py."""

from dataclasses import replace
from typing import Any

from tokenmill.model.config import ConfigReader
from tokenmill.model.families import InnerTextModel
from tokenmill.model.families.gemma4 import GEMMA4_TEXT, NAMES, read_gemma4
from tokenmill.model.families.mtp import MTP
from tokenmill.value_reader import MAX_POSITIONS


def _assistant(reader: ConfigReader) -> dict[str, Any]:
    """Read an assistant, which has no rows of its own: a layer reads those that the last layer of its kind has in the
    model for which it guesses. They are the first layers of its cache here.
    """
    num_layers, width = reader.num_layers(), reader.count("backbone_hidden_size")
    reader.expect("num_kv_shared_layers", num_layers, 0)
    for key in ("hidden_size_per_layer_input", "vocab_size_per_layer_input"):
        reader.expect(key, 0)
    for key in ("use_ordered_embeddings", "num_centroids", "centroid_intermediate_top_k"):
        reader.take(key, None)  # of a shorter way to the largest logits
    reader.values = {
        **reader.values,
        "num_kv_shared_layers": 0,
        "vocab_size_per_layer_input": reader.count("vocab_size"),
    }
    fields = read_gemma4(reader)
    kinds = list(dict.fromkeys(fields["windows"]))
    sources = tuple(kinds.index(window) for window in fields["windows"])
    # Its mask lets a token see rows up to a distance of the window, where a model's own lets it see so many tokens.
    windows = tuple(None if window is None else min(window + 1, MAX_POSITIONS - 1) for window in fields["windows"])
    given = {"given_width": 2 * width, "kv_sources": sources, "windows": windows}
    return {**fields, **given, "logit_softcap": None, "num_layers": num_layers}


# Of the further tensors engine/assistant.py reads one.
ASSISTANT_TEXT = replace(
    GEMMA4_TEXT,
    names={**NAMES, "pre_projection.weight": "mtp.fc.weight"},
    read=_assistant,
    defaults={**GEMMA4_TEXT.defaults, "hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0},
    further=("post_projection.", "masked_embedding."),
    gguf=None,
)
ASSISTANT = replace(ASSISTANT_TEXT, text=InnerTextModel(("gemma4_text",), read_as=f"gemma4_assistant_text{MTP}"))
