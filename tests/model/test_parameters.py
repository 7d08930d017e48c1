"""Names and shapes of parameters from the description alone: those of the modules, for every family and departure."""

from dataclasses import replace

import pytest

from tests.model.test_description import DEPARTURES
from tests.tiny_models import TINY, save
from tokenmill.model.config import ModelConfig, Rope
from tokenmill.model.description import describe
from tokenmill.model.families import read_config
from tokenmill.model.parameters import join, matrices_of, parameter_shapes
from tokenmill.quant.matrix import Matrix
from tokenmill.quant.schemes import Scheme
from tokenmill.settings.engine_config import FUSIBLE
from tokenmill.weights.checkpoint import read_config_json
from tokenmill.weights.load import empty_decoder

PLAIN = ModelConfig("llama", 11, 6, 2, 2, 1, 4, 8, 9, rope=Rope(4, 10000.0))


def check(config):
    decoder = empty_decoder(config, Scheme(), 9, FUSIBLE)
    made = {name: tuple(parameter.shape) for name, parameter in decoder.named_parameters()}
    assert parameter_shapes(describe(config)) == made
    matrices = {path: module for path, module in decoder.named_modules() if isinstance(module, Matrix)}
    found = matrices_of(describe(config))
    assert found.keys() == {*matrices, "head"}
    assert all((found[path].outputs, found[path].inputs) == module.weight.shape for path, module in matrices.items())


@pytest.mark.parametrize("departures", [*DEPARTURES, {"layer_kv_heads": (1, 2), "layer_head_dims": (4, 2)}])
def test_the_parameters_of_a_departure(departures):
    check(replace(PLAIN, **departures))


@pytest.mark.parametrize("name", TINY)
def test_the_parameters_of_a_family(name, tmp_path):
    check(read_config(read_config_json(save(name, tmp_path))))


def test_the_path_of_a_module():
    assert join(3, "attention.qkv") == "layers.3.attention.qkv" and join(None, "head") == "head"
