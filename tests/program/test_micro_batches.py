"""How a step is cut into micro-batches: shapes and padding by hand, and the tokens that come of it."""

import pytest
import torch

from tests.program.test_compiled import PROMPTS, engine_for, same
from tests.tiny_models import prompt, save
from tokenmill.cache.pool import Pool
from tokenmill.cache.step import Span, Step
from tokenmill.program.compiled.micro_batches import (
    DynamicShapes,
    Inputs,
    MicroBatched,
    StaticShapes,
    StepShape,
    _wanted,
    split,
)
from tokenmill.program.compiled.tables import BlockTables

slots_of = Pool.slots_of
CPU = torch.device("cpu")


def span(count, start, num_logits=1, first=0, blocks=()):
    return Span(first, count, start, 0, None, num_logits, blocks)


def test_sequences_of_one_token_run_together():
    spans = [span(1, 4), span(7, 0), span(1, 300), span(1, 9), span(2, 5)]
    batches = split(spans, 2)
    assert batches == [[spans[0], spans[2]], [spans[3]], [spans[1]], [spans[4]]]
    assert split(spans[1:2], 2) == [[spans[1]]] and split([], 2) == []


def test_static_sizes():
    shapes = StaticShapes(6, 512, 1500)
    assert (shapes.sequences, shapes.tokens, shapes.keys) == ([1, 2, 4, 6], [1, 8, 32, 128, 512], [256, 1024, 1500])
    small = StaticShapes(1, 600, 100)
    assert (small.sequences, small.tokens, small.keys) == ([1], [1, 8, 32, 100], [100])
    assert StaticShapes(4, 5, 256).tokens == [1, 5] and StaticShapes(4, 8, 256).keys == [256]


def test_the_smallest_static_shape_is_taken():
    shapes = StaticShapes(6, 512, 1500)
    assert shapes.of([span(1, 4)]) == StepShape(1, 1, 256)
    assert shapes.of([span(1, 255), span(1, 4), span(1, 0)]) == StepShape(4, 1, 256)
    assert shapes.of([span(1, 4), span(1, 256)]) == StepShape(2, 1, 1024)
    assert shapes.of([span(8, 0)]) == StepShape(1, 8, 256)
    assert shapes.of([span(9, 1020, num_logits=2)]) == StepShape(1, 32, 1500, True)
    shape = StepShape(2, 1, 1024)
    assert shapes.compilation(shape) == (shape, shape)


def test_dynamic_sizes_are_those_that_come():
    shapes = DynamicShapes(330)
    assert shapes.of([span(1, 31)]) == StepShape(1, 1, 32)
    assert shapes.of([span(1, 4), span(1, 32)]) == StepShape(2, 1, 64)
    assert shapes.of([span(7, 318, num_logits=2)]) == StepShape(1, 7, 330, True)


def test_what_dynamic_code_is_compiled_with():
    """One function for one sequence, one for several and one for a chunk; each with and without all logits."""
    shapes = DynamicShapes(1000)
    assert shapes.compilation(StepShape(1, 1, 32)) == (StepShape(1, 1, 0), StepShape(1, 1, 320))
    assert shapes.compilation(StepShape(5, 1, 640)) == (StepShape(2, 1, 0), StepShape(5, 1, 640))
    assert shapes.compilation(StepShape(2, 1, 640)) == (StepShape(2, 1, 0), StepShape(2, 1, 640))
    assert shapes.compilation(StepShape(1, 9, 640, True)) == (StepShape(1, 2, 0, True), StepShape(1, 9, 640, True))
    assert DynamicShapes(100).compilation(StepShape(1, 2, 32)) == (StepShape(1, 2, 0), StepShape(1, 2, 100))


def test_sizes_that_are_alike_are_told_apart():
    """Two dynamic sizes that agree while compiling would be taken for one."""
    assert DynamicShapes(1000).compilation(StepShape(320, 1, 64))[1] == StepShape(321, 1, 320)
    dynamic = DynamicShapes(96)
    for count in range(2, 97):
        (batch,) = split([span(count, 0)], 4)
        _, example = dynamic.compilation(dynamic.of(batch))
        assert example.num_tokens != example.num_keys >= count


def inputs(token_ids, positions, tables, num_keys, rows=None):
    tensors = (torch.tensor(each) for each in (token_ids, positions, tables))
    return Inputs(*tensors, torch.arange(num_keys), None if rows is None else torch.tensor(rows))


