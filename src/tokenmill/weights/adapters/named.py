"""The adapters that settings name, and the sizes of their files, without torch."""

from pathlib import Path

from tokenmill.errors import ConfigError
from tokenmill.hub.weight_files import ADAPTER_WEIGHTS
from tokenmill.settings.engine_config import EngineConfig
from tokenmill.value_reader import path_of


def named_adapters(given: str | None) -> dict[str, str]:
    """Read the setting lora_modules: names and paths."""
    found: dict[str, str] = {}
    for each in filter(None, map(str.strip, (given or "").split(","))):
        name, sign, path = each.partition("=")
        if not sign or not name.strip() or not path.strip() or name.strip() in found:
            raise ConfigError("lora_modules", given, "NAME=PATH, several with commas between, each name once")
        found[name.strip()] = path.strip()
    return found


def weights_of(path: Path) -> Path:
    """Find the file with an adapter's tensors: in a directory of PEFT, or the GGUF file itself."""
    if not path.is_dir():
        return path
    return next((path / each for each in ADAPTER_WEIGHTS if (path / each).is_file()), path / ADAPTER_WEIGHTS[0])


def paths_of_settings(config: EngineConfig) -> list[Path]:
    """List the paths of the adapters that settings name."""
    return [path_of(path) for path in (*named_adapters(config.lora_modules).values(), *filter(None, [config.adapter]))]


def weights_bytes(path: Path) -> int:
    """Estimate the bytes of an adapter in memory by the size of its file. A file that is not there counts nothing."""
    file = weights_of(path)
    return file.stat().st_size if file.is_file() else 0


def adapter_bytes(config: EngineConfig) -> int:
    """Estimate the bytes in memory of the adapters that settings name: each rank has them whole."""
    return config.tensor_parallel * sum(map(weights_bytes, paths_of_settings(config)))
