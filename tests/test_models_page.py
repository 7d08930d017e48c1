"""docs/models.md: which families were checked against what. `python -m tests.test_models_page` writes the page.

Its tables are made of the registry, of the tiny models that the laws run over, of the configs in tests/weights/configs,
and of what llama.cpp's converter wrote for benchmarks/gguf_families.py.
"""

import json
from collections import defaultdict
from pathlib import Path

import pytest

from tests.published import PUBLISHED, READ, REFUSED, without_codes
from tests.tiny_models import TINY, config_of
from tokenmill import registry
from tokenmill.errors import CheckpointError
from tokenmill.hub.names import locate
from tokenmill.hub.short_names import HUB_NAMES, SHORT_NAMES
from tokenmill.loader.at_hand import BASE, INSTRUCT
from tokenmill.model.families import find_family, read_config
from tokenmill.program.native.spec import ACTIVATIONS
from tokenmill.units import counted, size
from tokenmill.weights.checkpoint import open_checkpoint

REPOSITORY = Path(__file__).parent.parent
PAGE = REPOSITORY / "docs" / "models.md"
CONVERTED = REPOSITORY / "tests" / "weights" / "gguf" / "converted_keys.json"
REAL = {"smollm2-135m": "llama", "gemma3-270m": "gemma3_text"}
"""The families of the models with short names."""

HEAD = """# Models

A model runs if its config.json, or its GGUF file, is of a family in the first table and says nothing that the family
does not know. Reading is strict: what could change the text and is not understood is refused in a sentence, never
ignored. This shows it without loading anything, also of a model that no program can run:

```
tokenmill info smollm2-135m
```

It lists the sizes, the *features* (what departs from a plain decoder, such as windows or experts), the tensors by
type, and under "runs here" the program that would be taken, with the reason against each faster one.

`chat` and `serve` sample as the model's generation_config.json (of a GGUF file `general.sampling`, or else the maker of
the model with a short name) recommends; `generate` and `decode` are greedy unless `--generation-config` or a sampling
option asks for something else. [Sampling](sampling.md#what-holds-where-nothing-is-said) tells the order.

## Families

"transformers": by law 1 tiny models with random weights, in so many configurations, give the logits of transformers.
"native": the native program computes all of them, with the bits of any other chunk and batch. "GGUF": the architecture
that is read and written. "llama.cpp": so many of the configurations were compared with llama.cpp in both directions
(`benchmarks/gguf_families.py`). "published": configs of public models that are read, with as many parameters as they
have (`tests/weights/configs/`). "real weights": models whose texts are compared with other engines'.
"""

SHORT = """## Short names

Each stands for one file, which `tokenmill pull NAME` fetches, and has a sha256 by which it is known, or none yet: then
the first fetch counts ([models at hand](models-at-hand.md#short-names)). `tokenmill list --names` shows the same. The
sampling is what the maker recommends, and whether its `generation_config.json` or the model card says so.
"""

REFUSALS = """## What is refused, and why

The refusal of a family is a sentence with the word that matters, found by the keys of its config.json, the names of its
classes, or its own name; a misspelt name gets the nearest one.

 - **States.** Of layers that keep a state in the place of K and V rows, short convolutions, gated delta nets and
   Mamba 2 are implemented, and Kimi delta attention; Mamba 1, RWKV and other linear attention are not.
 - **Latent attention** that chooses its tokens (DeepSeek-V3.2 and V4, GLM-5) is not implemented; the plain one is.
 - **Pictures and sound.** Of models that see, `gemma3`, `gemma3n`, `gemma4`, `gemma4_unified`, `mistral3`, `qwen2_vl`,
   `qwen2_5_vl`, `qwen3_vl`, `qwen3_vl_moe`, `qwen3_5`, `qwen3_5_moe`, `llama4`, `kimi_k25` and `muse_glimmer` are read
   for their text part; no inputs but text are taken.
 - **llama4** beyond its first chunk: texts are at most `attention_chunk_size` tokens long, 8,192 in the published
   models. **phimoe** as a GGUF file: llama.cpp weighs its experts otherwise than its authors do.
 - **bitnet**: norms inside attention and MLP. Published files have ternary weights, or ask that they be made ternary as
   they are loaded (`online`); either way each token's activations are rounded to int8 before every product, so that
   plain products would give another text.
 - **Encoders, and models of text and something else** such as whisper or T5.

Of the public configs in `tests/weights/configs/` these are refused; the last column has what is told of them.
"""


