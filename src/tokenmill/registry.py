"""The page of what can be plugged in: tables of names with one line of help each, and the look-up of an object by name.

A new family, scheme, program, cache format, attention kernel, proposer, export or verb is a file and a line here.
Options, refusals and documents read these tables. An object is named as text, "module:object", so that nothing is
imported until it is chosen: this module imports no torch.
"""

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from importlib import import_module
from typing import Any, NamedTuple

from tokenmill.errors import ConfigError


class Entry(NamedTuple):
    """One name of a table. place: what is known of it. computes: what computes with it, where a module apart does that,
    so that the facts need no torch. also: what other programs call it, which a refusal hints at.
    """

    help: str
    place: str
    computes: str = ""
    also: tuple[str, ...] = ()


Names = dict[str, Entry | str]

# fmt: off
# Fastest first: "auto" takes the first that does not refuse.
PROGRAMS: Names = {
    "native": Entry("C++ for this processor, the same bits for any batch and chunk",
        "tokenmill.program.native.spec:NativeSpec", "tokenmill.program.native.program:Native"),
    "aot": Entry("compiled ahead of time, from a package on disk", "tokenmill.program.torch_specs:AotSpec",
        "tokenmill.program.aot.program:Aot"),
    "compiled": Entry("torch.compile of the PyTorch modules", "tokenmill.program.torch_specs:CompiledSpec",
        "tokenmill.program.compiled.program:Compiled", ("inductor",)),
    "graphs": Entry("Triton kernels in CUDA graphs, on a GPU", "tokenmill.program.graphs.spec:GraphsSpec",
        "tokenmill.program.graphs.program:Graphs"),
    "eager": Entry("PyTorch modules as they stand", "tokenmill.program.torch_specs:EagerSpec",
        "tokenmill.program.eager:Eager"),
}

# In the order of preference: "auto" takes the first scheme that the program prefers and that does not refuse.
SCHEMES: Names = {
    "packed": Entry("plain matrices in oneDNN's layout, on a CPU", "tokenmill.quant.schemes:PackedScheme"),
    "dense": Entry("plain matrices, on every device", "tokenmill.quant.schemes:Scheme"),
    "q8": Entry("8 bits, a scale for each 32 inputs", "tokenmill.quant.schemes:Q8", also=("q8_0", "int8")),
    "q4": Entry("4 bits, a scale and minimum for each 32 inputs", "tokenmill.quant.schemes:Q4", also=("q4_0", "int4")),
    "file": Entry("as the model's files have them", "tokenmill.quant.schemes:AsStored"),
}
# The modules of matrices; a scheme names one.
MATRICES: Names = {
    "plain": "tokenmill.quant.matrix:Matrix",
    "packed": "tokenmill.quant.packed:PackedLinear",
    "codes": "tokenmill.quant.quantized:QuantizedLinear",
    "compact codes": "tokenmill.quant.quantized:CompactLinear",
}

# The second halves of layers.
MLPS: Names = {
    "mlp": Entry("one MLP", "tokenmill.model.description:MlpBlock", "tokenmill.model.layers:MLP"),
    "experts": Entry("a mixture of experts", "tokenmill.model.mixture:ExpertsBlock",
        "tokenmill.model.experts:MoE"),
    "beside": Entry("a mixture of experts beside one MLP (Gemma 4)", "tokenmill.model.beside:BesideBlock",
        "tokenmill.model.beside_module:MixtureBeside"),
    "per_layer": Entry("what a layer has of a token beside its input (Gemma 3n, 4)",
        "tokenmill.model.per_layer:PerLayerBlock", "tokenmill.model.per_layer_modules:PerLayer"),
    "per_layer_inputs": Entry("the inputs of all layers, before the first", "tokenmill.model.per_layer:PerLayerInputs",
        "tokenmill.model.per_layer_modules:LayerInputs"),
    "sparse_mlp": Entry("an MLP of whose gates the largest are kept (Gemma 3n)",
        "tokenmill.model.sparse:SparseMlpBlock", "tokenmill.model.sparse_module:SparseMLP"),
    "streams": Entry("several streams of each token, around the two halves (Gemma 3n)",
        "tokenmill.model.streams:StreamsBlock", "tokenmill.model.streams_modules:Streams"),
    "streams_inputs": Entry("the streams before the first layer and behind the last",
        "tokenmill.model.streams:StreamsInputs", "tokenmill.model.streams_modules:StreamsAround"),
    "mtp_input": Entry("the input of a layer that predicts further tokens", "tokenmill.model.mtp:MtpInput",
        "tokenmill.model.mtp_module:MtpDecoder"),
    "distance_bias": Entry("a number that every layer adds to scores by distance (MPNet, ALiBi)",
        "tokenmill.model.distance_bias:DistanceBias", "tokenmill.model.distance_bias_module:AddedByDistance"),
}

