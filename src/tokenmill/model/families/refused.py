"""The reason why a model of another family is not read, found by the keys of its config, the names of its classes, or
the name of the family, in this order.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from tokenmill.value_reader import brief

# Feature → the beginnings of keys that show it, in a config.json, or in GGUF metadata without the architecture.
_FEATURES: Mapping[str, tuple[str, ...]] = {
    "vision inputs": ("vision_config", "img_processor", "visual"),
    "audio inputs": ("audio_config", "audio_encoder", "sub_sampling_rate"),
    "layers with state": (
        *("mamba_", "ssm", "conv_L_cache", "linear_conv_kernel_dim", "rescale_every", "time_mix", "wkv", "shortconv."),
        "conv_states",
    ),
    "latent attention (MLA)": ("kv_lora_rank", "attention.kv_lora_rank"),
    "attention over chosen tokens": ("index_topk", "attention.indexer."),
    "embeddings for each layer": ("hidden_size_per_layer_input", "embedding_length_per_layer_input"),
    "heads of several widths": ("global_head_dim",),
    "an encoder before the decoder": ("is_encoder_decoder", "decoder_block_count"),
}
_STATES = ("conv", "mamba", "linear_attention", "recurrent")  # of `layer_types`
_TEXT = ("text_config", "llm_config")

_STATE, _LATENT, _BOTH = "layers with state", "latent attention (MLA)", "an encoder before the decoder"
_SEES, _HEARS, _ENCODER = "vision inputs", "audio inputs", "an encoder"
_SENTENCES: Mapping[str, str] = {
    _ENCODER: "it is an encoder, which writes no text",
    _BOTH: "it encodes one text and decodes another",
    _STATE: "its layers keep a state in the place of keys and values",
    _LATENT: "it has latent attention (MLA)",
    "attention over chosen tokens": "its attention chooses tokens",
    "embeddings for each layer": "its layers have embeddings of their own",
    "heads of several widths": "its layers have heads of several widths",
    _SEES: "it sees pictures",
    _HEARS: "it hears or speaks",
}
# Feature, or the sentence itself → patterns of families' names that tell it, in transformers or llama.cpp.
_NAMES: Mapping[str, str] = {
    _STATE: r""".*mamba.* .*rwkv.* jamba bamba zamba\d? falcon[_-]h1 granite[_-]?hybrid nemotron[_-]h.*
        lfm3([_-]?moe)? recurrent_gemma qwen4.* minimax bailing_hybrid lara_mini
        plamo2 xlstm zaya""",
    _LATENT: r"""deepseek_?(v?[23].*|r1) kimi_k2.* glm[_-](moe_)?dsa longcat_flash.*
        sarvam_mla plm axk\d""",
    _BOTH: r""".*t5(?!encoder).* .*bart.* .*pegasus.* m2m_100 nllb.* marian fsmt led .*prophetnet blenderbot.* mvp
        switch_transformers .*encoder-decoder seamless.* udop""",
    _HEARS: r""".*audio.* .*whisper.* .*wav.* .*speech.* voxtral.* .*asr.* .*hubert .*moonshine.* .*tts.* bark canary.*
        dia csm moshi musicgen.* musicflamingo vibevoice.* .*omni.* clap pop2piano encodec mimi""",
    _SEES: r""".*[_-]?vl([_-].*|\d.*|$) .*vlm.* .*llava.* .*vision.* .*ocr.* .*clip.* .*vit .*siglip.* idefics.*
        internvl.* paligemma mllama blip.* fuyu pixtral aria chameleon janus emu3 .*florence.*
        molmo.* ovis.* minicpm[vo].* git kosmos.* smolvlm .*docling .*multimodal perception_lm glm4v.*
        phi3_v""",
    _ENCODER: r"""(?!.*decoder).*bert(?!-generation).* .*electra xlm.* xlnet t5encoder .*embed(?!ded).* funnel
        fnet longformer gte luke esm.* canine big_bird nystromformer ernie roformer layoutlm.* deberta.* perceiver tapas
        yoso mra neomme""",
    "it guesses tokens for another model, which takes it as draft_model": r"gemma4.*assistant",
    "its text comes out of noise, not token by token": r"dream llada.* diffusion.* rnd1",
    # As a GGUF file. llama.cpp weighs the experts of this family otherwise than its authors do.
    "its router weighs each expert by a softmax of its own, which GGUF does not say": r"phimoe",
    "its weights are ternary, and its norms inside attention and MLP": r"bitnet.*",
    "its positions are added to the scores (ALiBi)": r"bloom mpt refact jais",
}
_CLASSES: Mapping[str, str] = {
    _ENCODER: r".*For(MaskedLM|\w+Classification|QuestionAnswering|PreTraining) .*Bert\w*Model",
    _HEARS: r".*For(SpeechSeq2Seq|CTC|TextToWaveform)",
    _SEES: r".*For(ImageTextToText|Vision2Seq)",
}
# Decoders of other kinds, whose names are no misspellings of known families.
_OTHERS = r"""
    apertus1p5.* arctic baichuan bailingmoe.* beam biogpt chatglm codegen codeshell cohere2_moe cpmant ctrl
    cwm dbrx deci deepseek deepseek_v4 diffllama doge exaone falcon flex_olmo flint gpt-sw3 gpt_neo
    gpt_neox_japanese gptj granite_swa granitemoe_swa grok.* hy_v4 internlm2? jais2 mimo(_v2)?
    minicpm minimax_m3.* ministral modernbert-decoder nemotron-nas openai-gpt openelm opt orion persimmon phi-msft
    plamo3? qwen smallthinker stablelm_epoch step3.* vaultgemma xglm xverse"""


def features_of_config(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Find the features of a config.json that a plain decoder lacks, as its keys show them."""
    return features_of_keys({**text_of(config), **config})


