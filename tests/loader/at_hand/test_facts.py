"""The facts of `tokenmill list`: what people call the form of a file, and what two forms of one model have alike."""

import pytest

from tests import gguf_files
from tests.tiny_models import save
from tokenmill.cli.main import main
from tokenmill.loader.at_hand.facts import facts_of, plain_title

KIND = gguf_files.KIND


@pytest.mark.parametrize(
    ("names", "title"),
    [
        (
            [
                "SmolLM2-135M-Instruct.Q4_1.gguf",
                "HuggingFaceTB/SmolLM2-135M-Instruct-GGUF",
                "smollm2-135m-instruct-q8_0.gguf",
                "SmolLM2-135M-Instruct-AWQ",
                "SmolLM2 135M Instruct",
                "SmolLM2-135M-Instruct-i1-IQ2_M-00001-of-00002.gguf",
            ],
            "smollm2135minstruct",
        ),
        (["Qwen/Qwen3-0.6B", "qwen3-0.6b-bf16.gguf", "Qwen3-0.6B-4bit"], "qwen306b"),
        (["Qwen2.5-0.5B"], "qwen2505b"),
        (["q4.gguf"], "q4"),
    ],
)
def test_the_title_without_its_form(names, title):
    assert {plain_title(name) for name in names} == {title}


@pytest.mark.parametrize(
    ("file_type", "form"), [(15, "Q4_K_M"), (0, "F32"), (1, "F16"), (None, "Q8_0"), (999, "Q8_0"), ("x", "Q8_0")]
)
def test_the_form_of_a_gguf_file(tmp_path, file_type, form):
    """As general.file_type says, in llama.cpp's words; without it the type of most bytes."""
    path = gguf_files.write(tmp_path / "x.gguf", "llama", KIND.Q8_0, metadata={"general.file_type": file_type})
    assert facts_of(path).quantization == form


def test_the_form_of_a_directory(tmp_path, llama):
    assert facts_of(llama).quantization == "float32"
    coded = tmp_path / "coded"
    assert main(["quantize", str(llama), "--scheme", "q4", "-o", str(coded), "--quiet"]) == 0
    assert (facts_of(coded).family, facts_of(coded).quantization) == ("llama", "tokenmill, 4 bits")


def test_forms_of_one_model_have_the_same_shape_and_others_do_not(tmp_path, llama):
    first, second = (
        facts_of(gguf_files.write(tmp_path / f"{kind.name}.gguf", "llama", kind)) for kind in (KIND.F16, KIND.Q4_0)
    )
    assert first.shape == second.shape != facts_of(llama).shape
    assert facts_of(save("qwen2", tmp_path)).shape != facts_of(llama).shape
    assert first.num_parameters == second.num_parameters


def test_what_is_no_model_has_only_a_reason(tmp_path):
    path = tmp_path / "x.gguf"
    path.write_bytes(b"GGUF")
    found = facts_of(path)
    assert (found.family, found.runs, found.shape) == (None, None, ()) and "shorter than a header" in found.why_not
    assert facts_of(tmp_path / "nothing").why_not
