"""Engines whose answers are given: a Script forces texts upon a tiny model with 64,000 positions.

All else is real: rows are computed and found, drafts verified, masks applied, texts detokenized and parsed. A Script
raises the logit of the wanted token in each row before the sampler sees it, so a constraint that forbids the token
gets its way. Then `departures` says so and the text ends with an error, lest an agent does what a random text says.

    python -m tests.serve.scripted MODEL SCRIPT.json [OPTION…]

serves MODEL (a directory of save_scripted_model) as `tokenmill serve` would, with the answers of a JSON file: a list
with the answer of each turn.
"""

import json
import sys
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path

import tokenizers
import torch
from tokenizers import decoders, models, pre_tokenizers, trainers

from tests.tiny_models import build
from tokenmill.engine.loop import Observer
from tokenmill.prove.agent.check import common_length

CONTEXT = 64_000
VOCABULARY = 2_000
END, BEGIN = "<|im_end|>", "<|im_start|>"
CONTROL = ("<|endoftext|>", BEGIN, END)
WORDS = ("<tool_call>", "</tool_call>", "<think>", "</think>")  # one token each, and no control tokens, as in Qwen 3
FORCE = 1000.0  # a logit that is so much larger than the others is drawn at any temperature
DOCUMENTS = Path(__file__).parents[2] / "docs"

# As Qwen 2.5's: tools in hermes' way. Thinking of earlier turns stays, so that each turn's text begins the next one's.
TEMPLATE = """
{%- if messages[0].role == 'system' %}{% set system = messages[0].content %}{% set rest = messages[1:] %}
{%- else %}{% set system = 'You are a helpful assistant.' %}{% set rest = messages %}{% endif -%}
{{- '<|im_start|>system\\n' + system }}
{%- if tools %}
{{- '\\n\\n# Tools\\n\\nYou may call one or more functions to assist with the user query.\\n\\nYou are provided ' }}
{{- 'with function signatures within <tools></tools> XML tags:\\n<tools>' }}
{%- for tool in tools %}{{ '\\n' }}{{ tool | tojson }}{% endfor %}
{{- '\\n</tools>\\n\\nFor each function call, return a json object with function name and arguments within ' }}
{{- '<tool_call></tool_call> XML tags:\\n<tool_call>\\n{"name": <function-name>, ' }}
{{- '"arguments": <args-json-object>}\\n</tool_call>' }}
{%- endif %}{{- '<|im_end|>\\n' }}
{%- for message in rest %}
{%- if message.role == 'tool' %}
{%- if loop.first or rest[loop.index0 - 1].role != 'tool' %}{{ '<|im_start|>user' }}{% endif %}
{{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
{%- if loop.last or rest[loop.index0 + 1].role != 'tool' %}{{ '<|im_end|>\\n' }}{% endif %}
{%- else %}
{{- '<|im_start|>' + message.role + '\\n' }}
{%- if message.reasoning_content %}{{ '<think>\\n' + message.reasoning_content + '\\n</think>\\n\\n' }}{% endif %}
{{- message.content or '' }}
{%- for call in message.tool_calls or [] %}
{%- if not loop.first or message.content %}{{ '\\n' }}{% endif %}
{{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' + (call.function.arguments | tojson) }}
{{- '}\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif -%}
""".strip()


def save_scripted_model(directory, context=CONTEXT, template=TEMPLATE, **numbers):
    """The model's directory. Its tokenizer has merges learnt from the documents, of some 2.5 characters a token."""
    made = {
        "vocab_size": VOCABULARY,
        "max_position_embeddings": context,
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "bos_token_id": None,
        "eos_token_id": CONTROL.index(END),
        "pad_token_id": None,
    }
    build("llama", made | numbers).save_pretrained(directory)
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    letters = pre_tokenizers.ByteLevel.alphabet()
    learnt = {"initial_alphabet": letters, "special_tokens": list(CONTROL), "show_progress": False}
    texts = [path.read_text(encoding="utf-8") for path in sorted(DOCUMENTS.glob("*.md"))]
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=VOCABULARY - len(WORDS), **learnt))
    tokenizer.add_tokens([tokenizers.AddedToken(word, normalized=False) for word in WORDS])
    tokenizer.save(str(Path(directory) / "tokenizer.json"))
    config = {"chat_template": template, "eos_token": END}
    (Path(directory) / "tokenizer_config.json").write_text(json.dumps(config))
    return str(directory)


