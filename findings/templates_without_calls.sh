#!/usr/bin/env bash
# Chat templates that take `tools` and never show `tool_calls`.
#
# llama-cpp-python 0.3.36 carries the templates that llama.cpp publishes with its tests. Those of LFM2-8B-A1B, LFM2.5-Instruct and
# Granite 3.3 2B read the variable `tools` and write the functions into the system message, but a message of the assistant with
# `tool_calls` becomes an empty turn: name and arguments of the call are not in the prompt, and the result of the call follows as if
# out of nowhere. transformers' apply_chat_template says nothing. The calls have to be put into `content` as the model writes them.
# Seen on 2026-11-30 with transformers 5.24.0.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check transformers==5.24.0 jinja2==3.1.6
"$folder/venv/bin/pip" download --quiet --disable-pip-version-check --no-binary llama-cpp-python --no-deps --dest "$folder" llama-cpp-python==0.3.36
tar --extract --file "$folder"/llama_cpp_python-*.tar.gz --directory "$folder" --wildcards '*/models/templates/*'
cat > "$folder/look.py" <<'PYTHON'
import sys
from pathlib import Path

from transformers.utils.chat_template_utils import render_jinja_template

call = {"type": "function", "function": {"name": "get_time", "arguments": {"city": "Rome"}}}
tool = {"type": "function", "function": {"name": "tell", "parameters": {"type": "object", "properties": {}}}}
messages = [
    {"role": "user", "content": "What time is it?"},
    {"role": "assistant", "content": "", "tool_calls": [call]},
    {"role": "tool", "name": "get_time", "content": "12:00"},
]
folder = next(Path(sys.argv[1]).glob("*/vendor/llama.cpp/models/templates"))
shown = {}
for name in ("LFM2-8B-A1B", "LFM2.5-Instruct", "ibm-granite-granite-3.3-2B-Instruct", "LFM2.5-8B-A1B", "Qwen-Qwen3-0.6B"):
    text = render_jinja_template([messages], tools=[tool], chat_template=(folder / f"{name}.jinja").read_text())[0][0]
    assert "12:00" in text, name
    shown[name] = "Rome" in text
print(shown)
assert list(shown.values()) == [False, False, False, True, True], "another behaviour than the one stated above"
PYTHON
"$folder/venv/bin/python" "$folder/look.py" "$folder"
