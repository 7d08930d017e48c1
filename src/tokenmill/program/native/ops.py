"""A decoder's description as the flat list of operations that the native program runs: embed, then per layer norm, the
mixer (attention: qkv, attend, out), norm, MLP, at last norm and head. Families differ in the list, not in C++.

A parallel layer norms for both its halves before either adds to the residual stream. The rows before a norm that
follows a half are stored first, and added by the norm.
"""

import ctypes
from typing import Any

import torch

from tokenmill.cache.pool import LayerKept, LayerStates
from tokenmill.kernels.native_structs import TmOp
from tokenmill.model.beside import BesideBlock
from tokenmill.model.blocks import Norm, Projection
from tokenmill.model.description import DecoderDescription, LayerDescription, MlpBlock
from tokenmill.model.mixers import Mixer
from tokenmill.model.mixers.attention import AttentionBlock
from tokenmill.model.mixers.latent import LatentBlock
from tokenmill.model.mixture import ExpertsBlock
from tokenmill.model.parameters import join, parameter_shapes
from tokenmill.model.sparse import SparseMlpBlock
from tokenmill.model.streams import StreamsInputs
from tokenmill.program.native.attention import add_attention, behind_gates
from tokenmill.program.native.latent import add_latent
from tokenmill.program.native.layouts import TILE
from tokenmill.program.native.lent import LentOps, add_embedding, add_lent_head
from tokenmill.program.native.mtp import add_mtp
from tokenmill.program.native.op_list import (
    ACTIVATED,
    ADD,
    ATTENTION_IN,
    CHOOSE,
    COMBINE,
    COPY,
    EXPERT,
    GATED,
    GATED_SHARED,
    GATHERED,
    IDENTITY,
    IN_PLACE,
    LATENT,
    LOGITS,
    MLP_IN,
    MLP_INNER,
    NO_SHARED,
    NORM,
    ROUTER,
    SHARED,
    SHARED_GATE,
    STORE,
    SWIGLU,
    TO_BUFFER,
    OpList,
)
from tokenmill.program.native.per_layer import add_inputs
from tokenmill.program.native.position_tables import PositionTables
from tokenmill.program.native.spec import ACTIVATIONS, has_coded_embedding
from tokenmill.program.native.state_mixers import add_mixer
from tokenmill.program.native.streams import Around, add_expand, add_join, add_sparse
from tokenmill.program.native.units import Linear
from tokenmill.program.native.weights import Packed, Packing
from tokenmill.quant.schemes import Scheme


