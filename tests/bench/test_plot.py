"""Pictures of result rows: real files, right labels, what failed is marked, what has no data is left out and said."""

import json
import struct
from functools import partial
from xml.etree import ElementTree

import pytest
from matplotlib.text import Text

from tokenmill import TokenmillError
from tokenmill.bench.plot import PICTURES, draw, figures
from tokenmill.bench.plot.frame import style
from tokenmill.bench.plot.roofline import Roof
from tokenmill.bench.plot.series import group, number, points

CROSS = "unmeasured"  # what the cross of a failed row is called inside a figure


def row(**values):
    """One measured point; whatever a test does not name is the same in all."""
    return {
        "version": 1,
        "kind": "sweep",
        "model": "HuggingFaceTB/SmolLM2-135M",
        "program": "eager",
        "scheme": "packed",
        "dtype": "bfloat16",
        "device": "cpu",
        "threads": 2,
        "processor": "Some Processor",
        "commit": "abc1234",
        "status": "ok",
        "prompt": 128,
        "new": 32,
        "batch": 1,
    } | values


def sweep():
    """Batches 1, 2, 4 of two prompt lengths; the largest is out of memory, the next is refused."""
    rows = []
    for prompt in (128, 512):
        for batch in (1, 2, 4):
            ms = 10.0 + batch + prompt / 100
            rows.append(
                row(
                    prompt=prompt,
                    batch=batch,
                    label=f"pp{prompt} b{batch}",
                    decode_ms=ms,
                    decode_ms_min=ms * 0.8,
                    decode_ms_max=ms * 1.25,
                    decode_tok_s=1000 * batch / ms,
                    prefill_tok_s=900.0 + prompt / 10,
                    itl_ms=[ms + 0.1 * step for step in range(100)],
                    decode_gflop_s=20.0 * batch,
                    decode_gb_s=10.0,
                    prefill_gflop_s=190.0 if prompt == 128 else 80.0,
                    prefill_gb_s=1.0,
                    machine_read_gb_s=20.0,
                    machine_gflop_s=200.0,
                )
            )
    rows[-1] = row(prompt=512, batch=4, status="out of memory", reason="2 GB needed")
    rows[-2] = row(prompt=512, batch=2, status="refused", reason="over max_length")
    return rows


def ladder():
    rungs = [("eager", 20.0), ("packed", 50.0), ("compiled", None), ("native", 100.0)]
    return [
        row(kind="ladder", label=label, decode_tok_s=rate, decode_tok_s_min=rate * 0.9, decode_tok_s_max=rate * 1.1)
        if rate
        else row(kind="ladder", label=label, status="failed", reason="no compiler")
        for label, rate in rungs
    ]


def texts(artists):
    return [text.get_text() for text in artists]


def words_of(figure):
    """Title, subtitle and caption."""
    return " ".join(texts(figure.texts)).replace("\N{NO-BREAK SPACE}", " ")


def legend_of(axes):
    return [] if axes.get_legend() is None else texts(axes.get_legend().get_texts())


def crosses(axes):
    return [line for line in axes.lines if line.get_gid() == CROSS]


# ---- files


@pytest.mark.slow
def test_every_picture_is_a_real_png_and_svg(tmp_path):
    drawn = draw(sweep() + ladder(), tmp_path / "new" / "folder")
    assert {path.name for path in drawn.written} == {f"{name}.{kind}" for name in PICTURES for kind in ("png", "svg")}
    assert drawn.left_out == {}
    for path in drawn.written:
        data = path.read_bytes()
        if path.suffix == ".png":
            assert data[:8] == b"\x89PNG\r\n\x1a\n"
            wide, high = struct.unpack(">II", data[16:24])
            assert 900 < wide < 2000
            assert 500 < high < 2000
        else:
            assert ElementTree.fromstring(data).tag == "{http://www.w3.org/2000/svg}svg"
    assert len(list((tmp_path / "new" / "folder").iterdir())) == len(drawn.written)  # nothing temporary is left


@pytest.mark.slow
def test_the_same_rows_give_the_same_bytes(tmp_path):
    for place in ("one", "two"):
        draw(sweep(), tmp_path / place)
    for path in (tmp_path / "one").iterdir():
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes(), path.name


