"""Models in several GGUF files, as the gguf package writes them: read as the whole, or refused with what is wrong."""

import json
import shutil
import struct

import gguf
import pytest
import torch

from tests import gguf_files
from tests.tiny_models import prompt
from tokenmill.cli.main import main
from tokenmill.engine.load import load
from tokenmill.errors import CheckpointError
from tokenmill.hub.names import locate
from tokenmill.loader.copies import copy_names
from tokenmill.settings.engine_config import EngineConfig
from tokenmill.weights.checkpoint import open_checkpoint
from tokenmill.weights.fingerprint import files_of, fingerprint
from tokenmill.weights.gguf.header import read_parts

KIND = gguf.GGMLQuantizationType.Q4_0
NAMES = [f"x-{number:05}-of-00003.gguf" for number in (1, 2, 3)]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A folder with a model of 21 tensors in one file, and in three parts."""
    folder = tmp_path_factory.mktemp("parts")
    gguf_files.write(folder / "whole.gguf", "llama", KIND)
    gguf_files.write(folder / "x.gguf", "llama", KIND, split=8)
    assert sorted(path.name for path in folder.iterdir()) == ["whole.gguf", *NAMES]
    return folder


@pytest.fixture
def parts(written, tmp_path):
    for name in NAMES:
        shutil.copy(written / name, tmp_path / name)
    return tmp_path


def change(path, key: str, value: int, kind: str = "H") -> None:
    """Overwrite the value of a whole number in the metadata."""
    data = bytearray(path.read_bytes())
    at = data.index(key.encode()) + len(key) + 4
    struct.pack_into(f"<{kind}", data, at, value)
    path.write_bytes(data)


def refused(path) -> str:
    with pytest.raises(CheckpointError) as error:
        open_checkpoint(path)
    return str(error.value)


@pytest.mark.parametrize("name", NAMES)
def test_any_part_opens_all(written, name):
    whole, found = open_checkpoint(written / "whole.gguf"), open_checkpoint(written / name)
    assert found.shapes == whole.shapes and found.config == whole.config and found.num_bytes == whole.num_bytes
    assert {key for key in found.metadata if key.startswith("split.")} == found.metadata.keys() - whole.metadata.keys()
    for each in whole.shapes:
        assert torch.equal(found.read(each), whole.read(each))
    assert found.tokenizer().encode("the cat") == whole.tokenizer().encode("the cat")


def test_logits_are_those_of_the_whole(written):
    tokens = prompt(9, seed=2)
    assert torch.equal(load(written / NAMES[1]).logits(tokens), load(written / "whole.gguf").logits(tokens))


def test_a_whole_file_has_one_part(written):
    header, parts = read_parts(written / "whole.gguf")
    assert [part.path for part in parts] == [written / "whole.gguf"] and parts[0].data_offset == header.data_offset


def test_the_digest_is_of_all_parts_whichever_is_named(parts):
    paths = [parts / name for name in NAMES]
    assert all(files_of(path) == {"weights": paths} for path in paths)
    digests = {tuple(fingerprint(path, how).items()) for path in paths for how in ("sampled", "full")}
    assert len(digests) == 2
    data = bytearray(paths[2].read_bytes())
    data[-40] ^= 1
    paths[2].write_bytes(data)
    assert tuple(fingerprint(paths[0]).items()) not in digests


@pytest.mark.parametrize("suffix", [".GGUF", ".bin"])
def test_parts_of_another_suffix_are_parts(parts, suffix):
    """The file's first bytes tell its kind. The digest was of the named part alone: a copy outlived another part."""
    for name in NAMES:
        (parts / name).rename((parts / name).with_suffix(suffix))
    first, last = ((parts / name).with_suffix(suffix) for name in (NAMES[0], NAMES[2]))
    assert len(read_parts(first)[1]) == 3
    before = fingerprint(first)
    data = bytearray(last.read_bytes())
    data[-1] ^= 1
    last.write_bytes(data)
    assert fingerprint(first) != before