FORMATS: Names = {
    "dense": Entry("rows in the cache's dtype", "tokenmill.cache.formats.dense:Dense",
        "tokenmill.cache.formats.dense_layer:DenseLayer"),
    "int8": Entry("8 bits, a scale for each token and head", "tokenmill.cache.formats.int8:Int8",
        "tokenmill.cache.formats.int8_layer:Int8Layer"),
}

MIXERS: Names = {
    "absent": Entry("no mixer: the layer is an MLP alone (Nemotron-H)", "tokenmill.model.mixers.absent:AbsentBlock",
        "torch.nn:Identity"),
    "attention": Entry("rows of K and V, which later tokens read",
        "tokenmill.model.mixers.attention:AttentionBlock", "tokenmill.model.mixers.attention_module:Attention"),
    "gated_attention": Entry("attention with gates of a matrix of their own (Laguna)",
        "tokenmill.model.mixers.gated_attention:GatedAttentionBlock",
        "tokenmill.model.mixers.gated_attention_module:GatedAttention"),
    "latent": Entry("one row for all heads, which is K and V (DeepSeek, GLM-4.7-Flash)",
        "tokenmill.model.mixers.latent:LatentBlock", "tokenmill.model.mixers.latent_module:LatentAttention"),
    "short_conv": Entry("a gated convolution of three or four tokens (LFM2)",
        "tokenmill.model.mixers.short_conv:ShortConvBlock", "tokenmill.model.mixers.short_conv_module:ShortConv"),
    "delta_net": Entry("linear attention by the delta rule (Qwen 3.5, Qwen3-Next)",
        "tokenmill.model.mixers.delta_net:DeltaNetBlock", "tokenmill.model.mixers.delta_net_module:DeltaNet"),
    "kda": Entry("linear attention by the delta rule, with a decay of each number of a key (Kimi Linear)",
        "tokenmill.model.mixers.kda:KimiDeltaBlock", "tokenmill.model.mixers.kda_module:KimiDelta"),
    "mamba2": Entry("a state that decays head by head (Mamba 2)",
        "tokenmill.model.mixers.mamba2:Mamba2Block", "tokenmill.model.mixers.mamba2_module:Mamba2"),
}

# Attention kernels in the order of preference.
ATTEND: Names = {
    "rows": Entry("views of one contiguous block", "tokenmill.kernels.attend.gather:ContiguousRows"),
    "gather": Entry("rows of any blocks, gathered", "tokenmill.kernels.attend.gather:Gather"),
    "padded": Entry("steps of a fixed shape, for a compiler", "tokenmill.kernels.attend.padded:Padded"),
}

PROPOSERS: Names = {
    "off": Entry("no drafts", "tokenmill.speculate.proposer:NoProposer", also=("none",)),
    "adaptive": Entry("whatever pays here, measured as it runs", "tokenmill.speculate.controller:Controller"),
    "multi_step": Entry("several greedy steps in one call", "tokenmill.speculate.multi_step:MultiStep"),
    "suffix": Entry("what followed the same tokens before", "tokenmill.speculate.suffix:Suffix",
        also=("prompt_lookup", "prompt-lookup", "ngram", "lookup")),
    "draft_model": Entry("a second, smaller model", "tokenmill.speculate.draft_model:DraftModel"),
}