def test_pictures_without_data_are_left_out_with_the_reason(tmp_path):
    drawn = draw([row(decode_tok_s=50.0)], tmp_path)
    assert drawn.written == ()
    assert set(drawn.left_out) == {"sweep", "roofline", "ladder"}
    assert "every result has batch 1" in drawn.left_out["sweep"]
    assert "no result has prefill_tok_s" in drawn.left_out["sweep"]
    assert "machine_read_gb_s" in drawn.left_out["roofline"]
    assert 'kind "ladder"' in drawn.left_out["ladder"]


def test_a_panel_without_data_is_left_out_alone():
    found, left_out = figures([row(batch=batch, decode_tok_s=10.0 * batch) for batch in (1, 2)])
    assert len(found["sweep"].axes) == 1
    assert left_out["sweep, prefill"] == "no result has prefill_tok_s"


def test_rows_that_failed_throughout_draw_nothing():
    found, left_out = figures([row(batch=batch, status="refused", reason="why") for batch in (1, 2)])
    assert found == {}
    assert "no result has decode_tok_s" in left_out["sweep"]


# ---- sweep


def test_sweep_has_a_line_per_prompt_and_says_what_all_rows_share():
    figure = figures(sweep())[0]["sweep"]
    decode, prefill = figure.axes
    assert legend_of(decode) == ["prompt 128", "prompt 512"]
    assert legend_of(prefill) == ["batch 1", "batch 2", "batch 4"]
    line = decode.containers[0].lines[0]
    assert list(line.get_xdata()) == [1, 2, 4]
    assert list(line.get_ydata()) == pytest.approx([1000 / 12.28, 2000 / 13.28, 4000 / 15.28])
    assert decode.get_xlabel() == "sequences in a batch"
    assert texts(decode.get_xticklabels()) == ["1", "2", "4"]
    assert decode.get_ylim()[0] == 0
    for word in ("Tokens per second", "SmolLM2-135M", "Some Processor", "threads 2", "commit abc1234"):
        assert word in words_of(figure)


def test_no_marker_is_cut_by_the_top_of_a_panel():
    """Values that lie close together far from 0 are the hard case: matplotlib's own margin is a part of their range."""
    for axes in figures(sweep())[0]["sweep"].axes:
        assert axes.get_ylim()[0] == 0
        assert axes.get_ylim()[1] >= 1.07 * max(line.get_ydata().max() for line in axes.lines if len(line.get_ydata()))


def test_rates_have_the_whiskers_of_their_times():
    (point,) = points(
        [row(decode_tok_s=100.0, decode_ms=10.0, decode_ms_min=8.0, decode_ms_max=20.0)], "batch", "decode_tok_s"
    )
    assert (point.low, point.high) == (50.0, 125.0)
    (point,) = points([row(decode_tok_s=100.0, decode_tok_s_min=90.0, decode_tok_s_max=130.0)], "batch", "decode_tok_s")
    assert (point.low, point.high) == (90.0, 130.0)


def test_what_failed_is_a_hollow_cross_at_the_axis_and_is_counted():
    figure = figures(sweep())[0]["sweep"]
    decode = figure.axes[0]
    marks = crosses(decode)
    assert sorted(mark.get_xdata()[0] for mark in marks) == [2, 4]
    for mark in marks:
        assert mark.get_marker() == "X"
        assert mark.get_markerfacecolor() == "white"
        assert mark.get_markeredgecolor() == style(1).colour  # that of prompt 512
        assert mark.get_ydata()[0] < 0.1
    assert {"refused", "out of memory"} <= set(texts(decode.texts))
    assert "2 of 6 results have no figures" in words_of(figure)
    assert "2 GB needed" in words_of(figure)


def test_several_failures_at_one_place_stand_above_each_other():
    rows = sweep()
    rows[2] = row(prompt=128, batch=4, status="refused", reason="why")
    decode = figures(rows)[0]["sweep"].axes[0]
    heights = sorted(mark.get_ydata()[0] for mark in crosses(decode) if mark.get_xdata()[0] == 4)
    assert heights[0] < heights[1]
    assert "1 refused, 1 out of memory" in texts(decode.texts)


def test_several_results_of_one_point_are_their_median():
    rows = [row(batch=batch, decode_tok_s=rate) for batch in (1, 2) for rate in (10.0, 90.0, 20.0)]
    figure = figures(rows)[0]["sweep"]
    assert list(figure.axes[0].containers[0].lines[0].get_ydata()) == [20.0, 20.0]
    assert "drawn as their median" in words_of(figure)


