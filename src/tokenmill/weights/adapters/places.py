"""The places in the decoder of the modules that an adapter changes, found by the names that the family has for them.

An adapter has the names of transformers' own modules, or llama.cpp's. A whole model, which sees or hears too, has the
text's under another prefix; factors for its other parts are nothing that text passes.
"""

from dataclasses import replace
from functools import cached_property

from tokenmill.model.config import ModelConfig
from tokenmill.model.description import describe
from tokenmill.model.families import Family
from tokenmill.model.parameters import matrices_of, parameter_shapes
from tokenmill.weights.names import Target, expand, rows_of
from tokenmill.weights.text_part import is_of_other_part

EMBEDDING, HEAD = "embedding", "head"
_OUTER = ("model.language_model.", "language_model.model.", "model.text_model.", "language_model.", "model.", "")


class Places:
    """The places of one model's modules. family: with the names that the adapter has."""

    def __init__(self, family: Family, model: ModelConfig) -> None:
        self.family, self.model = family, model
        self.matrices = matrices_of(describe(model))
        self._shapes, self._rows = parameter_shapes(describe(model)), dict[Target, range]()

    @cached_property
    def _targets(self) -> dict[str, Target]:
        shapes = self._shapes
        return {
            **expand(self.family, self.model, shapes),
            **expand(replace(self.family, names=self.family.also), self.model, shapes),
            **{name: Target("head.weight", "", "") for name in self._names_of_head if self.model.has_head},
        }

    @cached_property
    def _names_of_head(self) -> list[str]:
        """List the names of the head, which has no tensor where the embedding is taken for it."""
        own = [name for name, goal in self.family.names.items() if goal == "head.weight"]
        return [*own, "lm_head.weight"] if self.family.prefix or not own else own

    def shorts(self, module: str) -> list[str]:
        """List what the name of a module may be without the prefix of all names, the longest prefix first."""
        outer = dict.fromkeys(sorted({*_OUTER, self.family.prefix}, key=len, reverse=True))
        return [module.removeprefix(each) for each in outer if module.startswith(each)]

    def is_of_other_part(self, module: str) -> bool:
        """Tell whether a module belongs to a part that sees or hears."""
        return any(is_of_other_part(f"{short}.") for short in self.shorts(module))

    def matrix(self, module: str) -> Target | None:
        """Find the matrix, or the embedding, that a module has."""
        return self.find(module, ".weight")

    def each(self, module: str) -> list[Target]:
        """Find the matrices of all experts that one tensor of transformers' modules has; empty for any other name."""
        found = list[Target]()
        while (target := self.find(module, f"[{len(found)}]")) is not None:
            found.append(target)
        return found

    def heads(self, module: str) -> list[tuple[Target, Target]]:
        """Find the matrices of the keys and of the values of each head, of latent attention; empty for other names."""
        found = list[tuple[Target, Target]]()
        while (key := self.find(module, f".weight[k{len(found)}]")) is not None:
            value = self.find(module, f".weight[v{len(found)}]")
            assert value is not None, "heads have both"
            found.append((key, value))
        return found

    def find(self, module: str, end: str) -> Target | None:
        """Find the place of a module's tensor, whose name ends so."""
        found = (self._targets.get(short + end) for short in self.shorts(module))
        return next((target for target in found if target is not None), None)

    def rows(self, target: Target) -> range:
        """Find the rows of its matrix that a target is."""
        if target not in self._rows:
            path = path_of(target)
            outputs = self.model.vocab_size if path == EMBEDDING else self.matrices[path].outputs
            self._rows[target] = rows_of(target, outputs, self.model)
        return self._rows[target]

    def inputs(self, target: Target) -> int:
        path = path_of(target)
        return self.model.hidden_size if path == EMBEDDING else self.matrices[path].inputs

    def is_matrix(self, target: Target) -> bool:
        """Tell whether a target is a matrix by which tokens are multiplied, or the embedding; no norm and no vector."""
        return path_of(target) == EMBEDDING or path_of(target) in self.matrices

    def is_norm(self, target: Target) -> bool:
        """Tell whether a target is the weight or the bias of a norm."""
        path = path_of(target)
        return path != target.parameter and not self.is_matrix(target) and not path.endswith(EMBEDDING)

    def part_of_norm(self, target: Target) -> tuple[range, tuple[int, ...]]:
        """Find the rows of its parameter that a target is, and the shape that a file's tensor has for them."""
        outputs, *inputs = self._shapes[target.parameter]
        rows = rows_of(target, outputs, self.model)
        return rows, target.shape_in_file(len(rows), tuple(inputs), self.model)


def path_of(target: Target) -> str:
    """Return the path of the target's module."""
    return target.parameter.removesuffix(".weight").removesuffix(".bias")