# Under the `model_type` of their config.json.
FAMILIES: Names = {
    "llama": Entry("Llama, SmolLM2", "tokenmill.model.families.llama:LLAMA"),
    "mistral": Entry("Mistral", "tokenmill.model.families.llama:MISTRAL"),
    "mixtral": Entry("Mixtral", "tokenmill.model.families.llama:MIXTRAL"),
    "qwen2": Entry("Qwen2, Qwen2.5", "tokenmill.model.families.qwen:QWEN2"),
    "qwen3": Entry("Qwen3", "tokenmill.model.families.qwen:QWEN3"),
    "gemma": Entry("Gemma", "tokenmill.model.families.gemma:GEMMA"),
    "gemma2": Entry("Gemma 2", "tokenmill.model.families.gemma:GEMMA2"),
    "gemma3_text": Entry("Gemma 3", "tokenmill.model.families.gemma:GEMMA3"),
    "gemma3": Entry("Gemma 3 with vision, whose text part is read", "tokenmill.model.families.gemma:GEMMA3_VISION"),
    "qwen2_vl": Entry("Qwen2-VL, whose text part is read", "tokenmill.model.families.qwen_vl:QWEN2_VL"),
    "qwen2_5_vl": Entry("Qwen2.5-VL, whose text part is read", "tokenmill.model.families.qwen_vl:QWEN2_5_VL"),
    "qwen3_vl": Entry("Qwen3-VL, whose text part is read", "tokenmill.model.families.qwen_vl:QWEN3_VL"),
    "qwen3_vl_moe": Entry("Qwen3-VL with experts, whose text part is read",
        "tokenmill.model.families.qwen_vl:QWEN3_VL_MOE"),
    "nemotron_h": Entry("Nemotron-H, Nemotron 3", "tokenmill.model.families.nemotron_h:NEMOTRON_H"),
    "mamba2": Entry("Mamba 2, Codestral Mamba", "tokenmill.model.families.mamba2:MAMBA2"),
    "lfm2": Entry("LFM2", "tokenmill.model.families.lfm2:LFM2"),
    "lfm2_moe": Entry("LFM2-MoE", "tokenmill.model.families.lfm2:LFM2_MOE"),
    "qwen3_5_text": Entry("Qwen 3.5, 3.6, 3.8", "tokenmill.model.families.qwen3_5:QWEN3_5_TEXT"),
    "qwen3_5_moe_text": Entry("Qwen 3.5 with experts", "tokenmill.model.families.qwen3_5:QWEN3_5_MOE_TEXT"),
    "qwen3_next": Entry("Qwen3-Next", "tokenmill.model.families.qwen3_5:QWEN3_NEXT"),
    "olmo_hybrid": Entry("OLMo Hybrid", "tokenmill.model.families.olmo_hybrid:OLMO_HYBRID"),
    "qwen3_5": Entry("Qwen 3.5 with vision, whose text part is read", "tokenmill.model.families.qwen3_5:QWEN3_5"),
    "qwen3_5_moe": Entry("Qwen 3.5 with experts and vision, whose text part is read",
        "tokenmill.model.families.qwen3_5:QWEN3_5_MOE"),
    "gemma3n_text": Entry("Gemma 3n", "tokenmill.model.families.gemma3n:GEMMA3N_TEXT"),
    "gemma3n": Entry("Gemma 3n with vision and audio; its text part is read",
        "tokenmill.model.families.gemma3n:GEMMA3N"),
    "gemma4_text": Entry("Gemma 4", "tokenmill.model.families.gemma4:GEMMA4_TEXT"),
    "gemma4": Entry("Gemma 4 with vision and audio; its text part is read",
        "tokenmill.model.families.gemma4:GEMMA4"),
    "gemma4_unified_text": Entry("Gemma 4 12B", "tokenmill.model.families.gemma4:GEMMA4_UNIFIED_TEXT"),
    "gemma4_unified": Entry("Gemma 4 12B with vision and audio; its text part is read",
        "tokenmill.model.families.gemma4:GEMMA4_UNIFIED"),
    "gpt_neox": Entry("GPT-NeoX, Pythia", "tokenmill.model.families.gpt_neox:GPT_NEOX"),
    "gpt2": Entry("GPT-2", "tokenmill.model.families.gpt2:GPT2"),
    "gpt_bigcode": Entry("StarCoder, SantaCoder", "tokenmill.model.families.gpt2:GPT_BIGCODE"),
    "qwen2_moe": Entry("Qwen1.5-MoE, Qwen2-MoE", "tokenmill.model.families.qwen_moe:QWEN2_MOE"),
    "qwen3_moe": Entry("Qwen3-MoE", "tokenmill.model.families.qwen_moe:QWEN3_MOE"),
    "olmo2": Entry("OLMo 2", "tokenmill.model.families.olmo:OLMO2"),
    "olmo": Entry("OLMo", "tokenmill.model.families.olmo:OLMO"),
    "olmoe": Entry("OLMoE", "tokenmill.model.families.olmo:OLMOE"),
    "granite": Entry("Granite 3, 4.1 and 4.2", "tokenmill.model.families.granite:GRANITE"),
    "granitemoe": Entry("Granite 3 with experts", "tokenmill.model.families.granite:GRANITEMOE"),
    "granitemoeshared": Entry("Granite with a shared expert", "tokenmill.model.families.granite:GRANITEMOESHARED"),
    "granitemoehybrid": Entry("Granite 4.0", "tokenmill.model.families.granite:GRANITEMOEHYBRID"),
    "bamba": Entry("Bamba", "tokenmill.model.families.mamba2:BAMBA"),
    "falcon_h1": Entry("Falcon-H1", "tokenmill.model.families.falcon_h1:FALCON_H1"),
    "glm4": Entry("GLM-4-0414", "tokenmill.model.families.glm:GLM4"),
    "glm": Entry("GLM-4", "tokenmill.model.families.glm:GLM"),
    "starcoder2": Entry("StarCoder 2", "tokenmill.model.families.starcoder2:STARCODER2"),
    "stablelm": Entry("StableLM", "tokenmill.model.families.stablelm:STABLELM"),
    "glm4_moe_lite": Entry("GLM-4.7-Flash", "tokenmill.model.families.deepseek:GLM4_MOE_LITE"),
    "deepseek_v2": Entry("DeepSeek-V2", "tokenmill.model.families.deepseek:DEEPSEEK_V2"),
    "deepseek_v3": Entry("DeepSeek-V3, R1 and Kimi K2", "tokenmill.model.families.deepseek:DEEPSEEK_V3"),
    "kimi_k25": Entry("Kimi K2.5 and K2.6, whose text part is read", "tokenmill.model.families.deepseek:KIMI_K25"),
    "kimi_linear": Entry("Kimi Linear", "tokenmill.model.families.kimi_linear:KIMI_LINEAR"),
    "mistral4": Entry("Mistral 4", "tokenmill.model.families.deepseek:MISTRAL4"),
    "youtu": Entry("Youtu-LLM", "tokenmill.model.families.deepseek:YOUTU"),
    "minicpm3": Entry("MiniCPM3", "tokenmill.model.families.deepseek:MINICPM3"),
    "glm4_moe": Entry("GLM-4.5 to 4.7", "tokenmill.model.families.glm:GLM4_MOE"),
    "gpt_oss": Entry("gpt-oss", "tokenmill.model.families.gpt_oss:GPT_OSS"),
    "nemotron": Entry("Nemotron, Minitron", "tokenmill.model.families.nemotron:NEMOTRON"),
    "arcee": Entry("AFM", "tokenmill.model.families.nemotron:ARCEE"),
    "apertus": Entry("Apertus", "tokenmill.model.families.nemotron:APERTUS"),
    "seed_oss": Entry("Seed-OSS", "tokenmill.model.families.seed_oss:SEED_OSS"),
    "ernie4_5": Entry("ERNIE 4.5", "tokenmill.model.families.ernie:ERNIE"),
    "ernie4_5_moe": Entry("ERNIE 4.5 with experts", "tokenmill.model.families.ernie:ERNIE_MOE"),
    "helium": Entry("Helium", "tokenmill.model.families.ernie:HELIUM"),
    "minimax_m2": Entry("MiniMax-M2", "tokenmill.model.families.minimax:MINIMAX_M2"),
    "smollm3": Entry("SmolLM3", "tokenmill.model.families.smollm3:SMOLLM3"),
    "phi3": Entry("Phi-3, Phi-3.5, Phi-4, Phi-4-mini", "tokenmill.model.families.phi:PHI3"),
    "phi": Entry("Phi-1, Phi-1.5, Phi-2", "tokenmill.model.families.phi:PHI"),
    "cohere": Entry("Command R, Aya", "tokenmill.model.families.cohere:COHERE"),
    "cohere2": Entry("Command R7B, Command A", "tokenmill.model.families.cohere:COHERE2"),
    "exaone4": Entry("EXAONE 4", "tokenmill.model.families.exaone4:EXAONE4"),
    "ministral3": Entry("Ministral 3", "tokenmill.model.families.ministral3:MINISTRAL3"),
    "mistral3": Entry("Mistral with vision, whose text part is read", "tokenmill.model.families.mistral3:MISTRAL3"),
    "hunyuan_v1_dense": Entry("Hunyuan", "tokenmill.model.families.hunyuan:HUNYUAN_DENSE"),
    "hunyuan_v1_moe": Entry("Hunyuan with experts", "tokenmill.model.families.hunyuan:HUNYUAN_MOE"),
    "olmo3": Entry("OLMo 3", "tokenmill.model.families.olmo:OLMO3"),
    "dots1": Entry("dots.llm1", "tokenmill.model.families.glm:DOTS1"),
    "solar_open": Entry("Solar Open", "tokenmill.model.families.glm:SOLAR_OPEN"),
    "exaone_moe": Entry("K-EXAONE", "tokenmill.model.families.exaone4:EXAONE_MOE"),
    "hy_v3": Entry("Hy3", "tokenmill.model.families.hunyuan:HY_V3"),
    "afmoe": Entry("Trinity of Arcee", "tokenmill.model.families.afmoe:AFMOE"),
    "laguna": Entry("Laguna of poolside", "tokenmill.model.families.laguna:LAGUNA"),
    "mimo_v2_flash": Entry("MiMo-V2-Flash", "tokenmill.model.families.mimo:MIMO_V2_FLASH"),
    "mellum": Entry("Mellum 2", "tokenmill.model.families.qwen_moe:MELLUM"),
    "llama4_text": Entry("Llama 4", "tokenmill.model.families.llama4:LLAMA4_TEXT"),
    "llama4": Entry("Llama 4 with vision, whose text part is read", "tokenmill.model.families.llama4:LLAMA4"),
    "phimoe": Entry("Phi-3.5-MoE", "tokenmill.model.families.phi:PHIMOE"),
    "muse_glimmer_text": Entry("Muse Glimmer", "tokenmill.model.families.muse_glimmer:MUSE_GLIMMER_TEXT"),
    "muse_glimmer": Entry("Muse Glimmer with vision, whose text part is read",
        "tokenmill.model.families.muse_glimmer:MUSE_GLIMMER"),
    "nanochat": Entry("nanochat", "tokenmill.model.families.nanochat:NANOCHAT"),
    "internlm3": Entry("InternLM 3", "tokenmill.model.families.llama:INTERNLM3"),
}

