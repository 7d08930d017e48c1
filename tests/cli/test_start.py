"""The modules that a process imports before its first text, with a packed copy; and those of torch later."""

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

from tests.marks import needs_native
from tests.tiny_models import KINDS, save
from tests.word_model import save_word_model

TRACING = "torch._meta_registrations torch._refs torch._prims torch._decomp torch._dynamo torch._inductor".split()
"""Modules of torch that the native program has no use for, whether the model is packed or not."""

UNUSED = [
    *TRACING,
    *"""torch.onnx sympy rich huggingface_hub jinja2 pydantic transformers gguf safetensors.numpy httpx requests
    matplotlib tokenmill.bench tokenmill.serve tokenmill.measure.profile tokenmill.program.compiled
    tokenmill.program.eager tokenmill.weights.gguf tokenmill.weights.write""".split(),
]
"""Modules that greedy generation from a packed copy has no use for."""

GENERATE = """
import io
import sys
from tokenmill.cli import main
if sys.argv[1] == "small":  # so is the model, and gets a copy all the same
    from tokenmill.loader import copies
    copies.SMALLEST = 0  # before the engine, and with it torch, is imported
    del sys.argv[1]
class Watched(io.TextIOWrapper):
    def write(self, text):
        if "first" not in globals():
            globals()["first"] = sorted(sys.modules)
        return super().write(text)
sys.stdout = Watched(sys.stdout.buffer)
code = main.main(sys.argv[1:])
print("imported", *first)
sys.exit(code)
"""

FAMILIES = """
import sys
from tokenmill.cli.process.torch_import import META_KERNELS, without_meta_kernels
with without_meta_kernels():
    from tokenmill import SamplingParams, load
    from tokenmill.loader import packed_copy
packed_copy.SMALLEST = 0
prompt, settings = [3, 1, 4, 1, 5], {"max_new_tokens": 6, "ignore_eos": True, "temperature": 0.8, "seed": 1}
for path in sys.argv[1:]:
    for chosen in ({"dtype": "float32"}, {"dtype": "bfloat16", "scheme": "q4", "cache_format": "int8"}):
        first, second = (load(path, max_length=64, **chosen) for _ in range(2))
        assert first.program_name == second.program_name == "native"
        assert first.generate(prompt, **settings).tokens == second.generate(prompt, **settings).tokens
        assert first.score(prompt, [prompt]) == second.score(prompt, [prompt])
print("without", META_KERNELS not in sys.modules)
"""

LATER = """
import sys
from tokenmill.cli.process.torch_import import META_KERNELS, without_meta_kernels
with without_meta_kernels():
    import torch
assert META_KERNELS not in sys.modules and not hasattr(torch, "_meta_registrations")
{use}
assert sys.modules[META_KERNELS] is torch._meta_registrations
with without_meta_kernels():
    assert META_KERNELS in sys.modules
"""

USES = {
    "a module of torch": "import torch._refs; assert torch._refs.__spec__.name == 'torch._refs'",
    "the module itself": "import torch._meta_registrations",
    "shapes without values": """
from torch._subclasses.fake_tensor import FakeTensorMode
with FakeTensorMode():
    assert torch.empty(3, 4).cumsum(0).sort()[0].shape == (3, 4)
""",
    "export": """
class Plus(torch.nn.Module):
    def forward(self, x): return torch.nn.functional.silu(x).cumsum(0)
exported = torch.export.export(Plus(), (torch.ones(3, 4),)).run_decompositions().module()
assert torch.equal(exported(torch.ones(3, 4)), Plus()(torch.ones(3, 4)))
""",
    "vmap": "assert torch.equal(torch.vmap(torch.sin)(torch.ones(3)), torch.ones(3).sin())",
    "compile": """
function = torch.compile(lambda x: torch.softmax(x @ x.T, -1).cumsum(0), backend="eager")
assert torch.equal(function(torch.eye(3)), torch.softmax(torch.eye(3), -1).cumsum(0))
""",
}


LONG = ("shapes without values", "export", "vmap")


def run(code, *arguments, **environment):
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **environment})
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def generate(tmp_path):
    """Runs `tokenmill generate` in a new process; gives its text, and the modules that were imported before that."""
    model = str(save_word_model(tmp_path / "model"))

    def generated(*options, **environment):
        small = () if (tmp_path / "cache").exists() else ("small",)  # the first process makes the copy
        arguments = (*small, "generate", model, "-p", "w1 w2", "-n", "4", "-q", *options)
        said = run(GENERATE, *arguments, TOKENMILL_CACHE=str(tmp_path / "cache"), **environment)
        text, _, imported = said.rpartition("imported ")
        return text, set(imported.split())

    return generated


@pytest.mark.slow
def test_nothing_unused_is_imported_before_the_first_text(generate):
    text, imported = generate()
    assert sorted(imported & {*TRACING}) == []  # nor where the model itself is read
    again, imported = generate()
    assert again == text
    assert sorted(imported & {*UNUSED}) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [("--program", "eager"), ("--temperature", "0.8", "--seed", "3"), ("--no-packed-cache",)], ids=" ".join
)
def test_texts_are_the_same_with_and_without_a_copy(generate, options):
    assert generate(*options)[0] == generate(*options)[0]


@pytest.mark.slow
def test_without_the_native_program_another_one_generates(generate):
    """The modules of torch that were left out, in the hope for the native program, are there for the other program."""
    without = {"TOKENMILL_NATIVE_LIBRARY": "none"}
    assert generate(**without)[0] == generate("--program", "eager", **without)[0]


@pytest.mark.slow
@needs_native
def test_every_family_loads_without_what_was_left_out(tmp_path):
    """No module of theirs computes a shape, packed or not."""
    paths = [str(save(family, tmp_path)) for family in KINDS]
    assert "without True" in run(FAMILIES, *paths, TOKENMILL_CACHE=str(tmp_path / "cache"))


def test_the_names_are_those_of_modules():
    own = [name for name in UNUSED if name.startswith("tokenmill.")]
    assert all(find_spec(name) for name in own)


@pytest.mark.slow
@pytest.mark.parametrize(
    "use", [pytest.param(use, id=name, marks=[pytest.mark.long] * (name in LONG)) for name, use in USES.items()]
)
def test_what_was_left_out_of_torch_is_imported_before_it_is_used(use):
    run(LATER.format(use=use))


@pytest.mark.slow
def test_a_conversation_imports_jinja(generate, tmp_path):
    template = tmp_path / "template"
    template.write_text("{% for message in messages %}{{ message.content }}{% endfor %}")
    assert "jinja2" in generate("--chat", "--chat-template", str(template))[1]
