"""Configs of public models, which tests/weights/configs has by family: what each says, where it was found, and what is
published of it.

source: the package or the public repository that has it. parameters: as many as transformers' class has on these
numbers, of the language model. published: as many as the hub or the model's authors say, where that was found.
refused: how the sentence begins with which tokenmill refuses it. Long lists of quantised modules, and vision towers of
some, are shortened.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "weights" / "configs"
PUBLISHED: dict[str, dict[str, Any]] = {
    name: entry
    for path in sorted(FOLDER.glob("*.json"))
    for name, entry in json.loads(path.read_text(encoding="utf-8")).items()
}
READ = [name for name, entry in PUBLISHED.items() if "refused" not in entry]
REFUSED = [name for name, entry in PUBLISHED.items() if "refused" in entry]


def without_codes(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config of the same model as plain numbers: how codes are read is tested with the codes."""
    return {key: value for key, value in config.items() if key != "quantization_config"}