# Codes of directories, under the `quant_method` of their config.json.
CODES: Names = {
    "tokenmill": Entry("what `tokenmill quantize` writes", "tokenmill.weights.codes.own:Own",
        "tokenmill.weights.codes.integer_tensors:unpack_own"),
    "gptq": Entry("GPTQ, and AutoRound's exports to it", "tokenmill.weights.codes.gptq:GPTQ",
        "tokenmill.weights.codes.integer_tensors:unpack_gptq"),
    "awq": Entry("AWQ in all its layouts", "tokenmill.weights.codes.awq:AWQ",
        "tokenmill.weights.codes.integer_tensors:unpack_awq"),
    "auto-round": Entry("AutoRound, in all its layouts", "tokenmill.weights.codes.auto_round:AutoRound"),
    "intel/auto-round": Entry("AutoRound of older versions", "tokenmill.weights.codes.auto_round:AutoRound"),
    "compressed-tensors": Entry("what llm-compressor writes", "tokenmill.weights.codes.compressed:Compressed",
        "tokenmill.weights.codes.compressed_tensors:unpack"),
    "fp8": Entry("fp8 in blocks, or with one scale", "tokenmill.weights.codes.fp8:FP8",
        "tokenmill.weights.codes.floating_tensors:unpack_fp8"),
    "fbgemm_fp8": Entry("fp8 with a scale for each row", "tokenmill.weights.codes.fp8:FBGemmFP8",
        "tokenmill.weights.codes.floating_tensors:unpack_fp8"),
    "bitsandbytes": Entry("NF4, FP4 and LLM.int8", "tokenmill.weights.codes.bitsandbytes:Bitsandbytes",
        "tokenmill.weights.codes.floating_tensors:unpack_bitsandbytes"),
    "mlx": Entry("MLX's directories", "tokenmill.weights.codes.mlx:MLX",
        "tokenmill.weights.codes.floating_tensors:unpack_mlx"),
    "mxfp4": Entry("MXFP4 of gpt-oss", "tokenmill.weights.codes.mxfp4:MXFP4",
        "tokenmill.weights.codes.floating_tensors:unpack_mxfp4"),
}