def text_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Find the config of the text part of a model that has other parts; empty for any other model."""
    return next((config[key] for key in _TEXT if isinstance(config.get(key), dict)), {})


def features_of_keys(values: Mapping[str, Any]) -> tuple[str, ...]:
    """Find the features that single keys show, of a config.json or of a GGUF file's architecture."""
    present = [key for key, value in values.items() if value not in (None, False, 0)]
    kinds = values.get("layer_types")
    present += [f"mamba_{kind}" for kind in (kinds if isinstance(kinds, list) else []) if kind in _STATES]
    return tuple(name for name, starts in _FEATURES.items() if any(key.startswith(starts) for key in present))


def why_not(name: object, known: Collection[str], features: Iterable[str] = (), classes: object = ()) -> str:
    """Describe a family that is not known: its kind of model, or the name that may be meant.

    features: by the keys of the model. classes: the `architectures` of its config.
    """
    start = f"{brief(name)} is not implemented"
    if not isinstance(name, str) or not name:
        return f"{start}: the name of a family is needed"
    told = list(features) or _of_classes(classes) or [word for word in _NAMES if _is(_NAMES[word], name.lower())][:1]
    if told:
        return f"{start}: {', and '.join(_SENTENCES.get(word, word) for word in told)}"
    near = [] if _is(_OTHERS, name) else get_close_matches(name.lower(), known, n=1, cutoff=0.8)
    return (
        f"{start}: did you mean {near[0]!r}?"
        if near
        else f"{start}: it is another family; docs/models.md lists the implemented ones"
    )


def _of_classes(classes: object) -> list[str]:
    names = [name for name in classes if isinstance(name, str)] if isinstance(classes, list) else []
    return [word for word, pattern in _CLASSES.items() if any(_is(pattern, name) for name in names)]


def _is(patterns: str, name: str) -> bool:
    return any(re.fullmatch(pattern, name) for pattern in patterns.split())
