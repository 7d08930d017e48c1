"""The decoder around its layers: what goes in, in which order a layer joins its halves, and what comes out."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from tokenmill.model.config import ModelConfig, Rope
from tokenmill.model.decoder import Decoder
from tokenmill.quant.schemes import Scheme, find_scheme
from tokenmill.registry import SCHEMES
from tokenmill.settings.engine_config import FUSIBLE

V, D, P = 11, 6, 9
PLAIN = ModelConfig("llama", V, D, 2, 2, 1, 4, 8, P, rope=Rope(4, 10000.0))


def decoder(scheme=None, **departures):
    made = Decoder(replace(PLAIN, **departures), scheme or Scheme(), P, FUSIBLE)
    with torch.random.fork_rng():
        torch.manual_seed(5)
        for parameter in made.parameters():
            torch.nn.init.normal_(parameter)
    made.finish()
    return made.requires_grad_(False)


def step(tokens, positions, rows=None):
    rows_R = None if rows is None else torch.tensor(rows, dtype=torch.int64)
    num_rows = len(tokens) if rows is None else len(rows)
    return SimpleNamespace(
        token_ids_T=torch.tensor(tokens), positions_T=torch.tensor(positions), rows_R=rows_R, num_rows=num_rows
    )


STEP = step([3, 1, 10], [0, 1, 8])


@pytest.mark.parametrize("multiplier", [1.0, 2.5])
@pytest.mark.parametrize("positions", ["rope", "learned"])
def test_what_the_layers_start_from(positions, multiplier):
    learned = positions == "learned"
    made = decoder(positions=positions, embedding_multiplier=multiplier, **({"rope": None} if learned else {}))
    expected = made.embedding.weight[[3, 1, 10]] * multiplier
    if learned:
        assert made.position_embedding.weight.shape == (P, D)
        expected = expected + made.position_embedding.weight[[0, 1, 8]]
    else:
        assert made.position_embedding is None
    x, angles, _ = made.begin(STEP)
    torch.testing.assert_close(x, expected)
    assert len(angles) == 2 and all((each is None) == learned for each in angles)


def test_each_layer_has_the_angles_of_its_own_rope():
    made = decoder(num_layers=4, windows=(None,), ropes=(Rope(4, 100.0), None, Rope(2, 50.0), Rope(4, 100.0)))
    first, none, second, again = made.angles(STEP.positions_T)
    assert none is None and len(made.rotary) == 2
    assert torch.equal(first[0], made.rotary[0].cos_PH[[0, 1, 8]][:, None]) and torch.equal(first[1], again[1])
    assert second[0].shape == (3, 1, 2)
    assert first[0].shape == (3, 1, 4)


@pytest.mark.parametrize("placement", ["before", "after", "both"])
@pytest.mark.parametrize("residual", ["serial", "parallel"])
@pytest.mark.parametrize("multiplier", [1.0, 0.5])
def test_how_a_layer_joins_its_halves(placement, residual, multiplier):
    layer = decoder(norm_placement=placement, residual=residual, residual_multiplier=multiplier).layers[0]
    x = torch.linspace(-1, 1, 3 * D).view(3, D)
    seen = []

    def attend(q, *_):
        seen.append(q)
        return q

    before, after = placement in ("before", "both"), placement in ("after", "both")
    norms = (layer.attention_norm, layer.mlp_norm, layer.attention_after_norm, layer.mlp_after_norm)
    assert [norm is not None for norm in norms] == [before, before, after, after]
    attended = layer.attention(layer.attention_norm(x) if before else x, None, None, None, attend)
    attended = (layer.attention_after_norm(attended) if after else attended) * multiplier
    left = x if residual == "parallel" else x + attended
    mlp = layer.mlp(layer.mlp_norm(left) if before else left)
    mlp = (layer.mlp_after_norm(mlp) if after else mlp) * multiplier
    torch.testing.assert_close(layer(x, None, None, attend, None), x + attended + mlp)
    assert torch.equal(*seen)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(("multiplier", "softcap"), [(1.0, None), (0.25, None), (1.0, 3.0), (0.25, 3.0)])
def test_logits(tied, multiplier, softcap):
    made = decoder(tie_embeddings=tied, logit_multiplier=multiplier, logit_softcap=softcap)
    assert (made.head is None) == tied
    x = torch.linspace(-2, 2, 2 * D).view(2, D)
    expected = made.norm(x) @ (made.embedding if tied else made.head).weight.T * multiplier
    if softcap is not None:
        expected = softcap * torch.tanh(expected / softcap)
    torch.testing.assert_close(made.end(x), expected)


def test_only_the_wanted_rows_have_logits():
    made = decoder()
    done = []

    def run(layer, x, angles, given, attend, layer_kv):
        done.append((layer_kv, attend))
        assert given.positions_T.tolist() == [0, 1, 8]
        return x + 1

    x = made.embedding.weight[[3, 1, 10]] + 2
    torch.testing.assert_close(made(STEP, ["a", "b"], "kernel", run), made.end(x))
    assert done == [("a", "kernel"), ("b", "kernel")]
    torch.testing.assert_close(made(step([3, 1, 10], [0, 1, 8], [2, 0]), "ab", "kernel", run), made.end(x[[2, 0]]))
    none = made(step([3, 1, 10], [0, 1, 8], []), "ab", "kernel", run)
    assert none.shape == (0, V) and none.dtype == x.dtype


def test_a_layer_too_few_of_the_cache_is_an_error():
    with pytest.raises(AssertionError, match="each mixer has a layer of the cache"):
        decoder()(STEP, ["a"], None, lambda _, x, *__: x)


def test_bytes_are_those_of_the_weights_without_the_rotary_tables():
    made = decoder()
    assert made.num_bytes == 4 * sum(parameter.numel() for parameter in made.parameters())
    assert sum(1 for _ in made.rotary.buffers()) == 2


def test_a_tied_head_has_a_matrix_of_its_own_where_the_scheme_is_not_plain():
    coded = find_scheme(next(name for name in SCHEMES if not find_scheme(name).is_plain))
    assert Decoder(replace(PLAIN, tie_embeddings=True), coded, P, FUSIBLE).head is not None
    assert decoder(tie_embeddings=False).head is not None