def test_noisy_results_are_said():
    rows = [row(batch=batch, decode_tok_s=9.0, noisy=batch == 2) for batch in (1, 2)]
    assert "1 of 2 results were taken while the machine was busy" in words_of(figures(rows)[0]["sweep"])


def test_many_lines_differ_in_marker_or_dash():
    looks = [style(index) for index in range(28)]
    assert len({(look.colour, look.marker, look.dash) for look in looks}) == 28
    assert len({look.colour for look in looks[:7]}) == len({look.marker for look in looks[:7]}) == 7


# ---- what tells series apart


def test_series_are_named_by_what_differs_and_nothing_else():
    rows = [row(program=program, threads=threads) for program in ("eager", "native") for threads in (1, 2)]
    assert [one.name for one in group(rows)] == [
        "eager · threads 1",
        "eager · threads 2",
        "native · threads 1",
        "native · threads 2",
    ]
    assert [one.name for one in group([row(), row()])] == [""]
    # scheme differs only together with program: one of them is enough
    rows = [row(program="eager", scheme="dense"), row(program="native", scheme="q8")]
    assert [one.name for one in group(rows)] == ["eager", "native"]


def test_labels_name_configurations_and_not_shapes():
    assert [one.name for one in group([row(label="ours", kind="peers"), row(label="theirs", kind="peers")])] == [
        "ours",
        "theirs",
    ]
    assert [one.name for one in group([row(label="b1"), row(label="b2", batch=2)])] == ["batch 1", "batch 2"]


def test_the_fingerprint_that_labels_a_sweep_is_named_only_where_nothing_else_differs():
    rows = [row(label="e3f7a281", program="eager"), row(label="0b5c90aa", program="native")]
    assert [one.name for one in group(rows)] == ["eager", "native"]
    assert [one.name for one in group([row(label="e3f7a281"), row(label="0b5c90aa")])] == ["0b5c90aa", "e3f7a281"]


def test_cores_stand_in_for_threads_that_nobody_set():
    rows = [row(batch=batch, decode_tok_s=9.0, threads=None, cores=16) for batch in (1, 2)]
    assert "cores 16" in words_of(figures(rows)[0]["sweep"])
    assert "cores" not in words_of(figures([one | {"threads": 4} for one in rows])[0]["sweep"])


def test_numbers_are_in_the_order_of_their_size():
    rows = [row(prompt=prompt) for prompt in (1024, 64, 512)]
    assert [one.name for one in group(rows)] == ["prompt 64", "prompt 512", "prompt 1024"]


def test_a_failed_row_joins_the_series_that_it_does_not_contradict():
    measured = [row(prompt=128, kernel="rows"), row(prompt=512, kernel="rows")]
    failed = [row(prompt=512, kernel=None, status="refused"), row(prompt=2048, status="refused")]
    found = {one.name: len(one.failed) for one in group(measured, failed)}
    assert found == {"prompt 128": 0, "prompt 512": 1, "prompt 2048": 1}


@pytest.mark.parametrize("value", [None, "", "nan", float("nan"), float("inf"), 0, -1.0, True])
def test_what_is_no_measurement_is_not_drawn(value):
    assert number(value) is None


# ---- roofline


def test_roof_is_the_lower_of_memory_and_arithmetic():
    roof = Roof("", read_gb_s=20.0, gflop_s=200.0)
    assert (roof.at(1.0), roof.corner, roof.at(1000.0)) == (20.0, 10.0, 200.0)


def test_roofline_is_log_log_with_operations_per_byte():
    figure = figures(sweep())[0]["roofline"]
    (axes,) = figure.axes
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("operations per byte", "GFLOP/s")
    spots = {
        kind: [(line.get_xdata()[0], line.get_ydata()[0]) for line in axes.lines if line.get_gid() == kind]
        for kind in ("decode", "prefill")
    }
    assert set(spots["decode"]) == {(2.0, 20.0), (4.0, 40.0), (8.0, 80.0)}
    assert set(spots["prefill"]) == {(190.0, 190.0), (80.0, 80.0)}
    (roof,) = (line for line in axes.lines if line.get_gid() == "roof")
    assert roof.get_xdata()[1] == 10.0
    assert max(roof.get_ydata()) == 200.0
    words = texts(axes.texts)
    assert "memory 20 GB/s" in words
    assert "arithmetic 200 GFLOP/s" in words
    assert "batch 1: 50 %" in words
    assert "prompt 512: 40 %" in words
    assert legend_of(axes) == ["decode", "prefill", "refused and out of memory"]


