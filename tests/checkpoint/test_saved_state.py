"""Files are written entry by entry, as `paddle.save` writes them, and read in one copy."""

import io
import os
import tracemalloc

import numpy as np
import paddle
import pytest
from paddle import nn

from paddle_mnist.checkpoint.manifest import OPTIMIZER, PARAMS
from paddle_mnist.checkpoint.saved_state import SavedState
from paddle_mnist.checkpoint.store import CheckpointStore
from paddle_mnist.hidden_state.plain_data import pack
from paddle_mnist.progress import TrainState


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
def test_saved_state_writes_the_bits_of_paddle_save():
    for name, state in state_dicts().items():
        expected = bytes_of_paddle(state)
        assert SavedState(state).to_bytes() == expected, name
        assert SavedState(state).copied().to_bytes() == expected, f"a copy: {name}"


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
    with open(os.devnull, "wb") as nowhere:
        assert peak_of(lambda: SavedState(state).write_to(nowhere)) < 3
        assert peak_of(lambda: copy.write_to(nowhere)) < 1
    files = {PARAMS: SavedState(state), OPTIMIZER: SavedState({})}
    checkpoint = CheckpointStore(tmp_path).commit("model_epoch0", files, TrainState(epoch=1))
    assert peak_of(checkpoint.verify) < 3
    assert peak_of(lambda: checkpoint.load(PARAMS)) < 23
