"""What every test shares."""

import pytest
import torch

from tokenmill.weights.hub import locate

torch.set_num_threads(2)  # the machines that run these tests have two cores, and the laws hold for any number


@pytest.fixture(scope="session")
def real_model():
    """Path of SmolLM2-135M-Instruct; fetched on the first run, from the cache afterwards."""
    return locate("smollm2-135m")