def test_a_part_is_located_as_the_first(parts):
    assert locate(str(parts / NAMES[2])) == parts / NAMES[0]
    names = copy_names(parts / NAMES[0], EngineConfig())
    (parts / NAMES[2]).unlink()
    assert not set(copy_names(parts / NAMES[0], EngineConfig()).values()) & set(names.values())
    (parts / NAMES[0]).unlink()
    assert locate(str(parts / NAMES[1])) == parts / NAMES[1]


def test_info_lists_the_tensors_of_all_parts(written, capsys):
    assert main(["info", str(written / NAMES[1]), "--json"]) == 0
    split = json.loads(capsys.readouterr().out)
    assert main(["info", str(written / "whole.gguf"), "--json"]) == 0
    whole = json.loads(capsys.readouterr().out)
    assert split.pop("path") == str(written / NAMES[0]) and whole.pop("path") == str(written / "whole.gguf")
    assert split == whole and sum(entry["count"] for entry in split["types"].values()) == 21


def test_a_count_that_is_none_is_refused(tmp_path):
    path = gguf_files.write(tmp_path / "x.gguf", "llama", metadata={"split.count": -1})
    assert "split.count = -1 is not allowed: a whole number from 0" in refused(path)


def test_missing_parts_are_named(parts):
    (parts / NAMES[2]).unlink()
    said = f"{parts / NAMES[1]} is part 2 of 3 of a model, and beside it is no {NAMES[2]}"
    assert refused(parts / NAMES[1]) == said
    (parts / NAMES[0]).unlink()
    assert refused(parts / NAMES[1]).endswith(f"beside it is no {NAMES[0]}, {NAMES[2]}")


@pytest.mark.parametrize("name", ["x.gguf", "x-00001-of-00002.gguf", "x-00003-of-00003.gguf", "sha256-a"])
def test_a_part_under_another_name_cannot_find_the_others(written, tmp_path, name):
    shutil.copy(written / NAMES[1], tmp_path / name)
    assert refused(tmp_path / name) == (
        f"{tmp_path / name} is part 2 of 3 of a model, so its name has to be …-00002-of-00003.gguf"
    )


def test_what_the_parts_say_of_themselves_has_to_fit(parts):
    paths = [parts / name for name in NAMES]
    change(paths[1], "split.no", 2)
    assert refused(paths[0]).endswith(f"{paths[1]}: split.no is 2, but it is 1 by its name")
    change(paths[1], "split.no", 1)
    change(paths[1], "split.count", 4)
    assert refused(paths[0]).endswith(f"{paths[1]} is no part of this model: split.count is 4, and 3 in the first")
    change(paths[1], "split.count", 3)
    for path in paths:
        change(path, "split.tensors.count", 22, "i")
    assert refused(paths[0]).endswith(f"{paths[0]}: split.tensors.count is 22, but all parts have 21 tensors")
    change(paths[1], "split.tensors.count", 21, "i")
    assert refused(paths[2]).endswith(
        f"{paths[1]} is no part of this model: split.tensors.count is 21, and 22 in the first"
    )
    change(paths[0], "split.no", 7)
    assert "is part 8 of 3 of a model, so its name has to be" in refused(paths[0])


def test_a_tensor_is_in_one_part_only(parts):
    data = (parts / NAMES[1]).read_bytes()
    first = read_parts(parts / NAMES[0])[0].tensors
    of = {number: [name for name, info in first.items() if info.part == number] for number in range(3)}
    new, old = next((new, old) for new in of[0] for old in of[1] if old == new.replace("blk.0", "blk.1"))
    (parts / NAMES[1]).write_bytes(data.replace(old.encode(), new.encode()))
    assert refused(parts / NAMES[2]).endswith(f"tensor {new!r} is both in {parts / NAMES[0]} and in {NAMES[1]}")


def test_a_part_of_another_model_is_refused(parts):
    data = (parts / NAMES[2]).read_bytes()
    (parts / NAMES[2]).write_bytes(data.replace(b"split.no", b"split.xx"))
    assert "split.no" in refused(parts / NAMES[0])
