"""The text part's tensors in a whole model, which sees or hears, too. Their prefix is found by the embedding, whatever
the config calls the model.

A merged fine-tune may have a config of the text part beside the names of the whole, or be wrapped by another program.
"""

import logging
from collections.abc import Iterable

from tokenmill.errors import CheckpointError
from tokenmill.model.families import Family
from tokenmill.units import counted
from tokenmill.weights.plain import PlainCheckpoint

log = logging.getLogger(__name__)

# How the names of other parts' tensors begin, after the prefix that all names have.
_OTHERS = tuple(
    """audio_encoder. audio_model. audio_projector. audio_tower. aligner. connector. embed_audio. embed_vision.
    image_newline image_projection. mm_projector. multi_modal_projector. patch_merger. projector. view_separator
    vision_adapter. vision_embed_tokens. vision_embedder. vision_encoder. vision_model. vision_projection. vision_tower.
    visual.""".split()
)


def keep_text(plain: PlainCheckpoint, family: Family) -> None:
    """Show the tensors of the text part alone, with the names that a model of text has; warn of the other tensors.

    CheckpointError with the prefixes, where several tensors may be the embedding.
    """
    before = _prefix(plain, family)
    outer = [before[: at + 1] for at, letter in enumerate(before) if letter == "."]
    outer = sorted({"", *outer, "model."}, key=len, reverse=True)
    has_head = "head.weight" in family.names.values()  # an encoder has none
    heads = [_name_of("head", family).removesuffix("weight")] if family.prefix and has_head else []
    others = []
    for name in list(plain.shapes):
        rests = [name.removeprefix(each) for each in outer if name.startswith(each)]
        head = next((rest for rest in rests for head in heads if rest.startswith(head)), None)
        if head is not None:
            _rename(plain, name, head)
        elif any(map(is_of_other_part, rests)):
            others.append(name)
        elif before != family.prefix and name.startswith(before):
            _rename(plain, name, family.prefix + name.removeprefix(before))
    if others:
        plain.leave_out(others)
        parts = " and ".join(sorted(set(_parts(others, outer))))
        count = counted(len(others), "tensor")
        log.warning("%s: left out are %s of %s: text alone is implemented", plain.path, count, parts)


def is_of_other_part(name: str) -> bool:
    """Tell whether a name, without the prefix that all names have, belongs to a part that sees or hears."""
    return name.startswith(_OTHERS)


def _prefix(plain: PlainCheckpoint, family: Family) -> str:
    """Find the prefix of the names of the text part's tensors."""
    short = _name_of("embedding", family)
    found = {name.removesuffix(short) for name in plain.shapes if name == short or name.endswith(f".{short}")}
    usual = found & {"", family.prefix}
    texts = [each for each in found if "language_model." in each] if len(found) > 1 else list(found)
    if usual or not found:
        return family.prefix
    if len(texts) != 1:
        named = ", ".join(each + short for each in sorted(found))
        raise CheckpointError(f"{plain.path}: which of its tensors is the embedding of the text is unknown: {named}")
    return texts[0]


def _name_of(matrix: str, family: Family) -> str:
    return next(name for name, target in family.names.items() if target == f"{matrix}.weight")


def _rename(plain: PlainCheckpoint, name: str, to: str) -> None:
    if name != to:
        plain.rename(name, to)


def _parts(names: Iterable[str], outer: Iterable[str]) -> Iterable[str]:
    """Name the parts to which these tensors belong."""
    for name in names:
        rest = next(rest for each in outer if (rest := name.removeprefix(each)).startswith(_OTHERS))
        yield rest.partition(".")[0]
