"""What the loader of our own puts into a train network: the same as MindSpore's, or nothing."""

import os
import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn
from mindspore.train import serialization

import ckptstore.mindspore
from ckptstore.api import Catalog
from ckptstore.core.model import Assignment, RestorePlan
from ckptstore.disk import reading
from ckptstore.errors import CkptstoreError, DamageError, RefusedError, UsageError
from ckptstore.mindspore import loader, resume
from ckptstore.mindspore.load_guard import LoadGuard
from tests.ckpt_bytes import value
from tests.mindspore.trainings import Job, create_dataset, create_model, saving, train

ROOT = Path(__file__).parents[2]
DTYPES = ("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "float32")
DTYPES += ("float64", "bfloat16")
SHAPES: tuple[tuple[int, ...], ...] = ((), (1,), (3, 5), (40, 9, 1))


class Odd(nn.Cell):
    """A parameter of each type and shape."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        chance = np.random.default_rng(seed)
        for dtype in DTYPES:
            for shape in SHAPES:
                name = f"{dtype}.{len(shape)}"
                values = ms.Tensor(chance.integers(0, 100, shape), ms.float32)
                item = ms.Parameter(values.astype(getattr(ms, "bool_" if dtype == "bool" else dtype)), name=name)
                self.insert_param_to_cell(name.replace(".", "_"), item)


def bytes_of(network: nn.Cell) -> dict[str, bytes]:
    return {item.name: bytes(item.get_bytes()) for item in network.get_parameters()}


def addresses(network: nn.Cell) -> dict[str, int]:
    return {item.name: item.data_ptr() for item in network.get_parameters()}


def no_failure(*told: object) -> None:
    raise AssertionError(told)


class Restored:
    """A file that a launch recorded, and how it is loaded."""

    def __init__(self, catalog: Catalog, path: Path) -> None:
        launch = catalog.join("run")
        self.file = launch.register(path, global_step=2)
        self._launch = launch.facts

    def load(self, network: Any, on_failure: Callable[..., None] = no_failure) -> dict[str, Any]:
        plan = RestorePlan(launch=self._launch, global_step=2, ranks=(Assignment(0, self.file),))
        layout, begun = self._launch.layout, partial(LoadGuard().begin_loading, network)
        return resume.load(network, plan, 0, {}, layout=layout, on_failure=on_failure, on_put=begun)

    def check(self, network: Any) -> None:
        """As before the first step of a training, of whatever launch."""
        LoadGuard().check({item.name: item for item in network.get_parameters()}, (), 0)


def saved(network: nn.Cell, path: Path, **settings: Any) -> Path:
    form = path.suffix.removeprefix(".")
    appended = {"epoch_num": 3, "rate": 0.5, "note": "größer " * 30, "done": True}
    ms.save_checkpoint(network, str(path), format=form, append_dict=appended if form == "ckpt" else None, **settings)
    return path


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        ("a.ckpt", ms.GRAPH_MODE),
        ("crc.ckpt", ms.PYNATIVE_MODE),
        ("split.ckpt", ms.GRAPH_MODE),
        ("a.safetensors", ms.PYNATIVE_MODE),
    ],
)
def test_every_type_comes_back_bit_by_bit(  # noqa: PLR0917
    catalog: Catalog,
    tmp_path: Path,
    set_mode: Callable[[int], None],
    monkeypatch: pytest.MonkeyPatch,
    way: str,
    mode: int,
    name: str,
) -> None:
    set_mode(mode)
    if name == "split.ckpt":
        monkeypatch.setattr(serialization, "SLICE_SIZE", 1)  # KB
    written, network = Odd(1), Odd(2)
    assert bytes_of(written) != bytes_of(network)
    restored = Restored(catalog, saved(written, tmp_path / name, crc_check=name == "crc.ckpt"))
    before = addresses(network)
    appended = restored.load(network)
    assert bytes_of(network) == bytes_of(written)
    assert (addresses(network) == before) is (way == "in place" or mode == ms.PYNATIVE_MODE)
    if name.endswith(".ckpt"):
        assert appended == {"epoch_num": 3, "rate": 0.5, "note": "größer " * 30, "done": True}


@pytest.mark.parametrize("name", ["a.ckpt", "a.safetensors"])
def test_what_nobody_wants_is_proved_and_dropped(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """As the optimizer's parameters where only weights are loaded; the bytes of one read are not those of the next."""
    monkeypatch.setattr(reading, "_PIECE", 64)
    monkeypatch.setattr(loader, "_PASSED", 128)
    written, network = Odd(1), Odd(2)
    file = Restored(catalog, saved(written, tmp_path / name)).file
    wanted = loader.places_of({item.name: item for item in network.get_parameters() if item.name.startswith("int")})
    before = bytes_of(network)
    content = loader.read_plain(file, wanted, {*wanted, "float32.2"})
    assert [*content.others] == ["float32.2"]
    assert content.names.issuperset(before)
    expected = bytes_of(written)
    assert bytes_of(network) == before | {item: expected[item] for item in wanted}
    assert bytes(content.others["float32.2"].get_bytes()) == expected["float32.2"]
    with pytest.raises(loader.ChangedError):
        loader.read_plain(replace(file, digest="0"), wanted, wanted)


@pytest.mark.parametrize("mode", [ms.GRAPH_MODE, ms.PYNATIVE_MODE])
def test_two_parameters_that_share_memory_get_each_its_own(
    catalog: Catalog, tmp_path: Path, set_mode: Callable[[int], None], way: str, mode: int
) -> None:
    """So it is after MindSpore has loaded the same weights into a network and its teacher."""
    set_mode(mode)
    written, network = (nn.SequentialCell(nn.Dense(3, 3), nn.Dense(3, 3)) for _ in range(2))
    network[0].weight.set_data(network[1].weight)
    assert network[0].weight.data_ptr() == network[1].weight.data_ptr()
    Restored(catalog, saved(written, tmp_path / "a.ckpt")).load(network)
    assert bytes_of(network) == bytes_of(written)


@pytest.mark.parametrize(
    ("mode", "view"), [(ms.GRAPH_MODE, lambda given: given[1:4].T), (ms.PYNATIVE_MODE, lambda given: given[:4])]
)
def test_a_view_of_another_tensor_is_replaced(  # noqa: PLR0917
    catalog: Catalog,
    tmp_path: Path,
    set_mode: Callable[[int], None],
    way: str,
    mode: int,
    view: Callable[[ms.Tensor], ms.Tensor],
) -> None:
    """As of frozen weights that came from elsewhere. It trains with them, and no operator copies to a view."""
    set_mode(mode)
    given = ms.Tensor(np.arange(20, dtype=np.float32).reshape(5, 4))
    shape = tuple(view(given).shape)
    written, network = (nn.Dense(shape[1], shape[0]) for _ in range(2))
    network.weight.set_data(view(given))
    network.weight.requires_grad = False
    before = given.asnumpy().tolist()
    Restored(catalog, saved(written, tmp_path / "a.ckpt")).load(network)
    assert bytes_of(network) == bytes_of(written)
    x = ms.Tensor(np.ones((2, shape[1]), np.float32))
    assert network(x).asnumpy().tolist() == written(x).asnumpy().tolist()
    assert given.asnumpy().tolist() == before


@pytest.mark.parametrize("mode", [ms.GRAPH_MODE, ms.PYNATIVE_MODE])
def test_memory_that_may_not_be_written_to_is_replaced(
    catalog: Catalog, tmp_path: Path, set_mode: Callable[[int], None], mode: int
) -> None:
    """As of weights that a script has mapped from a file: to write there would end the process."""
    set_mode(mode)
    values = np.arange(2000, dtype=np.float32)
    values.tofile(tmp_path / "weights")
    mapped = np.memmap(tmp_path / "weights", np.float32, "r")
    written, network = nn.Dense(3, 4), nn.Dense(3, 4)
    written.insert_param_to_cell("frozen", ms.Parameter(ms.Tensor(values + 1), "frozen"))
    network.insert_param_to_cell("frozen", ms.Parameter(ms.from_numpy(mapped), "frozen"))
    assert network.frozen.data_ptr() == mapped.ctypes.data
    Restored(catalog, saved(written, tmp_path / "a.ckpt")).load(network)
    assert bytes_of(network) == bytes_of(written)
    assert (tmp_path / "weights").read_bytes() == values.tobytes()


def test_what_happens_to_a_file_later_does_not_reach_the_network(catalog: Catalog, tmp_path: Path) -> None:
    """MindSpore maps a .safetensors: its network has whatever the file has when a value is first used."""
    written, network = nn.Dense(3, 4), nn.Dense(3, 4)
    restored = Restored(catalog, saved(written, tmp_path / "a.safetensors"))
    restored.load(network)
    path = Path(restored.file.path)
    path.chmod(0o600)
    with path.open("r+b") as file:
        file.write(bytes(path.stat().st_size))
    os.truncate(path, 0)
    assert bytes_of(network) == bytes_of(written)


@pytest.mark.parametrize("loader", ["", "mindspore"])
def test_a_graph_that_is_compiled_trains_on_with_what_was_loaded(
    catalog: Catalog, tmp_path: Path, set_mode: Callable[[int], None], monkeypatch: pytest.MonkeyPatch, loader: str
) -> None:
    set_mode(ms.GRAPH_MODE)
    monkeypatch.setenv("CKPTSTORE_LOADER", loader)
    model = create_model(optimizer=nn.Adam)
    train(model, tmp_path / "ckpt")
    after = bytes_of(model.train_network)
    for name in ("once", "again"):
        job = Job(model, launch=ckptstore.mindspore.join("run"), step=4)
        assert job.start.global_step == 4
        job.train(saving(tmp_path / name), job.registrar())
        assert bytes_of(model.train_network) == after


class Meddling:
    """Does something to a file before one of the reads of a load, counted from 0; `reads` were counted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *calls: str) -> None:
        self.reads = 0
        self._actions: dict[int, Callable[[], object]] = {}
        monkeypatch.setattr(reading, "_PIECE", 64)
        for name in calls:
            monkeypatch.setattr(os, name, partial(self._read, getattr(os, name)))

    def before(self, actions: dict[int, Callable[[], object]]) -> None:
        self.reads, self._actions = 0, actions

    def _read(self, real: Callable[..., Any], *args: Any) -> Any:
        action = self._actions.get(self.reads, bool)
        self.reads += 1
        action()
        return real(*args)


def put(path: Path, content: bytes) -> None:
    """Other bytes into the same file."""
    with path.open("r+b") as file:
        file.write(content)
        file.truncate()


def exchange(path: Path, content: bytes) -> None:
    """Another file at the same path."""
    other = path.with_name("other")
    other.write_bytes(content)
    other.replace(path)


def meddled(
    chance: random.Random, path: Path, whole: bytes, other: bytes, reads: int
) -> dict[int, Callable[[], object]]:
    """What happens to a file, and before which reads of it."""
    place = chance.randrange(len(whole))
    flipped = bytearray(whole)
    flipped[place] ^= 1 << chance.randrange(8)
    when = chance.randrange(reads)
    action = chance.choice(
        [
            partial(put, path, bytes(flipped)),
            partial(put, path, whole[:place]),
            partial(put, path, whole + other[:place]),
            partial(put, path, whole[:place] + other[place:]),
            partial(exchange, path, other),
        ]
    )
    later = chance.choice([bool, partial(put, path, whole)])
    return {when + chance.randrange(1, 4): later, when: action}


@pytest.mark.parametrize("cases", [100, pytest.param(2000, marks=pytest.mark.long)])
def test_a_file_that_changes_while_it_is_read_is_never_trained_on(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cases: int
) -> None:
    """Cut, flipped or exchanged, at any byte, before any read, and perhaps put back: it is that state or none."""
    chance = random.Random(1)  # noqa: S311 — moments, not secrets
    written, another = nn.Dense(3, 4), nn.Dense(3, 4)
    files = []
    for name in ("a.ckpt", "a.safetensors"):
        path = saved(written, tmp_path / name)
        path.chmod(0o600)
        other = saved(another, tmp_path / f"other_{name}").read_bytes()
        files.append((Restored(catalog, path), path, path.read_bytes(), other))
    loaded = refused = half = 0
    meddling = Meddling(monkeypatch, "pread", "preadv")
    for _ in range(cases):
        restored, path, whole, other = chance.choice(files)
        exchange(path, whole)
        meddling.before({})
        restored.load(nn.Dense(3, 4))
        network = nn.Dense(3, 4)
        before = bytes_of(network)
        meddling.before(meddled(chance, path, whole, other, meddling.reads))
        try:
            restored.load(network, lambda *_: None)
        except CkptstoreError:
            refused += 1
            if bytes_of(network) != before:
                half += 1
                with pytest.raises(RefusedError, match="resume failed while it loaded a state"):
                    restored.check(network)
        else:
            loaded += 1
            assert bytes_of(network) == bytes_of(written)
    assert min(loaded, refused, half) > cases / 50


ROW = np.arange(6, dtype=np.float32).tobytes()


@pytest.mark.parametrize("rows", [(ROW, ROW, ROW, ROW), (ROW,)])
def test_a_tensor_of_another_size_than_its_shape_says(
    catalog: Catalog, tmp_path: Path, way: str, rows: tuple[bytes, ...]
) -> None:
    """MindSpore writes what is too much behind the tensor's memory, and takes what is too little for the whole."""
    network = nn.Dense(3, 4)
    restored = Restored(catalog, saved(nn.Dense(3, 4), tmp_path / "a.ckpt"))
    restored.file = replace(restored.file, digest=None)
    bias = value("bias", "Float32", (4,), bytes(16))
    content = b"".join(value("weight", "Float32", (4, 3), row) for row in rows) + bias
    exchange(tmp_path / "a.ckpt", content)
    failed: list[Any] = []
    with pytest.raises(DamageError, match=r"a\.ckpt"):
        restored.load(network, lambda *told: failed.append(told))
    assert [file.path for file, *_ in failed] == [str(tmp_path / "a.ckpt")]


def test_names_that_changed_places_while_the_header_was_read(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every byte that is read later is right, and the digest too."""
    written, network = (nn.SequentialCell(nn.Dense(3, 3), nn.Dense(3, 3)) for _ in range(2))
    path = saved(written, tmp_path / "a.safetensors")
    path.chmod(0o600)
    restored, whole = Restored(catalog, path), path.read_bytes()
    changed = whole
    for old, new in ((b"0.weight", b"2.weight"), (b"1.weight", b"0.weight"), (b"2.weight", b"1.weight")):
        changed = changed.replace(old, new)
    Meddling(monkeypatch, "pread").before({0: partial(put, path, changed)})
    Meddling(monkeypatch, "preadv").before({0: partial(put, path, whole)})
    with pytest.raises(DamageError, match="it changed while it was read"):
        restored.load(network, lambda *_: None)
    with pytest.raises(RefusedError, match="resume failed while it loaded a state"):
        restored.check(network)


def test_a_network_that_is_half_loaded_is_not_trained(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the script does after the error. A file is proved when its last byte was read."""
    train(create_model(), tmp_path / "ckpt")
    path = tmp_path / "ckpt" / "net-1_6.ckpt"
    path.chmod(0o600)
    meddling = Meddling(monkeypatch, "preadv")
    ckptstore.mindspore.join("run").resume(create_model(), create_dataset())
    assert meddling.reads > 4
    meddling.before({meddling.reads - 1: partial(put, path, path.read_bytes()[:-1] + b"!")})
    model, launch = create_model(), ckptstore.mindspore.join("run")
    before = bytes_of(model.train_network)
    said = "net-1_6.ckpt: it has other bytes than those recorded .digest_mismatch.; start again"
    with pytest.raises(DamageError, match=said):
        launch.resume(model, create_dataset())
    assert bytes_of(model.train_network) != before
    dataset = create_dataset()
    dataset.set_init_step(6)
    with pytest.raises(RefusedError, match="a part of it is in the network; start again"):
        model.train(2, dataset, callbacks=[launch.registrar()], initial_epoch=1)
    again = Job(model)
    assert again.start.global_step == 4
    again.train(saving(tmp_path / "ckpt"), again.registrar())


@pytest.mark.parametrize(("run", "fresh"), [("run", True), ("other", False)])
def test_a_network_that_is_half_loaded_begins_no_other_training(
    catalog: Catalog, tmp_path: Path, run: str, *, fresh: bool
) -> None:
    """A script with another network than the saved one catches the error and starts over: it must not with these."""

    def larger() -> nn.Cell:
        network = nn.Dense(3, 4)
        network.insert_param_to_cell("more", ms.Parameter(ms.Tensor([1.0, 2.0]), "more"))
        return network

    train(create_model(), tmp_path / "ckpt")
    network = larger()
    model = create_model(network=network)
    with pytest.raises(UsageError, match="lacks 2 parameters of the train network"):
        ckptstore.mindspore.join("run").resume(model, create_dataset())
    job = Job(model, launch=ckptstore.mindspore.join(run), fresh=fresh)
    assert job.start.fresh
    with pytest.raises(RefusedError, match="a part of it is in the network; start again"):
        job.train(saving(tmp_path / "ckpt"), job.registrar())
    optimizer = nn.Momentum(network.trainable_params(), 0.1, 0.9)
    launch = ckptstore.mindspore.join("in a loop")
    with pytest.raises(RefusedError, match="a part of it is in the network; start again"):
        next(iter(launch.loop(network, optimizer, create_dataset(), epochs=1, directory=tmp_path / "loop", every=1)))
    another = Job(create_model(network=larger()), launch=ckptstore.mindspore.join(run), fresh=fresh)
    another.train(saving(tmp_path / "ckpt"), another.registrar())


@pytest.mark.long
def test_the_restore_tests_hold_with_mindspores_own_loading(tmp_path: Path) -> None:
    """As they do with the loader of our own, all of them."""
    tests = ["resume", "damaged_files", "loaders_after_resume", "companions", "loop", "loop_mistakes", "content"]
    asked = [f"tests/mindspore/test_{name}.py" for name in tests]
    asked += ["-k", "not test_a_restore_shows_a_bar"]  # which only our own has
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--basetemp={tmp_path / 'own'}", *asked]
    ended = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | {"CKPTSTORE_LOADER": "mindspore"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout[-3000:]
