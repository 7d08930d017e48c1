"""What every test shares."""

import gc
import os

if "PYTEST_XDIST_WORKER" in os.environ:  # before torch: its idle threads would spin beside the other worker
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import pytest
import torch
import transformers
from hypothesis import HealthCheck, settings

from tests.tiny_models import save
from tokenmill.hub.names import locate

# No test may depend on how fast the machine is.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

torch.set_num_threads(2)  # the machines that run these tests have two cores, and the laws hold for any number


def pytest_collection_finish():
    """What is imported by now stays: a quarter of a second less for each full collection."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Where a module's tiny models are written."""
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def llama(models):
    """The tiny one that most things are tried on."""
    return save("llama", models)


@pytest.fixture(scope="session")
def real_model():
    """Path of SmolLM2-135M-Instruct; fetched on the first run, from the cache afterwards."""
    return locate("smollm2-135m")


@pytest.fixture(scope="session")
def real_peer(real_model):
    """The same model in transformers, float32. Loaded once: dequantising it takes ten seconds."""
    return transformers.AutoModelForCausalLM.from_pretrained(
        real_model.parent, gguf_file=real_model.name, dtype=torch.float32
    ).eval()