def test_labels_of_points_do_not_cover_each_other():
    axes = figures(sweep())[0]["roofline"].axes[0]
    # Of the words alone: an annotation's own extent has the line to its point in it.
    boxes = [Text.get_window_extent(text) for text in axes.texts if not text.get_rotation()]
    assert len(boxes) >= 4
    for index, box in enumerate(boxes):
        assert not any(box.overlaps(other) for other in boxes[:index])


def test_two_machines_have_two_roofs():
    rows = [
        one | {"processor": name, "machine_read_gb_s": read}
        for name, read in (("A", 20.0), ("B", 40.0))
        for one in sweep()[:3]
    ]
    axes = figures(rows)[0]["roofline"].axes[0]
    assert sum(line.get_gid() == "roof" for line in axes.lines) == 2
    roofs = ["A: 20 GB/s, 200 GFLOP/s", "B: 40 GB/s, 200 GFLOP/s"]
    assert legend_of(axes) == ["decode", "prefill", "A", "B", *roofs]


# ---- ladder


def test_ladder_has_a_bar_per_rung_with_its_factor():
    figure = figures(ladder())[0]["ladder"]
    (axes,) = figure.axes
    assert texts(axes.get_yticklabels()) == ["eager", "packed", "compiled", "native"]
    assert [round(bar.get_width()) for bar in axes.patches] == [20, 50, 100]
    assert texts(axes.texts)[:2] == ["20", "50   \N{MULTIPLICATION SIGN}2.50"]
    assert "100   \N{MULTIPLICATION SIGN}2.00" in texts(axes.texts)  # over packed: compiled has no figure
    assert "failed" in texts(axes.texts)
    assert len(crosses(axes)) == 1
    assert "1 of 4 results have no figures, marked with a cross: 1 failed (no compiler)" in words_of(figure)


def test_ladders_of_two_models_are_two_panels():
    rows = [one | {"model": model} for model in ("small", "large") for one in ladder()]
    panels = figures(rows)[0]["ladder"].axes
    assert sorted(axes.get_title(loc="left") for axes in panels) == ["large", "small"]


def test_ladder_rows_are_no_curve():
    assert "sweep" not in figures([one | {"batch": place + 1} for place, one in enumerate(ladder())])[0]


# ---- names from outside


def test_names_are_drawn_as_they_are():
    rows = [
        row(label=label, batch=batch, decode_tok_s=1.0, kind="peers")
        for label in ("_a", "$x$ 100%")
        for batch in (1, 2)
    ]
    assert legend_of(figures(rows)[0]["sweep"].axes[0]) == ["$x$ 100%", " _a"]


# ---- the verb


@pytest.fixture
def tm(tm):
    """Runs `tokenmill bench plot`; gives exit code, stdout and stderr."""
    return partial(tm, "bench", "plot")


@pytest.fixture
def results(tmp_path):
    path = tmp_path / "results.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in sweep()))
    return path


@pytest.mark.slow
def test_the_verb_names_its_files_and_what_is_left_out(tm, results, tmp_path):
    code, out, err = tm(results, "-o", tmp_path / "out")
    assert code == 0
    assert [line.rpartition("/")[2] for line in out.splitlines()] == [
        f"{name}.{kind}" for name in ("sweep", "roofline") for kind in ("png", "svg")
    ]
    assert err.startswith("left out ladder: ")
    code, out, err = tm(results, "-o", tmp_path / "out", "--json", "-q")
    assert (code, err) == (0, "")
    assert set(json.loads(out)) == {"written", "left_out"}


@pytest.mark.slow
def test_what_is_wrong_is_one_line(tm, results, tmp_path):
    empty = tmp_path / "empty.jsonl"
    empty.write_text("")
    for arguments, words in (
        ([empty], "no results"),
        ([tmp_path / "none.jsonl"], "none.jsonl"),
        ([results, "-o", results], "a directory that can be written (Not a directory)"),
        ([results, "-o", results / "below"], "a directory that can be written (Not a directory)"),
    ):
        code, out, err = tm(*arguments)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert words in err


def test_no_rows_are_refused(tmp_path):
    with pytest.raises(TokenmillError, match="no results"):
        draw([], tmp_path)