def test_slots_follow_from_the_tables():
    """Blocks of 4: position 5 of a sequence in blocks 7 and 2 is the second slot of block 2."""
    step = inputs([[10], [20]], [[5], [3]], [[7, 2], [1, 0]], 6).padded(4)
    assert step.token_ids_T.tolist() == [10, 20] and step.positions_T.tolist() == [5, 3]
    assert step.slots_T.tolist() == [9, 7]
    assert step.keys_BL.tolist() == [[28, 29, 30, 31, 8, 9], [4, 5, 6, 7, 0, 1]]
    assert step.rows_R is None and step.num_rows == 2
    chunk = inputs([[10, 11, 12]], [[3, 4, 5]], [[7, 2]], 6, rows=[1]).padded(4)
    assert chunk.slots_T.tolist() == [31, 8, 9] and chunk.rows_R.tolist() == [1] and chunk.num_rows == 1


def test_inputs_are_told_in_words():
    assert str(inputs([[1], [2]], [[0], [0]], [[0], [0]], 6)) == "a step of 2 x 1 tokens, 6 positions"
    assert str(inputs([[1, 2]], [[0, 1]], [[0]], 6, rows=[1])) == "a step of 1 x 2 tokens, 6 positions"
    assert str(inputs([[1, 2]], [[0, 1]], [[0]], 6)) == "a step of 1 x 2 tokens, 6 positions, all logits"


@pytest.fixture(scope="module")
def program(llama):
    """Of positions up to 96 in blocks of 8; nothing is compiled."""
    engine = engine_for(llama, program="compiled", compile="no")
    return engine.core.loaded.program


def test_a_batch_is_padded_by_its_last_token_and_its_last_sequence(program):
    spans = [span(1, 4, first=0, blocks=[3]), span(1, 9, first=1, blocks=[1, 2])]
    step = Step([11, 12], [4, 9], [28, 17], spans, None, 2, CPU)
    found = program.stage(spans, StepShape(4, 1, 16), step)
    assert found.token_ids_BC.tolist() == [[11], [12], [12], [12]]
    assert found.positions_BC.tolist() == [[4], [9], [9], [9]]
    blocks = found.tables_BM.shape[1]
    assert 8 * blocks >= program.decoder.num_positions > 8 * (blocks - 1)
    assert found.tables_BM.tolist() == [[*ids, *[0] * (blocks - len(ids))] for ids in ([3], [1, 2], [1, 2], [1, 2])]
    assert found.offsets_L.tolist() == list(range(16)) and found.rows_B is None


@pytest.mark.parametrize("all_rows", [False, True])
def test_a_chunk_is_padded_by_its_last_token(program, all_rows):
    chunk = span(3, 5, num_logits=3 if all_rows else 1, first=1, blocks=[4])
    step = Step([9, 21, 22, 23], [0, 5, 6, 7], [0, 37, 38, 39], [span(1, 0), chunk], None, 4, CPU)
    found = program.stage([chunk], StepShape(2, 8, 16, all_rows), step)
    assert found.token_ids_BC.tolist() == [[21, 22, *[23] * 6]] * 2
    assert found.positions_BC.tolist() == [[5, 6, *[7] * 6]] * 2
    assert found.rows_B is None if all_rows else found.rows_B.tolist() == [2, 2]


@pytest.mark.parametrize(("num_tokens", "num_saves", "filled_up"), [(9, 1, 2), (2, 1, 3), (4, 4, 5), (16, 16, 17)])
def test_a_span_has_as_many_saves_as_it_has_of_nothing_else(num_tokens, num_saves, filled_up, models):
    """Of 16 positions. What fills up is the last save again; a text that begins has no state yet."""
    program = engine_for(save("lfm2", models), program="compiled", compile="no").core.loaded.program
    saves = [(num_tokens - num_saves + number, 5 + number) for number in range(1, num_saves + 1)]
    chunk = span(num_tokens, 0, blocks=[3])._replace(saves=tuple(saves))
    step = Step([*range(num_tokens)], [*range(num_tokens)], [*range(24, 24 + num_tokens)], [chunk], None, 1, CPU)
    found = program.stage([chunk], StepShape(1, num_tokens, 16), step)
    assert found.states_B.tolist() == [-1]
    assert found.saves_S2.tolist() == [[*each] for each in saves + saves[-1:] * (filled_up - num_saves)]
    assert found.without_states().saves_S2.tolist() == [[count, -1] for count, _ in found.saves_S2.tolist()]


