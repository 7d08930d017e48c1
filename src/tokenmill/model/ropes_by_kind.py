"""The ropes of a model whose kinds of layers have ropes of their own, as a config.json gives them."""

from collections.abc import Mapping

from tokenmill.model.config import ConfigReader, ModelConfig, Rope
from tokenmill.model.rope_config import Beside, rope_within


def read_ropes(reader: ConfigReader, kinds: Mapping[str, Beside]) -> dict[str, Rope]:
    """Read ropes by kind of layer: from `rope_parameters` nested by kind (transformers 5), from the keys that older
    files have beside them, or from both, which transformers joins: `rope_scaling` goes before nested parameters.
    """
    head_dim, context = reader.head_dim(), reader.context()
    older, nested = reader.inside("rope_scaling").values, reader.inside("rope_parameters")
    given = {kind: {**nested.inside(kind).values, **(older if kinds[kind].scaled else {})} for kind in kinds}
    nested.refuse_unread(nested.values)
    return {kind: rope_within(reader, given[kind], head_dim, context, beside) for kind, beside in kinds.items()}


def local_rope(model: ModelConfig) -> Rope | None:
    """Find the rope of the layers with a window; None where all layers have the same rope, or none of them a window."""
    pairs = zip(model.ropes, model.windows, strict=False)  # either may be one entry that stands for all layers
    return next((rope for rope, window in pairs if window is not None and rope is not None), None)
