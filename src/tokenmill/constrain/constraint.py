"""A compiled constraint, and the matcher of one sequence."""

from dataclasses import dataclass, field

from llguidance import LLMatcher

from tokenmill.constrain.vocabulary import Vocabulary


@dataclass(frozen=True)
class Constraint:
    """A grammar that is compiled for a vocabulary. Two of the same grammar are equal.

    first: a matcher at the beginning of a text, which is copied and never advanced.
    """

    grammar: str
    first: LLMatcher = field(compare=False, repr=False)
    vocabulary: Vocabulary = field(compare=False, repr=False)
