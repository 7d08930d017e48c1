"""kill -9 in the midst of conversations: how soon the next turn begins after a restart, and that its text is the same.

    python benchmarks/restart.py [--conversations 8] [--length 1900] [--json FILE]

A server computes conversations and is killed while it writes their answers. Another server on the same directory is
asked for the next turn of each, one after the other, and so is one on an empty directory, which computes everything.
Prints the time to the first token of both and their ratio; exit code 1 if a text differs.
"""

import argparse
import json
import signal
import statistics
import subprocess
import threading
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any
from urllib.request import urlopen

from server import MODEL, Prompts, Served, our_command

from tokenmill.bench.rows import provenance

NEW = 32


def started(options: Any, port: int) -> subprocess.Popen[bytes]:
    """A server that is ready."""
    child = subprocess.Popen(our_command(options, port))
    while True:
        try:
            urlopen(f"http://127.0.0.1:{port}/ready", timeout=1).close()
        except OSError:
            if child.poll() is not None:
                raise SystemExit(f"the server ended with {child.returncode}") from None
            time.sleep(0.05)
        else:
            return child


def killed_midway(options: Any, conversations: list[list[int]]) -> list[list[int]]:
    """Ask for all conversations at once and kill the server while they are answered."""
    child = started(options, 18080)
    server = Served(18080)
    finished = threading.Thread(target=run_and_ignore, args=(server, conversations), daemon=True)
    finished.start()
    while not are_answered(18080) and finished.is_alive():
        time.sleep(0.02)
    child.send_signal(signal.SIGKILL)
    child.wait()
    finished.join(10)
    return conversations


def run_and_ignore(server: Served, conversations: list[list[int]]) -> None:
    """The connection breaks when the server is killed."""
    try:
        server.run(conversations, len(conversations), 4 * NEW)
    except (OSError, ValueError, IndexError, SystemExit):
        return


def are_answered(port: int) -> bool:
    """Whether all prompts are computed and answers are being written."""
    with urlopen(f"http://127.0.0.1:{port}/v1/cache", timeout=5) as said:
        seen = json.load(said)
    texts = seen["texts"]
    return bool(texts) and all(text["tokens"] > text["prompt_tokens"] for text in texts)


def next_turns(options: Any, port: int, prompts: list[list[int]]) -> tuple[list[float], list[str]]:
    """Time to the first token and text of each, by a server that has just started."""
    child = started(options, port)
    try:
        server = Served(port)
        answers = [server.run([prompt], 1, NEW) for prompt in prompts]
    finally:
        child.terminate()
        child.wait(30)
    return [answer.first_s[0] for answer in answers], [answer.texts[0] for answer in answers]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--conversations", type=int, default=8)
    parser.add_argument("--length", type=int, default=1900, help="tokens of each")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    take = Prompts(SimpleNamespace(model=options.model, prompt=options.length)).take
    conversations = take(options.conversations)
    with TemporaryDirectory() as folder, TemporaryDirectory() as empty:
        kept = SimpleNamespace(model=options.model, folder=folder, no_disk=False)
        killed_midway(kept, conversations)
        turns = [[*tokens, *tokens[-8:]] for tokens in conversations]  # some more words
        warm_s, texts = next_turns(kept, 18082, turns)
        cold_s, wanted = next_turns(SimpleNamespace(model=options.model, folder=empty, no_disk=False), 18083, turns)
    if texts != wanted:
        raise SystemExit("a text differs after the restart")
    ratios = [warm / cold for warm, cold in zip(warm_s, cold_s, strict=True)]
    for warm, cold, ratio in zip(warm_s, cold_s, ratios, strict=True):
        print(f"first token after {1e3 * warm:8.1f} ms, computed anew {1e3 * cold:8.1f} ms: {ratio:.3f}")
    print(f"median {statistics.median(ratios):.3f}, least {min(ratios):.3f}, most {max(ratios):.3f}; all texts equal")
    if options.json:
        row = {"warm_s": warm_s, "cold_s": cold_s, "conversations": options.conversations, "length": options.length}
        options.json.write_text(json.dumps({**provenance(), **row}, indent=1))


if __name__ == "__main__":
    main()
