"""What other frameworks load by name: a `.safetensors` of a state, or of its weights, read by the format's library."""

import json
import os
import struct
from pathlib import Path

import pytest
from safetensors import deserialize, safe_open

from ckptstore.api import Catalog, connect
from ckptstore.errors import DamageError, RefusedError, UsageError
from ckptstore.formats.safetensors import head_of, read_safetensors
from ckptstore.training import companions
from tests import ckpt_bytes
from tests.contents import WORK, contents
from tests.jobs import Job, begun

pytestmark = pytest.mark.of_files

FLOATS = struct.pack("<4f", 1, 2, 3, 4)
LARGE = bytes(range(256)) * (9 << 12)  # more than two pieces
VALUES = [
    ("fc.weight", "Float32", (2, 2), FLOATS),
    ("fc.half", "BFloat16", (2, 2), b"\x80\x3f\x00\x40\x40\x40\x80\x40"),
    ("fc.large", "UInt8", (len(LARGE),), LARGE),
    ("bn.num_batches_tracked", "Int64", (), struct.pack("<q", 7)),
    ("global_step", "Int32", (1,), struct.pack("<i", 5)),
    ("learning_rate", "Float32", (), struct.pack("<f", 0.1)),
    ("moments.fc.weight", "Float32", (2, 2), FLOATS[::-1]),
    ("moments.fc.half", "BFloat16", (2, 2), bytes(8)),
    ("step_num", "Int64", (), struct.pack("<q", 5)),
    ("comment", "str", (2,), "ja".encode("utf-32-le")),
]
WEIGHTS = ("fc.weight", "fc.half", "fc.large", "bn.num_batches_tracked")


def save(catalog: Catalog, directory: Path, world_size: int = 1, layout: str | None = None) -> Job:
    """Each rank saves step 5 of a small network, with all that a `.ckpt` may hold."""
    job = Job(catalog, directory, world_size, layout, run="digits")
    for launch in job.begin():
        path = job.folder(launch.rank) / "net-1_5.ckpt"
        path.write_bytes(b"".join(ckpt_bytes.value(*each) for each in VALUES))
        file = launch.register(path, global_step=5, optimizer_step=5, metrics={"loss": 0.5 + launch.rank})
        companions.write(file, {"random": [launch.rank]}, durable=False)
    return job


def tensors(path: Path) -> dict[str, tuple[str, list[int], bytes]]:
    return {name: (one["dtype"], one["shape"], bytes(one["data"])) for name, one in deserialize(path.read_bytes())}


def test_a_whole_state(catalog: Catalog, tmp_path: Path, other: Catalog) -> None:
    save(catalog, tmp_path / "ckpt", 2, "data_parallel")
    done = catalog.export("digits", tmp_path / "out", format="safetensors")
    assert (done.holds, done.files) == ("full", 2)
    path = tmp_path / "out" / "rank_0" / "net-1_5.safetensors"
    assert {name: each[2] for name, each in tensors(path).items()} == {
        name: raw for name, dtype, _, raw in VALUES if dtype != "str"
    }
    assert tensors(path)["fc.half"] == ("BF16", [2, 2], VALUES[1][3])
    header = read_safetensors(path)
    assert json.loads(header.metadata["mindspore_info"]) == {"comment": "ja"}
    assert header.optimizer_step == 5
    with safe_open(path, "numpy") as opened:
        assert opened.get_tensor("fc.weight").tolist() == [[1, 2], [3, 4]]
    other.import_(tmp_path / "out", tmp_path / "there")
    plan = other.resolve("digits").plan
    assert [(rank, file.rank, file.format) for rank, file in plan.ranks] == [
        (0, 0, "safetensors"),
        (1, 0, "safetensors"),
    ]
    assert json.loads(companions.read(plan.ranks[0].source).content)["random"] == [0]
    assert plan.metrics == {"loss": 0.5}
    anew = connect(str(tmp_path / "anew.db"))
    anew.scan(tmp_path / "there")
    assert contents(anew, but=WORK) == contents(other, but=WORK)
    again = catalog.export("digits", tmp_path / "again.tar", format="safetensors")
    assert again.bytes == done.bytes


@pytest.mark.parametrize("target", ["out", "out.tar"])
def test_weights_only(catalog: Catalog, tmp_path: Path, target: str, other: Catalog) -> None:
    save(catalog, tmp_path / "ckpt")
    done = catalog.export("digits", tmp_path / target, weights_only=True)
    assert (done.holds, done.files) == ("weights", 1)
    with pytest.raises(RefusedError, match="weights alone were exported"):
        other.import_(tmp_path / target, tmp_path / "there")
    if target == "out":
        found = tensors(tmp_path / target / "rank_0" / "net-1_5.safetensors")
        assert {name: each[2] for name, each in found.items()} == {name: raw for name, _, _, raw in VALUES[:4]}
        assert tuple(sorted(found)) == tuple(sorted(WEIGHTS))