class Ops:
    """The list of operations. The description says what there is to do; `weights` places the matrices and tensors.

    array: the list as C has it; this object keeps alive what it points to. lent: an embedding and
    a head that are not read again.
    """

    def __init__(
        self,
        decoder: DecoderDescription,
        scheme: Scheme,
        dtype: str,
        kept: list[LayerKept],
        weights: Packing | Packed,
        num_positions: int,
        lent: LentOps | None = None,
    ) -> None:
        self.kept, self._list = kept, OpList(weights, parameter_shapes(decoder))
        self._tables = PositionTables(decoder, num_positions, self._list.keep)
        config = decoder.config
        is_coded, embed = has_coded_embedding(config, scheme), None
        if not config.given_width:
            embed = add_embedding(self._list, decoder, scheme, dtype, lent)
            if config.embedding_norm == "own":
                self._norm("embedding_norm", decoder.norm, 0, IN_PLACE)
        if decoder.mtp is not None:
            add_mtp(self._list, decoder.mtp)
        if decoder.per_layer is not None:
            add_inputs(self._list, decoder.per_layer, dtype)
        streams = decoder.per_layer if isinstance(decoder.per_layer, StreamsInputs) else None
        if streams is not None:
            add_expand(self._list, streams)
        for layer, (description, numbers) in enumerate(zip(decoder.layers, decoder.kept_by, strict=True)):
            self._layer(layer, description, [kept[number] for number in numbers])
        if streams is not None:
            add_join(self._list, streams)
        self._norm("norm", decoder.norm, MLP_IN, LOGITS)
        logits: dict[str, Any] = {"scale": config.logit_multiplier, "softcap": config.logit_softcap or 0.0}
        if lent is not None:
            add_lent_head(self._list, lent)
        elif config.has_head:
            self._list.linear([(None, "head")], decoder.head, LOGITS, MLP_IN, **logits)
        self._list.place()
        if embed is not None and lent is None and is_coded and config.tie_embeddings:
            head = self._list.linears[-1].op
            embed.units, embed.num_units = head.units, head.num_units
        self.array: ctypes.Array[TmOp] = self._list.array()

    @property
    def linears(self) -> list[tuple[Linear, int]]:
        """List the matrices that it multiplies by, with the places of their operations in the list."""
        return list(zip(self._list.linears, self._list.places, strict=True))

    def addresses(self, parameter: str) -> list[tuple[int, float]]:
        """List where a small tensor is kept, each with the number that is added to it there."""
        return self._list.kept[parameter]

    def _layer(self, layer: int, description: LayerDescription, kept: list[LayerKept]) -> None:
        mlp_norm = "attention_norm" if description.shared_norm else "mlp_norm"
        around = Around(self._list, layer, description.per_layer)
        around.begin()
        if description.mixes:
            self._before(layer, "attention_norm", description, ATTENTION_IN)
        around.add_laurel()
        if description.parallel:
            self._before(layer, mlp_norm, description, MLP_IN)
        if description.mixes:
            for mixer, own in zip(description.mixers, kept, strict=True):
                self._mixer(layer, description, mixer, own)
            self._after(layer, "attention_after_norm", description, column=behind_gates(description.mixers))
        around.between(description.before)
        if description.mlp is None:
            return
        if not description.parallel and not description.mlp.norms:
            self._before(layer, mlp_norm, description, MLP_IN)
        column, rescale = self._second_half(layer, description, description.mlp), self._rescale(layer, description)
        is_last = description.per_layer is None
        self._after(layer, "mlp_after_norm", description, column=column, **(rescale if is_last else {}))
        around.end(**rescale)

    def _second_half(self, layer: int, description: LayerDescription, block: Any) -> int:
        """Add an entry of MLPS; return the first column of what it stores, if a norm follows."""
        if isinstance(block, SparseMlpBlock):
            return add_sparse(self._list, layer, block, **self._joins(description))
        if isinstance(block, BesideBlock):
            self._beside(layer, block, description)
            return block.norm.size
        if isinstance(block, ExpertsBlock):
            self._experts(layer, "mlp", block, description)
        else:
            self._mlp(layer, ["mlp"], block, MLP_IN, **self._joins(description))
        return 0

    def _rescale(self, layer: int, description: LayerDescription) -> dict[str, float]:
        """Find the number by which the output of a layer is multiplied. A norm after the MLP adds to it last."""
        if not description.scalar:
            return {}
        return {"rescale": ctypes.c_float.from_address(self._list.keep(join(layer, "scalar"))).value}

    def _beside(self, layer: int, block: BesideBlock, description: LayerDescription) -> None:
        """Add experts, then the MLP beside them. Both results are stored, normed, and added to each other."""
        width = block.norm.size
        self._norm(join(layer, "mlp.router_norm"), block.norm, ATTENTION_IN, scale=width**-0.5)
        self._norm(join(layer, "mlp.mixture_norm"), block.norm, MLP_IN)
        self._experts(layer, "mlp.mixture", block.mixture, description, routed=ATTENTION_IN)
        self._norm(join(layer, "mlp.mixture_after_norm"), block.norm, 0, STORE)
        self._norm(join(layer, "mlp.dense_norm"), block.norm, MLP_IN)
        self._mlp(layer, ["mlp.dense"], block.dense, MLP_IN, STORE, column=width)
        self._norm(join(layer, "mlp.dense_after_norm"), block.norm, 0, STORE, column=width, gated=1)

    def _mixer(self, layer: int, description: LayerDescription, mixer: Mixer, kept: LayerKept) -> None:
        """Add the operations of a mixer, which adds its results to the residual stream before the next one begins."""
        if isinstance(kept, LayerStates):
            add_mixer(self._list, layer, mixer, kept, self._joins(description))
        elif isinstance(mixer, LatentBlock):
            add_latent(self._list, layer, mixer, kept, self._tables.fields(mixer), self._joins(description))
        else:
            assert isinstance(mixer, AttentionBlock), "other mixers keep states"
            add_attention(self._list, layer, mixer, kept, self._tables, self._joins(description))

    def _before(self, layer: int, role: str, description: LayerDescription, to: int) -> None:
        """Add the operation that makes the input of attention or of an MLP."""
        if description.before is None or role in description.left_out:
            self._list.add(COPY, to=to)
        else:
            self._norm(join(layer, role), description.before, to)

    def _joins(self, description: LayerDescription) -> dict[str, Any]:
        """Choose the epilogue of attention or of an MLP: add to the residual stream, or store for a norm."""
        if description.after is None or description.norms_sums:
            return {"epilogue": ADD, "scale": description.multiplier}
        return {"epilogue": STORE}

    def _after(self, layer: int, role: str, description: LayerDescription, **more: Any) -> None:
        if description.after is None or role in description.left_out:
            return
        if description.norms_sums:
            self._norm(join(layer, role), description.after, 0, IN_PLACE)
        else:
            self._norm(join(layer, role), description.after, 0, ADD, **{"scale": description.multiplier, **more})

    def _norm(self, path: str, norm: Norm, to: int, epilogue: int = TO_BUFFER, **more: Any) -> None:
        weight, bias = self._list.factors(path, norm), self._list.keep(f"{path}.bias") if norm.bias else None
        fields: dict[str, Any] = {"weight": weight, "bias": bias, "eps": norm.eps, **more}
        self._list.add(NORM, to=to, epilogue=epilogue, centred=int(norm.kind == "layer"), **fields)

    def _experts(
        self, layer: int, role: str, block: ExpertsBlock, description: LayerDescription, routed: int = MLP_IN
    ) -> None:
        """Add a mixture. routed: the buffer that the router reads."""
        mixture: dict[str, Any] = {"experts": block.num, "chosen": block.chosen, "on_inputs": int(block.on_inputs)}
        self._list.linear([(layer, f"{role}.router")], block.router, ROUTER, routed, unit=TILE)
        correction = self._list.keep(join(layer, f"{role}.correction")) if block.correction else None
        groups, chosen_groups, best = block.groups or (0, 0, 0)
        choice: dict[str, Any] = {"groups": groups, "chosen_groups": chosen_groups, "group_best": best}
        choice |= {"scale": block.scale, "correction": correction}
        if block.margin is not None:
            choice |= {"within_margin": 1, "margin": block.margin}
        if block.expert_scale:
            choice["expert_scales"] = self._list.keep(join(layer, f"{role}.expert_scale"))
        choice |= {"eps": block.eps, "normalise": int(block.normalise), "sigmoid": int(block.scores == "sigmoid")}
        source = MLP_IN
        if block.latent is not None:
            source, latent = LATENT, [(layer, f"{role}.latent_in")]
            self._list.linear(latent, block.latent[0], ACTIVATED, MLP_IN, to=LATENT, activation=IDENTITY)
        self._list.add(CHOOSE, from_=source, to=GATHERED, **mixture, **choice)
        experts = [f"{role}.experts.{expert}" for expert in range(block.num)]
        self._mlp(layer, experts, block.expert, GATHERED, EXPERT, **mixture)
        if block.latent is not None:
            self._leave_latent(layer, block, block.latent[1], description, mixture)
            return
        shared = NO_SHARED
        if block.shared is not None:
            self._mlp(layer, [f"{role}.shared"], block.shared, MLP_IN, STORE)
            shared = SHARED
        if block.shared_gate is not None:
            self._list.linear([(layer, f"{role}.shared_gate")], block.shared_gate, SHARED_GATE, MLP_IN)
            shared = GATED_SHARED
        self._list.add(COMBINE, shared=shared, **mixture, **self._joins(description))

    def _leave_latent(
        self,
        layer: int,
        block: ExpertsBlock,
        matrix: Projection,
        description: LayerDescription,
        mixture: dict[str, Any],
    ) -> None:
        """Add the sums of experts that write latent rows, and the shared expert, to the residual stream one by one."""
        self._list.add(COMBINE, epilogue=TO_BUFFER, to=LATENT, outputs=matrix.inputs, **mixture)
        self._list.linear([(layer, "mlp.latent_out")], matrix, source=LATENT, **self._joins(description))
        if block.shared is not None:
            self._mlp(layer, ["mlp.shared"], block.shared, MLP_IN, **self._joins(description))

    def _mlp(
        self,
        layer: int,
        roles: list[str],
        block: MlpBlock,
        source: int,
        epilogue: int,
        scale: float = 1.0,
        column: int = 0,
        **mixture: Any,
    ) -> None:
        inner: dict[str, Any] = {"to": MLP_INNER, **self._activation(layer, block), **mixture}
        ups, downs = ([(layer, f"{role}.{name}") for role in roles] for name in ("up", "down"))
        self._list.linear(ups, block.up, GATED if block.gated else ACTIVATED, source, **inner)
        self._list.linear(downs, block.down, epilogue, MLP_INNER, scale=scale, column=column, **mixture)

    def _activation(self, layer: int, block: MlpBlock) -> dict[str, Any]:
        """Find the activation and its numbers: given, or learned and brought into the form in which they are used."""
        if block.swiglu is not None:
            alpha, limit = block.swiglu
            return {"activation": SWIGLU, "act_a": alpha, "act_b": limit}
        found: dict[str, Any] = {"activation": ACTIVATIONS[block.activation]}
        if block.act_parameters:
            places = (self._list.keep(join(layer, f"mlp.act.{name}")) for name in block.act_parameters)
            positive, negative = (ctypes.c_float.from_address(place).value for place in places)
            alphas = torch.nn.functional.softplus(torch.tensor([positive, negative])).tolist()
            found |= {"act_a": alphas[0], "act_b": 0.5 + alphas[1]}
        return found