# Methods that are known and not read: what they are.
REFUSED_CODES: dict[str, str] = {
    "aqlm": "AQLM's codebooks", "bitnet": "ternary weights",
    "eetq": "EETQ's codes", "exl2": "ExLlamaV2's codes",
    "exl3": "ExLlamaV3's codes", "fp_quant": "FP-Quant's codes",
    "higgs": "HIGGS's codebooks", "hqq": "HQQ's codes",
    "modelopt": "NVIDIA ModelOpt's numbers in fp8 or NVFP4", "quanto": "Quanto's codes",
    "quark": "AMD Quark's codes", "quip": "QuIP's codebooks",
    "quip#": "QuIP#'s codebooks", "sinq": "SINQ's codes",
    "spqr": "SpQR's sparse codes", "torchao": "tensor classes of torchao",
    "vptq": "VPTQ's codebooks",
}

EXPORTS: Names = {
    "tokenmill": Entry("a directory of our own", "tokenmill.weights.write.export_directory:OwnExport"),
    "gptq": Entry("a directory for other engines", "tokenmill.weights.write.export_directory:GPTQExport"),
    "gguf": Entry("a file for llama.cpp", "tokenmill.weights.write.export_gguf:GGUFExport"),
}

PICTURES: Names = {
    "sweep": "tokenmill.bench.plot.sweep:draw", "roofline": "tokenmill.bench.plot.roofline:draw",
    "ladder": "tokenmill.bench.plot.ladder:draw",
}