@pytest.mark.parametrize("form", ["ckpt", "safetensors"])
def test_weights_that_look_like_appended_values(catalog: Catalog, tmp_path: Path, form: str) -> None:
    own = [("fc.weight", "Float32", (2, 2), FLOATS), ("count", "Int64", (), bytes(8)), ("flag", "Bool", (), b"\1")]
    others = [("moments.fc.weight", "Float32", (2, 2), FLOATS), ("epoch_num", "Int64", (), bytes(8))]
    job, (launch,) = begun(catalog, tmp_path / "ckpt", world_size=1, run="digits")
    path = job.folder(0) / f"net-1_5.{form}"
    values = own + others
    if form == "ckpt":
        path.write_bytes(b"".join(ckpt_bytes.value(*each) for each in values))
    else:
        head = head_of([(*each[:3], len(each[3])) for each in values], {"format": "ms"})
        path.write_bytes(head + b"".join(each[3] for each in values))
    launch.register(path, global_step=5)
    catalog.export("digits", tmp_path / "out", weights_only=True)
    found = tensors(tmp_path / "out" / "rank_0" / "net-1_5.safetensors")
    assert set(found) == {name for name, *_ in own}


def test_a_safetensors_stays_as_it_is_and_gives_its_weights(catalog: Catalog, other: Catalog, tmp_path: Path) -> None:
    save(catalog, tmp_path / "ckpt")
    catalog.export("digits", tmp_path / "out", format="safetensors")
    other.import_(tmp_path / "out", tmp_path / "there")
    other.export("digits", tmp_path / "same", format="safetensors")
    saved, same = (tmp_path / name / "rank_0" / "net-1_5.safetensors" for name in ("there", "same"))
    assert saved.read_bytes() == same.read_bytes()
    other.export("digits", tmp_path / "weights", weights_only=True)
    assert set(tensors(tmp_path / "weights" / "rank_0" / "net-1_5.safetensors")) == set(WEIGHTS)


@pytest.mark.parametrize("asked", [{"weights_only": True}, {"format": "safetensors"}])
def test_what_cannot_be_one_file_is_refused(catalog: Catalog, tmp_path: Path, asked: dict[str, object]) -> None:
    save(catalog, tmp_path / "ckpt", 2)
    with pytest.raises(RefusedError, match="in the files of 2 ranks, and no one has them all"):
        catalog.export("digits", tmp_path / "out", **asked)
    catalog.export("digits", tmp_path / "out")


@pytest.mark.parametrize("asked", [{"weights_only": True}, {"format": "safetensors"}])
def test_bytes_that_are_not_those_recorded(catalog: Catalog, tmp_path: Path, asked: dict[str, object]) -> None:

    job = save(catalog, tmp_path / "ckpt")
    path = job.folder(0) / "net-1_5.ckpt"
    raw, at = bytearray(path.read_bytes()), path.stat()
    raw[raw.index(FLOATS)] ^= 1
    path.write_bytes(raw)
    os.utime(path, ns=(at.st_atime_ns, at.st_mtime_ns))
    with pytest.raises(DamageError, match="not those that were recorded"):
        catalog.export("digits", tmp_path / "out", **asked)
    assert not list(tmp_path.glob(".out*"))


@pytest.mark.parametrize(
    ("names", "why"),
    [
        ([f"{'x' * 250}{number}" for number in range(60_000)], "a header of .* bytes, more than any model has"),
        (["__metadata__"], "metadata that are not text"),
    ],
    ids=["many", "metadata"],
)
def test_what_could_not_be_read_again(catalog: Catalog, tmp_path: Path, names: list[str], why: str) -> None:
    job, (launch,) = begun(catalog, tmp_path / "ckpt", world_size=1, run="digits")
    path = job.folder(0) / "net-1_5.ckpt"
    path.write_bytes(b"".join(ckpt_bytes.value(name, "Int8", (1,), b"x") for name in names))
    launch.register(path, global_step=5)
    with pytest.raises(RefusedError, match=f"cannot become a .safetensors that can be read: {why}; export it as it is"):
        catalog.export("digits", tmp_path / "out", format="safetensors")
    assert not (tmp_path / "out").exists()
    catalog.export("digits", tmp_path / "out")


def test_a_text_that_is_too_long_is_not_left_out(catalog: Catalog, tmp_path: Path) -> None:
    _, (launch,) = begun(catalog, tmp_path / "ckpt", world_size=1, run="digits")
    path = ckpt_bytes.write(tmp_path / "ckpt" / "rank_0" / "net-1_5.ckpt", 5)
    path.write_bytes(path.read_bytes() + ckpt_bytes.value("config", "str", (1025,), bytes(4 * 1025)))
    launch.register(path, global_step=5)
    with pytest.raises(RefusedError, match="has a text of over 1,024 characters, 'config'"):
        catalog.export("digits", tmp_path / "out", format="safetensors")
    assert catalog.export("digits", tmp_path / "out").files == 1


def test_another_format_or_type(catalog: Catalog, tmp_path: Path) -> None:
    job, (launch,) = begun(catalog, tmp_path / "ckpt", world_size=1, run="digits")
    path = job.folder(0) / "net-1_5.ckpt"
    path.write_bytes(ckpt_bytes.value("odd", "Complex128", (1,), bytes(16)))
    launch.register(path, global_step=5)
    with pytest.raises(UsageError, match="has odd of type Complex128"):
        catalog.export("digits", tmp_path / "out", format="safetensors")
    with pytest.raises(UsageError, match="format is 'onnx'"):
        catalog.export("digits", tmp_path / "out", format="onnx")
    pytorch = job.folder(0) / "net.pt"
    pytorch.write_bytes(b"PK\x05\x06" + bytes(18))
    launch.register(pytorch, global_step=6)
    with pytest.raises(RefusedError, match="is no file of MindSpore"):
        catalog.export("digits", tmp_path / "out", format="safetensors")
    catalog.export("digits", tmp_path / "out")
    assert (tmp_path / "out" / "rank_0" / "net.pt").read_bytes() == pytorch.read_bytes()
