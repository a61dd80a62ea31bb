"""Machine code on the disk: made once, checked, shared by processes, and done without."""

import os
import subprocess
import sys
import threading
from pathlib import Path
from subprocess import PIPE

import forked
import numpy as np
import paddle
import pytest
from numba.core import config, event
from paddle import nn

from paddle_mnist import ConvBlocks
from paddle_mnist.nn import compiler
from paddle_mnist.nn.compiled_net import CompiledNet, compile_ahead
from paddle_mnist.nn.covered import covered_net

CHANNELS = (5, 6)  # of two nets whose functions have the same names


def blocks(channels: int) -> ConvBlocks:
    paddle.seed(1)
    return ConvBlocks(nn.Conv2D(channels, 3, 3), nn.ReLU(), nn.MaxPool2D(2, 2), fast_conv=1)


def images(channels: int) -> paddle.Tensor:
    return paddle.to_tensor(np.ones((2, channels, 8, 8), np.float32))


def sizes(channels: int):
    return covered_net(list(blocks(channels).children()), images(channels))


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    """A folder for machine code that is not there yet."""
    monkeypatch.setenv("PADDLE_MNIST_CACHE", str(tmp_path))
    return tmp_path / "compiled"


PROGRAM = """
import numba, logging, sys
logging.basicConfig(format="%(message)s", level=logging.INFO, stream=sys.stdout, force=True)
sys.path[:0] = ["tests", "tests/nn"]
import numpy as np
import test_compiler as t
from paddle import nn
for channels in t.CHANNELS:
    fast, images = t.blocks(channels), t.images(channels)
    outputs = fast(images)
    outputs.sum().backward()
    gradient = fast[0].weight.grad.numpy().copy()
    fast.clear_gradients()
    own = nn.Sequential(*fast.children())(images)
    own.sum().backward()
    assert np.allclose(outputs.numpy(), own.numpy(), atol=1e-5)
    assert np.allclose(gradient, fast[0].weight.grad.numpy(), atol=1e-4)
print("as in Paddle's layers")
"""


def run(program: str = PROGRAM) -> str:
    done = forked.run([sys.executable, "-c", program], timeout=250)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_compiled_files_load_together_and_a_damaged_one_is_compiled_again(cache):
    """Compiled by other processes, each net by itself; neither calls the other's functions."""
    for channels in CHANNELS:
        compile_ahead(sizes(channels))
        net = CompiledNet(sizes(channels))
        for title in net.functions:  # waits for it
            net.compile(title)
    assert len(list(cache.glob("*.bin"))) == 4
    path = min(cache.glob("*.bin"), key=lambda path: path.stat().st_size)
    assert run() == "as in Paddle's layers\n"
    good = path.read_bytes()
    path.write_bytes(good[:5000] + bytes([good[5000] ^ 1]) + good[5001:])
    assert run() == f"{path} is damaged; compiling again\nas in Paddle's layers\n"
    assert run() == "as in Paddle's layers\n"  # and is kept


@pytest.mark.slow
def test_cache_others_may_write_is_not_used(cache):
    """The code there would run as this user."""
    cache.mkdir()
    cache.chmod(0o777)
    output = run(PROGRAM.replace("t.CHANNELS", "[5]"))
    assert f"{cache} can be written by other users, so the convolution is compiled" in output
    assert "compiling the gradients for this processor\n" in output
    assert output.endswith("as in Paddle's layers\n")


@pytest.mark.parametrize(
    ("mode", "is_used"), [(0o755, True), (0o1777, True), (0o777, False), (0o775, None)]
)
def test_cache_below_a_folder_others_may_write_is_not_used(mode, is_used, tmp_path, monkeypatch):
    """They could replace the folder of the code; in a sticky one, as /tmp is, they cannot."""
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(mode)
    monkeypatch.setenv("PADDLE_MNIST_CACHE", str(tmp_path / "shared/own"))
    expected = os.getgid() == os.getuid() if is_used is None else is_used
    assert (compiler.machine_code_path([], "title", "key") is not None) == expected


def test_compile_in_threads_leaves_the_settings_of_numba(cache, monkeypatch):
    """The setting of its own is in force as long as it compiles, in each thread."""
    seen, threads, barrier = [], [], threading.Barrier(8)

    class Listener(event.Listener):
        def on_start(self, event):
            seen.append(config.SLP_VECTORIZE)

        def on_end(self, event):
            seen.append(config.SLP_VECTORIZE)

    def compile_one(number: int) -> None:
        function = compiler.entry(lambda values: values[0])
        barrier.wait()
        compiler.compile_function(function, [np.zeros(1)], "function", str(number))

    before = config.SLP_VECTORIZE
    monkeypatch.setenv("NUMBA_OF_THIS_TEST", "1")  # numba reads its settings again
    with event.install_listener("numba:run_pass", Listener()):
        for number in range(8):
            threads.append(threading.Thread(target=compile_one, args=[number]))
            threads[-1].start()
        for thread in threads:
            thread.join()
    assert len(list(cache.glob("*.bin"))) == 8
    assert {*seen} == {1} and before == config.SLP_VECTORIZE


def test_compile_in_several_processes_runs_once(cache):
    program = PROGRAM.replace("t.CHANNELS", "[5]")
    processes = [forked.Popen([sys.executable, "-c", program], stdout=PIPE) for _ in range(3)]
    outputs = [process.communicate(timeout=250)[0] for process in processes]
    assert all(output.endswith("as in Paddle's layers\n") for output in outputs), outputs
    text = "".join(outputs)
    assert text.count("compiling the convolution") == text.count("compiling the gradients") == 1


WITHOUT_NUMBA = """
import logging, sys
logging.basicConfig(format="%(message)s", level=logging.INFO, stream=sys.stdout, force=True)
sys.modules["numba"] = None
import numpy as np, paddle
from paddle import nn
from paddle_mnist import ConvBlocks
layers, images = (nn.Conv2D(5, 3, 3), nn.ReLU(), nn.MaxPool2D(2, 2)), paddle.ones([2, 5, 8, 8])
for number in range(2):
    fast, own = ConvBlocks(*layers)(images), nn.Sequential(*layers)(images)
    assert np.array_equal(fast.numpy(), own.numpy())
"""


def test_conv_blocks_without_numba_warns_once_and_computes():
    """Run in a Python that has nothing imported and no machine code loaded."""
    command = [sys.executable, "-c", WITHOUT_NUMBA]
    (line,) = subprocess.run(
        command, check=True, capture_output=True, text=True
    ).stdout.splitlines()
    assert "numba cannot be used here" in line
