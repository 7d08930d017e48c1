"""The config.json of a directory that is written, in words that transformers reads."""

import logging
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tokenmill.model.config import Rope
from tokenmill.model.families import find_family, read_config
from tokenmill.weights.gguf.config import ROPE_FREQS
from tokenmill.weights.write.gguf_metadata import rope_lists

log = logging.getLogger(__name__)

OWN_KEYS = ("dtype", "stored_as_codes", "embedding_as_codes")
"""Keys of a config that tell how the files were stored that it was read from."""
_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}  # of every published model
_LENGTHS = [1 << bits for bits in range(5, 21)]  # for which a model may have been trained at first


def config_json(config: Mapping[str, Any]) -> dict[str, Any]:
    """Make the config of the tensors that are written: of a model that sees, that of its text part, as these are."""
    family, kept = find_family(config), dict(config)
    if family.text is not None:
        kept = {key: value for key, value in family.text.flatten(config).items() if key != "architectures"}
    scaling = kept.get("rope_scaling")
    if isinstance(scaling, dict) and scaling.get("rope_type") == "factors":
        kept |= _as_llama3(read_config(kept).rope)
    return {key: value for key, value in kept.items() if key not in OWN_KEYS}


def _as_llama3(rope: Rope | None) -> dict[str, Any]:
    """Find the numbers of Llama 3's rope of which a GGUF file has the divisors; a warning where there are none."""
    assert rope is not None, "its config has divisors"
    factors = dict(rope.scaling)["factors"]
    for length in _LENGTHS:
        numbers = {"factor": max(factors), **_LLAMA3, "original_max_position_embeddings": length}
        found = rope_lists(replace(rope, kind="llama3", scaling=tuple(numbers.items())))[ROPE_FREQS]
        if all(math.isclose(have, want, rel_tol=1e-5) for have, want in zip(found, factors, strict=True)):
            return {"rope_scaling": {"rope_type": "llama3", **numbers}}
    log.warning('config.json has divisors of the rope that are not Llama 3\'s: transformers knows no rope "factors"')
    return {}
