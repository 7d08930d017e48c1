"""Random conversations: shared beginnings, new messages, messages edited, texts cut anywhere, forks, restarts."""

from itertools import chain


def conversations(random, number, beginnings, message, answer, vocabulary, num_open=6, max_length=2048):
    """Yield the prompt of each turn, or None for a restart; the answer is sent back.

    beginnings, message: ranges of the lengths of what conversations begin with and of new messages. answer: of answers.
    """

    def tokens(lengths):
        return [random.randrange(vocabulary) for _ in range(random.randrange(*lengths))]

    shared, running, begun = [tokens(beginnings) for _ in range(8)], [], 0
    while begun < number or running:
        if begun < number and len(running) < num_open:
            running.append([random.choice(shared)])
            begun += 1
            continue
        parts = running.pop(random.randrange(len(running)))  # the beginning, then message, answer, message, answer …
        act = random.random()
        if act < 0.10 and len(parts) > 2:  # one of the last two messages is written anew
            parts = parts[: max(len(parts) - random.choice((2, 2, 4)), 1)]
        elif act < 0.13:  # cut anywhere
            whole = list(chain(*parts))
            parts = [whole[: random.randrange(len(whole) // 2, len(whole)) + 1]]
        elif act < 0.20 and begun < number:
            running.append(list(parts))
            begun += 1
        elif act < 0.22:
            yield None
        parts = [*parts, tokens(message)]
        prompt = list(chain(*parts))
        if len(prompt) + answer[1] > max_length:
            continue
        parts.append((yield prompt, random.randrange(*answer)))
        if random.random() < 0.85:
            running.append(parts)


def hold(told, answer):
    """Hold conversations: a function gets each turn, or None for a restart, and returns what is answered."""
    given = None
    while True:
        try:
            turn = told.send(given)
        except StopIteration:
            return
        given = answer(turn)