# How calls of functions are written. A chat template's format is the first whose words it holds, all of them.
TOOL_FORMATS: Names = {
    "harmony": Entry("messages in channels: gpt-oss", "tokenmill.text.tools.harmony:HARMONY", also=("openai",)),
    "functiongemma": Entry("call:name{…} between <start_function_call> and <end_function_call>: FunctionGemma",
        "tokenmill.text.tools.gemma:FUNCTION_GEMMA"),
    "gemma4": Entry("call:name{…} between <|tool_call> and <tool_call|>: Gemma 4", "tokenmill.text.tools.gemma:GEMMA4"),
    "hunyuan": Entry("a JSON list between <tool_calls> and </tool_calls>: Hunyuan",
        "tokenmill.text.tools.hunyuan:HUNYUAN", also=("hunyuan_a13b",)),
    "nemotron_json": Entry("a JSON list between <TOOLCALL> and </TOOLCALL>: Nemotron Nano 2",
        "tokenmill.text.tools.hunyuan:NEMOTRON"),
    "deepseek_v3": Entry("JSON in a fence between DeepSeek's tokens: DeepSeek V3, R1",
        "tokenmill.text.tools.deepseek:DEEPSEEK_V3"),
    "deepseek_v31": Entry("JSON between DeepSeek's tokens: DeepSeek V3.1",
        "tokenmill.text.tools.deepseek:DEEPSEEK_V31"),
    "kimi_k2": Entry("JSON between Kimi's tokens: Kimi K2", "tokenmill.text.tools.kimi_k2:KIMI_K2"),
    "mistral_args": Entry("names and [ARGS] after [TOOL_CALLS]: Mistral since 2025, Ministral 3",
        "tokenmill.text.tools.mistral:MISTRAL_ARGS"),
    "mistral": Entry("JSON list after [TOOL_CALLS]: Mistral 7B, Nemo, Small 3", "tokenmill.text.tools.mistral:MISTRAL"),
    "granite": Entry("a JSON list after <|tool_call|>: Granite 3", "tokenmill.text.tools.granite:GRANITE"),
    "phi4_mini_json": Entry("a JSON list after the word functools: Phi-4-mini with vLLM's template",
        "tokenmill.text.tools.phi4_mini:PHI4_MINI_JSON"),
    "phi4_mini": Entry("a JSON list between <|tool_call|> and <|/tool_call|>: Phi-4-mini",
        "tokenmill.text.tools.phi4_mini:PHI4_MINI"),
    "seed_oss": Entry("functions and parameters in tags: Seed-OSS", "tokenmill.text.tools.seed_oss:SEED_OSS"),
    "minimax_m2": Entry("tags with names as attributes: MiniMax-M2", "tokenmill.text.tools.minimax_m2:MINIMAX_M2"),
    "glm47": Entry("keys and values in tags without new lines: GLM-4.7-Flash, Spark 2.5, Laguna S 2.1",
        "tokenmill.text.tools.glm45:GLM47"),
    "glm45": Entry("keys and values in tags: GLM-4.5 to 4.7, Laguna XS", "tokenmill.text.tools.glm45:GLM45"),
    "qwen3_xml": Entry("functions and parameters in tags: Qwen 3 Coder, Qwen 3.5",
        "tokenmill.text.tools.qwen3_xml:QWEN3_XML", also=("qwen3_coder",)),
    "olmo3": Entry("Python's calls between <function_calls> and </function_calls>: OLMo 3",
        "tokenmill.text.tools.pythonic:OLMO3"),
    "lfm2_5": Entry("the calls of LFM2, with strings in single quotes: LFM2.5",
        "tokenmill.text.tools.pythonic:LFM25"),
    "lfm2": Entry("a list of Python's calls between <|tool_call_start|> and <|tool_call_end|>: LFM2",
        "tokenmill.text.tools.pythonic:LFM2"),
    "pythonic": Entry("a list of Python's calls alone in the answer: Llama 3.2 and 4, Gemma 3 with vLLM's template",
        "tokenmill.text.tools.pythonic:PYTHONIC", also=("llama4_pythonic",)),
    "hermes": Entry("JSON between <tool_call> and </tool_call>: Qwen 2.5 and 3, Granite 4, SmolLM3",
        "tokenmill.text.tools.hermes:HERMES"),
    "llama3_json": Entry("JSON with parameters alone in the answer: Llama 3.1 to 4",
        "tokenmill.text.tools.llama3_json:LLAMA3_JSON", also=("llama4_json",)),
    "gemma": Entry("JSON in a fence of tool_code, told in the system message: Gemma 2 and 3",
        "tokenmill.text.tools.gemma:GEMMA"),
}

