"""Files hold what `paddle.save` writes, are written entry by entry, and read in one copy."""

import io
import os
import pickle
import re
import resource
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import paddle
import pytest
from paddle import nn

from paddle_mnist.checkpoint.manifest import OPTIMIZER, PARAMS
from paddle_mnist.checkpoint.safe_load import safe_loads
from paddle_mnist.checkpoint.statefile import SavedState
from paddle_mnist.checkpoint.store import CheckpointStore
from paddle_mnist.hidden_state.packing import pack
from paddle_mnist.hidden_state.plain_data import equal
from paddle_mnist.train_state import TrainState


def state_dicts() -> dict:
    net = nn.Sequential(nn.Linear(30, 40), nn.BatchNorm1D(40), nn.Linear(40, 20))
    schedule = paddle.optimizer.lr.StepDecay(0.1, 3)
    optimizer = paddle.optimizer.Adam(schedule, parameters=net.parameters())
    net(paddle.rand([4, 30])).sum().backward()
    optimizer.step()
    array, tensor = np.arange(100_000.0), named(paddle.rand([300, 300]), "a")
    further = {
        "one array": [array, array],
        "a view": array[::2],
        "columns": np.asfortranarray(np.ones((300, 200))),
        "nothing": np.zeros((0, 3)),
        "tensor": tensor,
    }
    dtypes = ("bfloat16", "float16", "bool", "int64", "complex64")
    return {
        "empty": {},
        "weights": net.state_dict(),
        "an optimizer": optimizer.state_dict(),
        "further state": pack(further),
        "nested": {"master": {"a": tensor, "b": [tensor, array, array]}, "number": 3},
        "tied": {"a": tensor, "b": tensor},
        "nested and tied": {"model": {"a": tensor, "b": tensor}, "epoch": 1},
        "many small": {
            f"entry {size}": named(paddle.rand([100 * size]), f"e{size}") for size in range(200)
        },
        "dtypes": {name: named(tensor.astype(name), f"as {name}") for name in dtypes},
        "scalar": {"three": named(paddle.to_tensor(3.0), "three")},
    }


def named(tensor, name):
    """Return a tensor with a name of its own: one by number is not kept."""
    tensor.name = name
    return tensor


def bytes_of_paddle(state) -> bytes:
    buffer = io.BytesIO()
    paddle.save(state, buffer)
    return buffer.getvalue()


@pytest.mark.filterwarnings("ignore:The input state dict is empty")
def test_saved_state_writes_the_contents_of_paddle_save():
    for name, state in state_dicts().items():
        contents, expected = SavedState(state).to_bytes(), bytes_of_paddle(state)
        assert SavedState(state).copied().to_bytes() == contents, f"a copy: {name}"
        assert equal(pickle.loads(contents), pickle.loads(expected)), name
        assert equal(arrays_of(contents), arrays_of(expected)), name
        assert equal(safe_loads(contents), safe_loads(expected)), name


def arrays_of(data: bytes):
    """Return what `paddle.load` reads, tensors as arrays and their names, unless it counts them."""

    def plain(value):
        if isinstance(value, paddle.Tensor):
            name = re.sub("(?<=generated_tensor_)[0-9]+", "N", value.name)
            return [name, value.numpy()]
        if isinstance(value, dict):
            return {key: plain(item) for key, item in value.items()}
        return list(map(plain, value)) if isinstance(value, (list, tuple)) else value

    return plain(paddle.load(io.BytesIO(data)))


def test_tensor_or_array_in_several_places_is_written_once_and_read_as_one():
    tensor, array = paddle.rand([300, 300]), np.arange(90_000.0)
    for state in ({"a": tensor, "b": tensor}, {"nested": {"a": tensor}, "b": tensor, "c": 1}):
        for saved in (SavedState(state), SavedState(state).copied()):
            loaded = safe_loads(data := saved.to_bytes())
            assert loaded["b"] is loaded.get("nested", loaded)["a"]
            assert len(data) < 4 * 90_000 + 2_000
    for saved in (SavedState(both := {"a": [array, array]}), SavedState(both).copied()):
        first, second = safe_loads(data := saved.to_bytes())["a"]
        assert first is second and equal(first, array)
        assert len(data) < 8 * 90_000 + 2_000


def test_saved_state_leaves_out_names_that_paddle_counts():
    first, second = (SavedState({"mean": paddle.ones([3])}) for _ in range(2))
    assert first.to_bytes() == second.to_bytes() == second.copied().to_bytes()


def test_copied_state_keeps_its_values():
    weight, array = paddle.zeros([100, 200]), np.zeros(20_000)
    state = SavedState({"weight": weight, "list": [array]})
    before, copy = state.to_bytes(), state.copied()
    weight.set_value(paddle.ones([100, 200]))
    array[:] = 1
    assert copy.to_bytes() == before != state.to_bytes()
    assert copy.nbytes == 4 * 20_000 + 8 * 20_000


on_linux = pytest.mark.skipif(sys.platform != "linux", reason="needs memory that is not forked")


def size_of_this_process() -> int:
    """The bytes of its address space."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")


@on_linux
def test_copied_state_is_not_in_the_memory_of_forked_processes():
    """Workers of a loader start while a thread writes the copy, and live for an epoch."""
    copy = SavedState({"weight": paddle.ones([2**24])}).copied()
    read, write = os.pipe()
    if not os.fork():
        os.write(write, str(size_of_this_process()).encode())
        os._exit(0)
    assert size_of_this_process() - int(os.read(read, 100)) >= copy.nbytes == 2**26
    os.wait()
    os.close(read)
    os.close(write)


@on_linux
def test_copied_state_without_room_raises_memory_error():
    """A checkpoint is then written at once, without a copy."""
    state = SavedState({"weight": paddle.ones([2**24])})
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (size_of_this_process() + 2**25, hard))
    try:
        with pytest.raises(MemoryError):
            state.copied()
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def peak_of(act) -> int:
    """The most memory that a call takes, in MiB. NumPy's is counted, Paddle's is not."""
    tracemalloc.start()
    try:
        act()
        return tracemalloc.get_traced_memory()[1] // 2**20
    finally:
        tracemalloc.stop()


def test_memory_of_saving_is_one_entry_and_of_loading_one_copy(tmp_path):
    """Not of all entries, which the memo of a pickler would hold; and none for verifying."""
    state = {f"entry {number}": paddle.ones([2**18]) for number in range(20)}  # of 1 MiB each
    copy = SavedState(state).copied()
    tied = SavedState({f"{key} {n}": value for key, value in state.items() for n in (1, 2)})
    with open(os.devnull, "wb") as nowhere:
        assert peak_of(lambda: SavedState(state).write_to(nowhere)) < 3
        assert peak_of(lambda: copy.write_to(nowhere)) < 1
        assert peak_of(lambda: tied.write_to(nowhere)) < 3
    files = {PARAMS: SavedState(state), OPTIMIZER: SavedState({})}
    checkpoint = CheckpointStore(tmp_path).commit("model_epoch0", files, TrainState(epoch=1))
    assert peak_of(checkpoint.verify) < 3
    assert peak_of(lambda: checkpoint.load(PARAMS)) < 23