def converted():
    """The tiny models of which llama.cpp's converter has written a file."""
    return set(json.loads(CONVERTED.read_text(encoding="utf-8"))) if CONVERTED.exists() else set()


def is_native(name):
    """Whether the native program has all that a tiny model needs: an activation is all that it refuses of a model."""
    kind, numbers = TINY[name]
    return read_config(config_of(kind, numbers).to_dict()).activation in ACTIVATIONS


def table(head, rows):
    head, *rows = (f"| {' | '.join(map(str, line))} |\n" for line in [head, *rows])
    return head + "|---" * (head.count("|") - 1) + "|\n" + "".join(rows)


def families():
    known, compared = registry.FAMILIES, converted()
    for family in known:
        tiny = [name for name, (kind, _) in TINY.items() if kind == family]
        gguf = find_family({"model_type": family}).gguf
        read = [name for name in READ if PUBLISHED[name]["config"]["model_type"] == family]
        yield (
            f"`{family}`",
            registry.help_of(known[family]),
            len(tiny) or "",
            "yes" if tiny and all(map(is_native, tiny)) else "",
            ", ".join(f"`{each}`" for each in (gguf.architecture, gguf.with_experts) if each) if gguf else "",
            len(compared & set(tiny)) or "",
            len(read) or "",
            ", ".join(f"`{name}`" for name, real in REAL.items() if real == family),
        )


def refused():
    """The refused configs by family, with what is told of them."""
    models = defaultdict(lambda: defaultdict(list))
    for name in REFUSED:
        with pytest.raises(CheckpointError) as told:
            read_config(without_codes(PUBLISHED[name]["config"]))
        models[PUBLISHED[name]["config"]["model_type"]][str(told.value).split(": ", 1)[1]].append(name)
    for family, sentences in sorted(models.items()):
        for sentence, names in sentences.items():
            yield f"`{family}`", ", ".join(names), sentence.split("is not implemented: ")[-1].split("; docs/")[0]


def short_names():
    for name, model in SHORT_NAMES.items():
        where = f"in {counted(len(model.wheels), 'package')}"
        yield f"`{name}`", model.title, *_size_context_kind(model), _sampling(model), where, f"`{model.sha256[:16]}…`"
    for name, model in HUB_NAMES.items():
        yield (
            f"`{name}`",
            model.title,
            *_size_context_kind(model),
            _sampling(model),
            f"`{model.hub_name}`",
            f"`{model.sha256[:16]}…`" if model.sha256 else "first fetch",
        )


def _size_context_kind(model):
    kind = BASE if model.is_base else INSTRUCT
    return size(model.num_bytes) if model.num_bytes else "not known", f"{model.context:,}", kind


def _sampling(model):
    """What the maker recommends, and where: short, for a cell."""
    found, origin = model.sampling, model.sampling.origin.removeprefix("the maker's ")
    words = ", ".join(f"{name} {value:g}" for name, value in found.items())
    return f"{words} ({origin})" if found else "nothing"


def page():
    columns = ("short name", "model", "size", "context", "kind", "recommended sampling", "what it stands for", "sha256")
    short = table(columns, short_names())
    head = ("family", "models", "transformers", "native", "GGUF", "llama.cpp", "published", "real weights")
    return "\n".join(
        [
            HEAD,
            table(head, families()),
            SHORT,
            short,
            REFUSALS,
            table(("family", "models", "what is told of it"), refused()),
        ],
    )


def test_the_page_of_models_is_what_the_tables_say():
    assert PAGE.read_text(encoding="utf-8") == page()


def test_every_family_is_compared_with_transformers():
    assert {kind for kind, _ in TINY.values()} == set(registry.FAMILIES)


def test_every_short_name_has_a_family():
    assert set(REAL) == set(SHORT_NAMES)


@pytest.mark.model
def test_the_real_model_is_of_that_family():
    assert read_config(open_checkpoint(locate("smollm2-135m")).config).family == REAL["smollm2-135m"]


def test_the_text_part_is_all_of_those_that_see():
    seeing = [name for name in registry.FAMILIES if find_family({"model_type": name}).text is not None]
    assert all(f"`{name}`" in REFUSALS for name in seeing)
    assert all("vision_config" in without_codes(TINY[name][1]) for name in seeing)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