# The cases of `tokenmill prove`, in the order of its table: each compares texts of one request.
PROOFS: Names = {
    "again": Entry("the same request alone, several times", "tokenmill.prove.cases.again:Again"),
    "crowd": Entry("alone, and in a crowd", "tokenmill.prove.cases.crowd:Crowd"),
    "warm": Entry("from a cold and a warm prefix cache", "tokenmill.prove.cases.warm:Warm"),
    "streamed": Entry("whole, and streamed", "tokenmill.prove.cases.streamed:Streamed"),
    "copies": Entry("several texts at once, and one by one", "tokenmill.prove.cases.copies:Copies"),
    "neighbours": Entry("with a seed, beside requests without one", "tokenmill.prove.cases.neighbours:Neighbours"),
    "lengths": Entry("short prompts beside long ones", "tokenmill.prove.cases.lengths:Lengths"),
    "cancelled": Entry("beside streams whose clients leave", "tokenmill.prove.cases.cancelled:Cancelled"),
    "continued": Entry("in one piece, and continued from ids", "tokenmill.prove.cases.continued:Continued"),
    "restart": Entry("before and after a restart", "tokenmill.prove.cases.restarted:Restarted"),
}

# The verbs of the command line, as they are typed, in the order of --help; "bench" and others are groups.
VERBS: Names = {
    "generate": "tokenmill.cli.generate",
    "chat": "tokenmill.cli.chat.verb",
    "serve": "tokenmill.cli.serve.verb",
    "launch": "tokenmill.cli.launch.verb",
    "batch": "tokenmill.cli.batch",
    "embed": "tokenmill.cli.embed",
    "rerank": "tokenmill.cli.rerank",
    "prefill": "tokenmill.cli.prefill",
    "decode": "tokenmill.cli.decode",
    "verify": "tokenmill.cli.verify.verb",
    "pull": "tokenmill.cli.pull",
    "quantize": "tokenmill.cli.quantize.verb",
    "pack": "tokenmill.cli.pack",
    "merge": "tokenmill.cli.merge",
    "compile": "tokenmill.cli.compile",
    "presets": "tokenmill.cli.presets",
    "list": "tokenmill.cli.list",
    "rm": "tokenmill.cli.remove",
    "info": "tokenmill.cli.info",
    "plan": "tokenmill.cli.plan",
    "profile": "tokenmill.cli.profile",
    "cache list": "tokenmill.cli.cache.list",
    "cache clear": "tokenmill.cli.cache.clear",
    "prove": "tokenmill.cli.prove",
    "agent-check": "tokenmill.cli.agent_check",
    "bench run": "tokenmill.cli.bench.run",
    "bench sweep": "tokenmill.cli.bench.sweep",
    "bench ladder": "tokenmill.cli.bench.ladder",
    "bench peers": "tokenmill.cli.bench.peers",
    "bench install-peer": "tokenmill.cli.bench.install_peer",
    "bench load": "tokenmill.cli.bench.load",
    "bench plot": "tokenmill.cli.bench.plot",
    "bench machine": "tokenmill.cli.bench.machine",
    "eval perplexity": "tokenmill.cli.eval.perplexity",
    "eval compare": "tokenmill.cli.eval.compare",
    "eval tasks": "tokenmill.cli.eval.tasks",
}