def test_a_table_that_is_too_long_is_cut_off(program):
    blocks = range(100, 200)
    step = Step([9], [0], [0], [span(1, 0, blocks=blocks)], None, 1, CPU)
    found = program.stage(step.spans, StepShape(1, 1, 16), step)
    assert found.tables_BM.tolist() == [[*blocks[: found.tables_BM.shape[1]]]]


def test_tables_of_one_step_after_the_other():
    """What grows, shrinks, is replaced, ends or moves to another row is as if it were staged for the first time."""
    grows, others = [1, 2], [7, 8, 9]
    kept, seen = BlockTables(4, 4), []
    steps = [
        lambda: [grows, others],
        lambda: grows.append(3) or [grows, others],
        lambda: grows.pop() and [grows, others],
        lambda: others.__setitem__(1, 6) or [grows, others],
        lambda: [others, grows, range(3, 9)],
        lambda: [grows],
    ]
    for step in steps:
        tables = step()
        staged = kept.staged(tables, 4, CPU)
        assert torch.equal(staged, BlockTables(4, 4).staged(tables, 4, CPU))
        rows = [list(tables[min(row, len(tables) - 1)][:4]) for row in range(4)]
        assert staged.tolist() == [[*row, *[0] * (4 - len(row))] for row in rows]
        seen.append((staged, staged.clone()))
    assert all(torch.equal(*pair) for pair in seen), "a later step changes none that may be on its way"


@pytest.mark.parametrize("program", ["compiled", "eager"])
def test_slots_are_made_for_what_reads_them(llama, program, monkeypatch):
    """Prompts are computed by the modules, which read the slots of a text of several blocks; a compiled step reads its
    table of blocks.
    """
    made = []
    monkeypatch.setattr(Pool, "slots_of", lambda pool, *args: made.append(args) or slots_of(pool, *args))
    given = {"compile": "no", "compile_phases": "decode"} if program == "compiled" else {}
    engine = engine_for(llama, program=program, **given)
    engine.generate(prompt(19), max_new_tokens=4, ignore_eos=True)
    assert [count for _, count in made] == ([19] if program == "compiled" else [19, 20, 21, 22])


def test_the_wanted_rows_of_each_span():
    logits = torch.arange(8.0)[:, None]
    together = [span(1, 4, first=3), span(1, 4, num_logits=0, first=5), span(1, 9, first=7)]
    found = {first: rows.flatten().tolist() for first, rows in _wanted(together, logits).items()}
    assert found == {3: [0.0], 5: [], 7: [2.0]}
    assert _wanted([span(5, 0, num_logits=2, first=6)], logits)[6].flatten().tolist() == [3.0, 4.0]
    assert _wanted([span(5, 0, num_logits=1, first=6)], logits)[6].flatten().tolist() == [0.0]


@pytest.mark.parametrize("phases", ["decode", "prefill", "both"])
def test_the_tokens_are_those_of_the_plain_modules(phases, llama):
    """Prompts that are fed in pieces beside sequences that are decoded, so that steps hold spans of both kinds."""
    how = {"max_step_tokens": 9, "max_sequences": 3}
    ours = engine_for(llama, program="compiled", compile="no", compile_phases=phases, **how)
    same(ours, engine_for(llama, program="eager", **how))
    calls = ours.core.loaded.program.calls
    assert None not in calls.values()
    kinds = {shape.num_tokens > 1 for shape in calls}
    assert kinds == {"decode": {False}, "prefill": {True}, "both": {False, True}}[phases]


def test_logits_of_every_row(llama):
    ours, plain = engine_for(llama, program="compiled", compile="no"), engine_for(llama, program="eager")
    for tokens in (PROMPTS[1], prompt(1), prompt(90)):
        torch.testing.assert_close(ours.logits(tokens), plain.logits(tokens))


def test_weights_lie_one_after_the_other(program):
    addresses = [(each.data_ptr(), each.nbytes) for each in program.decoder.parameters()]
    ends = [address + size for address, size in addresses]
    assert all(0 <= next_ - end < 4096 for (next_, _), end in zip(addresses[1:], ends[:-1], strict=True))


def test_another_program_says_what_it_runs():
    with pytest.raises(NotImplementedError):
        MicroBatched.find(None, [], None)
