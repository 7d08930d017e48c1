"""The adapters that settings name, and what `plan` counts of them."""

import json

import pytest

from tests.peft_adapters import write_small_adapter
from tests.tiny_models import save
from tokenmill import ConfigError, load
from tokenmill.cli.main import main
from tokenmill.weights.adapters.named import named_adapters


def test_names_and_paths():
    assert named_adapters(None) == {} == named_adapters(" , ")
    assert named_adapters(" a = x/y ,b=z=1") == {"a": "x/y", "b": "z=1"}
    for wrong in ("a", "=x", "a=", "a=x,a=y"):
        with pytest.raises(ConfigError, match="lora_modules"):
            named_adapters(wrong)


def test_plan_counts_adapters(models, tmp_path, capsys):
    """By their files, which are as large as what is held in float32."""
    model = str(save("llama", models))
    for number, name in enumerate("ab"):
        write_small_adapter(tmp_path / name, 2, 48, number)
    size = (tmp_path / "a" / "adapter_model.safetensors").stat().st_size
    facts = []
    for more in ((), ("--adapter", tmp_path / "a"), ("--lora-modules", f"a={tmp_path / 'a'},b={tmp_path / 'b'}")):
        assert main(["plan", model, "--dtype", "float32", *map(str, more), "--json"]) == 0
        facts.append(json.loads(capsys.readouterr().out))
    assert "adapters_bytes" not in facts[0]["predicted"]
    assert [each["predicted"]["adapters_bytes"] for each in facts[1:]] == [size, 2 * size]
    assert [each["total_bytes"] - facts[0]["total_bytes"] for each in facts] == [0, size, 2 * size]
    with load(model, dtype="float32", program="eager", adapter=str(tmp_path / "a")) as engine:
        assert size / 2 < engine.memory["adapters_bytes"] <= size