def in_turn(answers, otherwise="A title", mark="# Tools"):
    """A Script's `answer`: that of the turn, by how often the assistant has spoken; `otherwise` without the mark."""

    def answer(prompt):
        turn = prompt.count(BEGIN + "assistant") - 1
        return answers[turn] if mark in prompt and turn < len(answers) else otherwise

    return answer


def call(name, /, **arguments):
    """What the model writes to call a function."""
    return f'<tool_call>\n{{"name": "{name}", "arguments": {json.dumps(arguments, ensure_ascii=False)}}}\n</tool_call>'


class Script(Observer):
    """answer: what is written after a prompt, by its text. asked: the prompts so far, and their sequences; departures:
    (wanted, written) of each text that became another one than was wanted, up to the first token that differs.
    """

    in_order = True

    def __init__(self, tokenizer, answer: Callable[[str], str]) -> None:
        self._tokenizer, self._answer = tokenizer, answer
        self._wanted: dict[int, list[int]] = {}  # by the id of a sequence
        self.asked: list[str] = []
        self.sequences: list = []
        self.departures: list[tuple[str, str]] = []

    def found(self):
        """Of each prompt: the tokens that stood at the beginning of an earlier text, and those that the cache had."""
        texts = [each.tokens for each in self.sequences]
        prompts = [each.tokens[: each.num_prompt_tokens] for each in self.sequences]
        stood = [max([common_length(ids, text) for text in texts[:at]], default=0) for at, ids in enumerate(prompts)]
        return list(zip(stood, [each.num_cached_tokens or 0 for each in self.sequences], strict=True))

    def logits(self, plan, logits_RV):
        """See Observer."""
        first = 0
        with torch.inference_mode():
            for work in plan.work:
                rows, first = logits_RV[first : first + work.num_logits], first + work.num_logits
                if work.sequence.score_from is None and work.num_logits:
                    self._force(work, rows)

    def _force(self, work, rows):
        sequence = work.sequence
        if sequence.id not in self._wanted:
            self._wanted[sequence.id] = self._begin(sequence)
        wanted, start = self._wanted[sequence.id], sequence.num_prompt_tokens
        written = sequence.tokens[start:]
        if written != wanted[: len(written)]:
            self._note_departure(wanted, written)
            rows[:] = float("nan")
            return
        at = work.start + work.count - work.num_logits + 1 - start
        for row, token in zip(rows, wanted[at:], strict=False):
            row[token] = row.max() + FORCE

    def _begin(self, sequence):
        self.sequences.append(sequence)
        self.asked.append(self._tokenizer.decode(sequence.tokens[: sequence.num_prompt_tokens], False))
        ids = self._tokenizer.backend.encode(self._answer(self.asked[-1]), add_special_tokens=False).ids
        return [*ids, CONTROL.index(END)]

    def _note_departure(self, wanted, written):
        same = next(place for place, token in enumerate(written) if wanted[place : place + 1] != [token])
        self.departures.append(tuple(self._tokenizer.decode(ids[: same + 1], False) for ids in (wanted, written)))


@contextmanager
def scripted(core, answer):
    """Inside this context the engine of a core writes what a Script wants."""
    script = Script(core.loaded.tokenizer, answer)
    with core.observed_by(script):
        yield script


def main(model, script, *options):
    """Serve, with answers out of a file."""
    from tokenmill.cli.main import main as run
    from tokenmill.cli.serve import one as serve  # what `tokenmill serve` runs

    load = serve.load_engine

    def load_scripted(*given):
        engine = load(*given)
        answers = json.loads(Path(script).read_text(encoding="utf-8"))
        engine.core.loop.observers = [*engine.core.loop.observers, Script(engine.tokenizer, in_turn(answers))]
        return engine

    serve.load_engine = load_scripted
    return run(["serve", model, *options])


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