# What is chosen by the kind of a file, and imported when one is there: it needs torch, or is slow to import.
HUBS: Names = {"huggingface": "tokenmill.hub.repository:Repository"}
PLACES: Names = {"hub": "tokenmill.hub.places.hub_cache:all_entries"}
# Families that make vectors of texts and write none.
ENCODERS: Names = {
    "bert": Entry("BERT: MiniLM, bge, e5, gte, arctic-embed", "tokenmill.model.families.bert:BERT"),
    "roberta": Entry("RoBERTa", "tokenmill.model.families.bert:ROBERTA"),
    "xlm-roberta": Entry("XLM-RoBERTa: bge-m3, multilingual e5", "tokenmill.model.families.bert:XLM_ROBERTA"),
    "camembert": Entry("CamemBERT", "tokenmill.model.families.bert:CAMEMBERT"),
    "distilbert": Entry("DistilBERT", "tokenmill.model.families.bert:DISTILBERT"),
    "mpnet": Entry("MPNet: all-mpnet-base, multi-qa-mpnet-base", "tokenmill.model.families.mpnet:MPNET"),
    "jina_bert": Entry("jina-embeddings-v2, jina-reranker-v1", "tokenmill.model.families.jina_bert:JINA_BERT"),
    "modernbert": Entry("ModernBERT: gte-modernbert, granite-embedding",
        "tokenmill.model.families.modernbert:MODERNBERT"),
    "nomic_bert": Entry("Nomic Embed v1 and v1.5", "tokenmill.model.families.modernbert:NOMIC_BERT"),
    "eurobert": Entry("EuroBERT", "tokenmill.model.families.modernbert:EUROBERT"),
}
ASSISTANTS: Names = {
    "gemma4_assistant": "tokenmill.model.families.gemma4_assistant:ASSISTANT",
    "gemma4_assistant_text": "tokenmill.model.families.gemma4_assistant:ASSISTANT_TEXT",
}
CHECKPOINTS: Names = {"GGUF": "tokenmill.weights.gguf.checkpoint:GGUFCheckpoint"}
# How a program takes an adapter; one that is not here computes none.
ADAPTED: Names = {
    "native": "tokenmill.program.native.adapters:prepare", "eager": "tokenmill.program.adapted:prepare",
    "compiled": "tokenmill.program.adapted:prepare_aside", "aot": "tokenmill.program.adapted:prepare_aside",
}
ADAPTER_FILES: Names = {"gguf": "tokenmill.weights.adapters.gguf_file:open_gguf_adapter"}
CHECKPOINT_CHECKS: Names = {
    "buffers": "tokenmill.weights.buffers:compare_buffers",
    "mtp": "tokenmill.weights.gguf.checkpoint:is_mtp_alone",
    "pooling": "tokenmill.weights.gguf.pooling:pooling_of_file",
    "matrices": "tokenmill.weights.gguf.pooling:matrices_of_file",
    "classifier": "tokenmill.weights.gguf.pooling:classifier_of_file",
}
TENSOR_FILES: Names = {
    "safetensors": "tokenmill.weights.safetensors_file:SafetensorsFile", "bin": "tokenmill.weights.bin_file:BinFile",
}
TENSOR_READERS: Names = {
    "codes": "tokenmill.weights.codes.reader", "gguf": "tokenmill.weights.gguf.tensors",
    "meta": "tokenmill.weights.meta.tensors",
}
GRAMMARS: Names = {"llguidance": "tokenmill.constrain.constraints:Constraints"}
TEMPLATES: Names = {"jinja": "tokenmill.text.chat:render_chat", "names": "tokenmill.text.chat:names_in"}
# fmt: on


def either(words: Sequence[str]) -> str:
    """Join words as "a, b or c"."""
    return f"{', '.join(words[:-1])} or {words[-1]}"


def help_of(entry: Entry | str) -> str:
    """Return the help of an entry, in a few words."""
    return entry if isinstance(entry, str) else entry.help


def lookup(table: Mapping[str, Entry | str], name: str, setting: str, computes: bool = False) -> Any:
    """Import the object or module under `name`; ConfigError with the valid names when there is none.

    computes: what computes with it, in the place of its facts.
    """
    if name not in table:
        near = get_close_matches(str(name), table, n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise ConfigError(setting, name, f"use one of {', '.join(sorted(table))}{hint}")
    entry = table[name]
    place = entry if isinstance(entry, str) else entry.computes if computes else entry.place
    module, _, attribute = place.partition(":")
    found = import_module(module)
    return getattr(found, attribute) if attribute else found


def check_name(setting: str, name: str, table: Mapping[str, Entry | str]) -> None:
    """Raise ConfigError, with the names and the nearest, for a name that is neither "auto" nor in the table."""
    if name in ("auto", *table):
        return
    meant = [key for key, entry in table.items() if isinstance(entry, Entry) and name in entry.also]
    near = meant or get_close_matches(name, ("auto", *table), n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    raise ConfigError(setting, name, f"use one of auto, {', '.join(table)}{hint}")
