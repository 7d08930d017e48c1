"""A mixture of experts as data."""

from collections import Counter
from dataclasses import dataclass

from tokenmill.model.blocks import Norm, Projection
from tokenmill.model.config import ModelConfig
from tokenmill.model.description import DecoderDescription, MlpBlock, mlp_of


@dataclass(frozen=True)
class ExpertsBlock:
    """Each token goes through the `chosen` of `num` experts that its router scores highest, and through `shared`.

    scores: "softmax" or "sigmoid" of the router's outputs. normalise: the scores of the chosen experts are divided by
    their sum plus eps. latent: the matrices before and after the chosen experts, where these read and write rows of
    another width. correction, groups, scale: see ModelConfig. shared_gate: the shared expert is multiplied by its
    sigmoid. expert_scale: the weight of a chosen expert is multiplied by a number of the expert's own. on_inputs: the
    weights multiply the inputs of the experts, not their outputs, and the router's outputs are compared as they are
    (Llama 4). margin: two experts are chosen, and each is weighed by a softmax of its own among the router's outputs
    that lie within this part of the largest (Phi-3.5-MoE).
    """

    router: Projection
    expert: MlpBlock
    num: int
    chosen: int
    normalise: bool
    scores: str = "softmax"
    correction: bool = False
    groups: tuple[int, int, int] | None = None
    scale: float = 1.0
    eps: float = 0.0
    latent: tuple[Projection, Projection] | None = None
    shared: MlpBlock | None = None
    shared_gate: Projection | None = None
    expert_scale: bool = False
    on_inputs: bool = False
    margin: float | None = None

    name = "experts"

    @property
    def matrices(self) -> Counter[Projection]:
        # Counted, not listed: a damaged config may claim millions of experts.
        found = Counter([self.router] if self.shared_gate is None else [self.router, self.shared_gate])
        found.update(dict.fromkeys(self.expert.matrices, self.num))
        found.update(self.latent or ())
        found.update([] if self.shared is None else self.shared.matrices)
        return found

    @property
    def mlps(self) -> list[MlpBlock]:
        return [self.expert] if self.shared is None else [self.expert, self.shared]

    @property
    def norms(self) -> dict[str, Norm]:
        return {}

    @property
    def vectors(self) -> dict[str, tuple[int, ...]]:
        names = {"correction": self.correction, "expert_scale": self.expert_scale}
        return {name: (self.num,) for name, there in names.items() if there}

    def roles(self) -> dict[str, Projection]:
        """Name its matrices by their roles."""
        found = {"router": self.router, **dict(zip(("latent_in", "latent_out"), self.latent or (), strict=False))}
        for expert in range(self.num):
            found |= {f"experts.{expert}.{role}": matrix for role, matrix in self.expert.roles().items()}
        if self.shared is not None:
            found |= {f"shared.{role}": matrix for role, matrix in self.shared.roles().items()}
        return found | ({} if self.shared_gate is None else {"shared_gate": self.shared_gate})

    @classmethod
    def of(cls, config: ModelConfig) -> "ExpertsBlock":
        """Describe the mixture of a model by its config."""
        shared, hidden, latent = config.shared_expert_size, config.hidden_size, config.expert_latent_size
        bias = config.mlp_bias
        around = (Projection("latent", hidden, (latent,), bias), Projection("latent", latent, (hidden,), bias))
        return cls(
            router=Projection("router", hidden, (config.num_experts,), config.router_bias),
            expert=mlp_of(config, config.expert_size or config.intermediate_size, config.expert_bias, latent),
            num=config.num_experts,
            chosen=config.num_experts_per_token,
            normalise=config.norm_top_k,
            scores=config.router_scores,
            correction=config.router_correction,
            groups=config.router_groups,
            scale=config.router_scale,
            eps=config.norm_top_k_eps,
            latent=around if latent else None,
            shared=mlp_of(config, shared, config.mlp_bias) if shared else None,
            shared_gate=Projection("shared_gate", hidden, (1,)) if config.shared_expert_gate else None,
        )


def mixtures_of(decoder: DecoderDescription) -> list[ExpertsBlock]:
    """List the mixture of experts of every layer that has one."""
    found = [getattr(layer.mlp, "mixture", layer.mlp) for layer in decoder.layers]
    return [mixture for mixture in found if isinstance(mixture, ExpertsBlock)]
