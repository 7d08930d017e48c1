"""Tiny models whose files have a layer that predicts further tokens (MTP), which transformers leaves out; and what such
a layer drafts, computed with transformers' own layers.
"""

import json
from functools import cache

import torch
from safetensors.torch import load_file, save_file

from tests.tiny_models import reference, save

BESIDE = ("mtp.layers.0.", ["mtp.fc", "mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden", "mtp.norm"])
MODELS = ["qwen3_5_text", "qwen3_5_moe_text", "qwen3_next", "glm4_moe", "glm4_moe_lite", "deepseek_v3"]


def names_of(name):
    """How the names of the layer's tensors begin, and the names of its matrix and its norms."""
    if name.startswith("qwen3"):
        return BESIDE
    begin = f"model.layers.{reference(name).config.num_hidden_layers}."
    return begin, [begin + each for each in ("eh_proj", "enorm", "hnorm", "shared_head.norm")]


def attending(name):
    """The last layer of the model that attends."""
    layers = reference(name).model.layers
    return max(at for at, layer in enumerate(layers) if hasattr(layer, "self_attn"))


def later(begin, number):
    """How the names of a later layer begin."""
    words = begin.split(".")
    return ".".join(str(int(word) + number) if word.isdigit() else word for word in words)


@cache
def layer_of(name):
    """The layer: one like the model's last that attends, with other weights; its matrix and its norms."""
    model = reference(name)
    with torch.random.fork_rng():
        torch.manual_seed(31)
        config, norm, at = model.config, model.model.norm, attending(name)
        layer = type(model.model.layers[at])(config, at)
        norms = [
            type(norm)(config.hidden_size, eps=norm.variance_epsilon if hasattr(norm, "variance_epsilon") else norm.eps)
            for _ in range(3)
        ]
        fc = torch.nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False)
        like = dict(model.model.layers[at].named_parameters())
        for label, parameter in layer.named_parameters():
            parameter.data = like[label].detach() + 0.1 * torch.randn_like(parameter)
        for label, buffer in layer.named_buffers():
            buffer.data.copy_(dict(model.model.layers[at].named_buffers())[label])
        for each in norms:
            each.weight.data = norm.weight.detach() + 0.1 * torch.randn(config.hidden_size)
        torch.nn.init.normal_(fc.weight, std=0.15)
    return layer.float().eval(), fc.eval(), norms


def one_by_one(name, tensors):
    """The tensors with experts one by one, as makers other than Qwen publish them."""
    if name.startswith("qwen3"):
        return tensors
    found = {
        label: each for label, each in tensors.items() if not label.endswith(("gate_up_proj", "experts.down_proj"))
    }
    for label in set(tensors) - set(found):
        begin, _, role = label.rpartition(".")
        for number, expert in enumerate(tensors[label]):
            parts = {"down": expert} if role == "down_proj" else dict(zip(("gate", "up"), expert.chunk(2), strict=True))
            found |= {f"{begin}.{number}.{part}_proj.weight": each for part, each in parts.items()}
    return found


def save_with_mtp(name, folder, num_layers=1):
    """The model's directory with such a layer, as its makers publish it. num_layers: with so many, of which all but the
    first have other weights.
    """
    path = save(name, folder)
    file, (begin, others) = path / "model.safetensors", names_of(name)
    tensors = load_file(file)
    if f"{others[0]}.weight" not in tensors:
        layer, fc, norms = layer_of(name)
        more = {begin + label: tensor for label, tensor in one_by_one(name, layer.state_dict()).items()}
        more |= {f"{label}.weight": each.weight for label, each in zip(others, (fc, *norms), strict=True)}
        for number in range(1, num_layers):
            own = {label: each for label, each in more.items() if label.startswith(begin)}
            more |= {later(begin, number) + label.removeprefix(begin): -each for label, each in own.items()}
        save_file(
            {**tensors, **{label: each.detach().contiguous() for label, each in more.items()}}, file, {"format": "pt"}
        )
        config = json.loads((path / "config.json").read_text())
        key = "num_nextn_predict_layers" if begin != BESIDE[0] else "mtp_num_hidden_layers"
        config |= {} if key.startswith("mtp") and num_layers == 1 else {key: num_layers}
        (path / "config.json").write_text(json.dumps(config))
    return path


@torch.inference_mode()
def drafts(name, tokens, count, first=1):
    """What the layer drafts greedily after these tokens, with its two largest logits apart by how much.

    first: the token from which on it reads.
    """
    model, (layer, fc, norms) = reference(name), layer_of(name)
    inner, found, margins = model.model, [], []
    rows = inner(torch.tensor([tokens])).last_hidden_state[0, first - 1 : -1]
    ids = torch.tensor(tokens[first:])
    for _ in range(count):
        x = fc(torch.cat([norms[0](inner.embed_tokens(ids)), norms[1](rows)], -1))[None]
        places = torch.arange(len(ids))[None]
        mask = torch.full((len(ids), len(ids)), -torch.inf).triu(1)[None, None]
        out = layer(x, position_embeddings=inner.rotary_emb(x, places), attention_mask=mask, position_ids=places)
        read = norms[2](out[0] if isinstance(out, tuple) else out)[0]
        logits = model.lm_head(read[-1])
        largest = logits.topk(2)
        found.append(int(largest.indices[0]))
        margins.append(float(largest.values[0] - largest.values[1]))
        ids, rows = torch.cat([ids, largest.indices[:1]]), torch.cat([rows, read[-1:]])
    return found, margins
