"""The sampling settings that a model's files recommend, under the names of SamplingParams.

A directory has them in generation_config.json, a GGUF file under general.sampling; for a GGUF file that says nothing
and has a short name, hub/short_names.py has the maker's. Keys have the meaning that they have in transformers:
where do_sample is not true temperature, top_k, top_p and min_p say nothing, and where it is false the likeliest token
is recommended. Values are checked for type and range. Settings that tokenmill does not have are warned of by name.
"""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenmill.errors import CheckpointError, ConfigError
from tokenmill.hub.short_names import sampling_of_file
from tokenmill.settings.recommended import NOTHING, RECOMMENDABLE, Recommended, say
from tokenmill.settings.sampling_params import SamplingParams
from tokenmill.text.tokenizer import read_json
from tokenmill.value_reader import ValueReader

log = logging.getLogger(__name__)

# Key of generation_config.json → its value without effect, None where every value has an effect. The entries of
# transformers' GenerationConfig that change which token is chosen, or whether the text ends.
ABSENT: dict[str, Any] = {
    "typical_p": 1.0,
    "top_h": None,
    "min_length": 0,
    "min_new_tokens": 0,
    "sequence_bias": [],
    "exponential_decay_length_penalty": None,
    "guidance_scale": 1.0,
    "stop_strings": [],
    "forced_bos_token_id": None,
    "forced_eos_token_id": None,
    "watermarking_config": None,
    "dola_layers": None,
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
    "no_repeat_ngram_size": 0,
    "encoder_repetition_penalty": 1.0,
    "num_beams": 1,
    "penalty_alpha": 0.0,
    "begin_suppress_tokens": [],
    "bad_words_ids": [],
}
# The same for a GGUF file's general.sampling, which llama.cpp's programs use unless they are told otherwise. Other keys
# there say more of mirostat.
ABSENT_IN_GGUF = {"sequence": "", "mirostat": 0, "penalty_last_n": -1}
IN_GGUF = "general.sampling."
GGUF = {told.model_files: name for name, told in RECOMMENDABLE.items()}


def defaults_of_directory(path: Path) -> Recommended:
    """Read the settings of a directory in Hugging Face layout; empty where it has no generation_config.json, or that
    says nothing.
    """
    file = path / "generation_config.json"
    reader = ValueReader(read_json(file), str(file), CheckpointError)
    values = {key: value for key, value in reader.values.items() if value is not None}
    ignored = {key: values[key] for key, neutral in ABSENT.items() if values.get(key, neutral) != neutral}
    if ignored:
        log.warning("%s has settings that tokenmill does not have: %s", file, say(ignored))
    sampled = reader.flag("do_sample", False)
    names = [name for name, told in RECOMMENDABLE.items() if sampled or told.stage != "draw"]
    found = {"temperature": 1.0 if sampled else 0.0} if "do_sample" in values else {}
    return checked(file, found | {name: values[name] for name in names if name in values}, file.name)


def defaults_of_gguf(path: Path, metadata: Mapping[str, Any]) -> Recommended:
    """Read the settings of a GGUF file; its maker's where the metadata says nothing, empty where nobody tells any."""
    values = {key.removeprefix(IN_GGUF): value for key, value in metadata.items() if key.startswith(IN_GGUF)}
    ignored = {key: values[key] for key, neutral in ABSENT_IN_GGUF.items() if values.get(key, neutral) != neutral}
    if values.get("penalty_repeat", 1.0) == 1.0:
        ignored.pop("penalty_last_n", None)  # of this penalty, which looks at all tokens here and in transformers
    if ignored:
        log.warning("%s has settings that tokenmill does not have: %s", path, say(ignored))
    found = {name: values[key] for key, name in GGUF.items() if key in values}
    if not found:
        return sampling_of_file(path)
    # Floats have 32 bits there: 0.7, not 0.699999988.
    found = {name: float(f"{value:.7g}") if isinstance(value, float) else value for name, value in found.items()}
    return checked(path, found, "general.sampling of the GGUF file")


def gguf_of_defaults(found: Mapping[str, Any]) -> dict[str, Any]:
    """Make the metadata from which defaults_of_gguf reads these settings."""
    return {f"{IN_GGUF}{key}": found[name] for key, name in GGUF.items() if name in found}


def directory_of_defaults(found: Mapping[str, Any]) -> dict[str, Any]:
    """Make the keys of a generation_config.json from which defaults_of_directory reads these settings."""
    if "temperature" not in found:
        return {**found}
    if found["temperature"] > 0:
        return {**found, "do_sample": True}
    # Beside do_sample false transformers warns of settings of a draw, and it takes no temperature of 0 elsewhere.
    kept = {name: value for name, value in found.items() if RECOMMENDABLE[name].stage != "draw"}
    return {**kept, "do_sample": False}


def recommended(checkpoint: Any, wanted: bool) -> Recommended:
    """Take the settings of a Checkpoint where they are wanted; else none, and a warning where its files recommend some.

    CheckpointError for values that are not allowed, where they are wanted.
    """
    found: Recommended = checkpoint.generation_defaults() if wanted else usable(checkpoint)
    if wanted or not found:
        return found
    uses = "generation_config=True uses that (an option of generate, decode and profile; chat and serve do)"
    level = logging.INFO if found == sampling_of_file(checkpoint.path) else logging.WARNING
    log.log(level, "%s recommends %s; %s", checkpoint.path.name, say(found), uses)
    return NOTHING


def usable(checkpoint: Any) -> Recommended:
    """Take the settings of a Checkpoint that is written anew; none, with a warning, where values are not allowed."""
    try:
        found: Recommended = checkpoint.generation_defaults()
    except CheckpointError as error:
        log.warning("%s; it is not used", error)
        return NOTHING
    return found


def checked(file: Path, found: Mapping[str, Any], origin: str) -> Recommended:
    """Check the values that a file recommends; CheckpointError for values that are not allowed.

    A value that turns a setting off is kept: it takes the place of a protocol's default.
    """
    try:
        params = SamplingParams(**found)
    except ConfigError as error:
        raise CheckpointError(f"{file}: {error}") from error
    return Recommended({name: getattr(params, name) for name in found}, origin)
