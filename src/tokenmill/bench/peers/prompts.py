"""The prompts that all engines continue: the same ids, of real text, so that greedy tokens rarely hang on a tie."""

import random

from tokenmill.weights.checkpoint import Checkpoint

__all__ = ["TEXT", "make_prompts"]

TEXT = """
A water mill takes its work from a river. Above the mill a weir holds the water back, and a channel, the leat, leads
it along the slope until it stands a few metres higher than the river beside it. There it falls on the wheel. Twelve
blades out of thirty carry water at any moment, and their weight turns a shaft of oak as thick as a man. In the room
behind the wall the shaft bears a large gear, which drives a small one, which turns the stone: once around for the
wheel, nine times around for the stone. There are two stones, one on top of the other, and only the upper one moves.
Grain runs from a hopper through a shoe that a wooden rod shakes, so that the faster the stone turns the more grain it
is given. It enters through the eye in the middle, and furrows cut into both faces carry it outwards while it is
broken, opened and at last ground fine. At the edge the flour falls into a case and slides down to the floor below,
still warm. A miller listens. When the stones run empty they ring, and they wear in minutes as much as otherwise in
weeks; a bell on a strap warns him when the hopper is nearly out. He takes flour between thumb and finger to feel
whether the gap is right, and turns a screw by the width of a hair. Every few weeks he lifts the upper stone with a
crane, turns it over, and dresses both faces with a steel pick, one furrow after the other, as the one who taught him
did it. What limits a mill? Not the stone, most days. In spring there is more water than the wheel can take, and the
rest runs over the weir; in August there is hardly enough to turn it, and people wait with their sacks for the pond to
fill. So a good mill is not the one with the largest stone. It is the one that wastes no water between the river and
the flour: a tight channel, a light wheel, gears that fit, and grain that is there when the stone comes around. The
first question of anybody who came to buy a mill was therefore not how fast it could turn, but how much the river
gave, and how much of that reached the stones. Both can be measured with a board, a bucket and a clock.
"""


def make_prompts(checkpoint: Checkpoint, vocab_size: int, length: int, batch: int) -> list[list[int]]:
    """`batch` prompts of `length` ids, each starting elsewhere in the text, which goes around.

    Random ids for a model that has no tokenizer.
    """
    tokenizer = checkpoint.tokenizer()
    if tokenizer is None:
        rng = random.Random(0)  # noqa: S311  (no secret)
        return [[rng.randrange(vocab_size) for _ in range(length)] for _ in range(batch)]
    ids = tokenizer.encode(TEXT.strip(), add_special_tokens=False)
    return [[ids[(start + at) % len(ids)] for at in range(length)] for start in range(0, 31 * batch, 31)]
