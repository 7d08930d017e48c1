"""The draft model beside a model: which files it is read from, and with which settings."""

import json

import pytest

from tests.marks import needs_native
from tests.tiny_models import save
from tokenmill.engine import load as module
from tokenmill.engine.load import load_draft_model
from tokenmill.errors import CapacityError, ConfigError
from tokenmill.loader import load_model as load_module
from tokenmill.loader.load_model import load_model, resolve_checkpoint
from tokenmill.loader.pack import save_packed_model
from tokenmill.settings.engine_config import EngineConfig
from tokenmill.weights.checkpoint import open_checkpoint


@pytest.fixture(scope="module")
def other(models):
    """A model whose context is shorter."""
    return save("llama-yarn-stretched", models)


def drafted(path, name, **settings):
    """The target and its draft model."""
    given = {"program": "eager", "dtype": "float32", "device": "cpu", "threads": 1, "packed_cache": False, **settings}
    checkpoint = open_checkpoint(path)
    config = EngineConfig(model=str(path), draft_model=str(name), **given)
    target = load_model(checkpoint, resolve_checkpoint(checkpoint, config))
    return target, load_draft_model(checkpoint, target, None)


@pytest.mark.parametrize("scheme", ["q8", "q4"])
def test_the_same_model_with_smaller_weights(llama, scheme):
    settings = {"max_sequences": 3, "max_length": 40, "max_step_tokens": 50, "block_size": 8, "prefix_cache": False}
    target, draft = drafted(llama, scheme, dtype="bfloat16", **settings)
    config = draft.config
    assert (config.scheme, config.dtype, config.model) == (scheme, "bfloat16", str(llama))
    names = "max_sequences max_length max_step_tokens block_size cache_tokens prefix_cache threads device fingerprint"
    for name in [*names.split(), "packed_cache", "packed_limit"]:
        assert getattr(config, name) == getattr(target.config, name), name
    assert draft.fingerprint == target.fingerprint


def test_another_model(llama, other):
    target, draft = drafted(llama, other, max_length=100, dtype="bfloat16", fingerprint="full")
    assert draft.config.model == str(other) and draft.fingerprint != target.fingerprint
    assert draft.config.dtype == "float32", "its own"
    assert draft.config.max_length == 100 and draft.config.fingerprint == "full"


@pytest.mark.parametrize("name", ["q8", "another"])
def test_each_model_is_resolved_once(llama, other, name, monkeypatch):
    given, resolve = [], load_module.resolve
    monkeypatch.setattr(load_module, "resolve", lambda *args: given.append(args[0]) or resolve(*args))
    drafted(llama, other if name == "another" else name)
    assert [each.draft_model is None for each in given] == [False, True]


@pytest.mark.parametrize(("block_size", "wanted"), [(None, None), (8, 8), (49, 49), (50, None), (51, None)])
def test_a_shorter_context_ends_its_drafts(llama, tmp_path, block_size, wanted):
    other = save("mistral", tmp_path)
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 50}))
    target, draft = drafted(llama, other, max_length=128, block_size=block_size)
    assert (draft.config.max_length, target.config.max_length) == (50, 128)
    assert draft.config.block_size == (wanted or (32 if draft.spec.attends else 50)), "None: what its program has"


def test_what_does_not_fit_beside_the_model(llama, monkeypatch):
    def free(left):
        monkeypatch.setattr(module, "free_bytes", lambda device: left)

    free(10**9)
    _, draft = drafted(llama, "q8")
    needed = draft.resolved.cache.num_bytes + draft.resolved.weight_bytes
    free(needed)
    drafted(llama, "q8")
    free(needed - 1)
    with pytest.raises(
        CapacityError, match=r"^memory for the draft model q8: .*; change draft_model, max_length or max"
    ):
        drafted(llama, "q8")


@needs_native
def test_a_packed_model_has_no_other_weights(llama, tmp_path):
    packed = tmp_path / "x.packed"
    config = EngineConfig(program="native", dtype="float32", threads=1)
    save_packed_model(open_checkpoint(llama), config, packed, lambda *_: None)
    said = "draft_model = 'q8' is not allowed: the name of a model: a packed model cannot be read with other weights"
    with pytest.raises(ConfigError, match=said):
        drafted(packed, "q8", program="auto", dtype="auto")
    _, draft = drafted(packed, llama, program="auto", dtype="auto")
    assert draft.config.model == str(llama)


@needs_native
def test_copies_serve_the_draft_model_too(llama, tmp_path, monkeypatch):
    monkeypatch.setenv("TOKENMILL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("tokenmill.loader.packed_copy.SMALLEST", 0)
    kinds = []
    real = module.load_with_copy
    monkeypatch.setattr(
        module, "load_with_copy", lambda source, *more: kinds.append(type(source).__name__) or real(source, *more)
    )
    for _ in range(2):
        drafted(llama, "q8", program="auto", packed_cache=True)
    assert kinds == ["PlainCheckpoint", "PackedCheckpoint"]


def test_progress_is_told(llama):
    told = []
    checkpoint = open_checkpoint(llama)
    config = EngineConfig(model=str(llama), draft_model="q8", program="eager", threads=1, packed_cache=False)
    target = load_model(checkpoint, resolve_checkpoint(checkpoint, config))
    load_draft_model(checkpoint, target, lambda done, total: told.append((done, total)))
    assert told[-1][0] == told[-1][1] > 0
