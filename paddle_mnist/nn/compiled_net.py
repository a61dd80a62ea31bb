"""The compiled passes of a net, with the memory that they need and the threads that run them."""

import functools
import hashlib
import inspect
import math
import os
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Optional

import numpy as np
import numpy.typing as npt

from paddle_mnist.nn import compiler, intrinsics, kernels, layout
from paddle_mnist.nn.chunks import MOST_SMALL, chunks_of, map_chunks
from paddle_mnist.nn.layout import Floats, Net, aligned_zeros, packing, unpacking
from paddle_mnist.system.environment import for_another_python

MAX_REUSED_BYTES = 1 << 26  # bytes of inputs and sums: what a larger batch needs is not kept
MAX_SMALL_BYTES = 1 << 24  # bytes of sums: a batch is divided finely only while these suffice
_PADDING = np.zeros(1, np.float32)  # behind the parameters, where `packing` finds it
MAX_CACHED_NETS = 32  # kept ready; a net of images of any size has one for each


@functools.lru_cache(MAX_CACHED_NETS)
def compiled_net(net: Net) -> "CompiledNet":
    """Return the passes of a net of these sizes, compiled once for all layers that have them."""
    return CompiledNet(net)


def compile_ahead(net: Net) -> None:
    """Start compiling a net in other processes, unless it is on the disk already; do not wait.

    The first use, in this process or another, waits for them; if they fail, it compiles the net
    itself, and reports why that fails.
    """
    passes = CompiledNet(net)
    missing = [title for title in passes.functions if not passes.is_on_disk(title)]
    # Without collecting garbage, without SciPy, which numba would import, and without the end of
    # Python, which together take a fourth of the time.
    program = (
        "import gc, os, sys; gc.disable(); sys.modules['scipy'] = None\n"
        "from paddle_mnist.nn.layout import BlockSizes, Net\n"
        "from paddle_mnist.nn.compiled_net import compile_at_once\n"
        f"compile_at_once({net!r}, {missing!r}); os._exit(0)"
    )
    if missing:
        subprocess.Popen(
            [sys.executable, "-c", program],
            env=for_another_python(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )


def compile_at_once(net: Net, titles: Sequence[str]) -> None:
    """Compile the first of these functions, which takes longest, in a copy of this process."""
    passes = CompiledNet(net)
    compiler.load_numba()  # which is not shared with a process that is started
    if len(titles) > 1 and hasattr(os, "fork"):
        titles = titles[1:] if os.fork() else titles[:1]
    for title in titles:
        passes.compile(title)


@functools.cache
def _sources() -> str:
    """Return a hash of the code that is compiled."""
    digest = hashlib.sha256()
    for module in (kernels, intrinsics, layout, compiler):
        digest.update(inspect.getsource(module).encode())
    return digest.hexdigest()


@dataclass(frozen=True)
class Memory:
    """Activations of a batch that are kept for its backward pass, and gradient buffers.

    Arrays with one row per image, except for the last two.

    inputs: float32, of each block, and the features (`Net.kept`). winners: uint8 (`Net.winners`).
    skipped: float32, the value that each image's passes do not visit. weights: float32, flat
    (`Net.weights`). sums: float32, one row per chunk (`Net.sums`).
    """

    inputs: Floats
    winners: npt.NDArray[np.uint8]
    skipped: Floats
    weights: Floats
    sums: Floats

    def rows(self, images: slice = slice(None)) -> tuple[Floats, npt.NDArray[np.uint8], Floats]:
        """Return what the passes take of these images."""
        return self.inputs[images], self.winners[images], self.skipped[images]


def new_memory(net: Net, count: int, chunks: int) -> Memory:
    """Return memory for a number of images and chunks."""
    return Memory(
        inputs=aligned_zeros((count, net.kept.size), np.float32),
        winners=aligned_zeros((count, net.winners.size), np.uint8),
        skipped=aligned_zeros((count,), np.float32),
        weights=aligned_zeros((net.weights.size,), np.float32),
        sums=aligned_zeros((chunks, net.sums.size), np.float32),
    )


class _OfThread(threading.local):
    """Buffers of each thread, which Python makes when the thread first asks for one.

    work: for intermediate results. memory: what an image needs until its gradients are there.
    """

    def __init__(self, net: Net):
        self.work = kernels.new_workspace(net)
        self.memory = new_memory(net, 1, chunks=0)


class CompiledNet:
    """Runs the kernels of a net on batches: any number of threads gives the same bits."""

    def __init__(self, net: Net):
        self.net = net
        self._own = _OfThread(net)
        self._reusable: deque[Memory] = deque(maxlen=2)
        self._packing, self._unpacking = (
            places.astype(np.uint32) for places in (packing(net), unpacking(net))
        )
        self._no_convolved = self.new_convolved(0)
        self._run_forward, self._run_backward = kernels.build(net)
        self.functions = {"convolution": self._run_forward, "gradients": self._run_backward}
        if net.classes:
            self._run_batch = kernels.batch_loop(net.classes)
            self.functions["cross-entropy"] = self._run_batch
        self._compiled: set[str] = set()
        self._lock = threading.Lock()

    def compile(self, title: str) -> None:
        """Compile one of `functions`, or load it from the disk, unless it is there already."""
        with self._lock:
            if title not in self._compiled:
                compiler.compile_function(
                    self.functions[title], self._arguments(title), title, self._key
                )
                self._compiled.add(title)

    @functools.cached_property
    def _passes(self) -> npt.NDArray[np.uint64]:
        """The addresses of the two passes, once these are compiled."""
        loops = self._run_forward, self._run_backward
        return np.array([compiler.address_of(loop) for loop in loops], np.uint64)

    def is_on_disk(self, title: str) -> bool:
        """Return whether a pass was compiled before; True too where it cannot be kept."""
        path = compiler.machine_code_path(self._arguments(title), title, self._key)
        return path is None or path.exists()

    @property
    def _key(self) -> str:
        return f"{self.net} {layout.lanes()} {_sources()}"

    def _arguments(self, title: str) -> tuple[Any, ...]:
        """Return arguments of the types that a pass is called with."""
        memory, matrix = new_memory(self.net, 1, chunks=1), np.zeros((1, 1), np.float32)
        kept = (*memory.rows(), memory.weights)
        zero = np.float32(0)
        if title == "cross-entropy":
            numbers = np.zeros(1, np.uint64)
            batch = (numbers, numbers, numbers, matrix, np.zeros(1, np.int64), 0.0)
            places = matrix[0], self._packing
            results = matrix, matrix[0], self._no_convolved
            sums = memory.sums, self._unpacking, matrix[0]
            return (*batch, *places, *results, *sums, matrix, matrix, *kept, self._own.work)
        if title == "convolution":
            first = np.uint64(0)
            return (matrix, matrix, self._no_convolved, first, *kept, zero, self._own.work)
        return (matrix, matrix, *kept, memory.sums[0], self._own.work)

    def forward(
        self,
        images: Floats,
        parameters: Sequence[Floats],
        threads: int,
        for_backward: bool = True,
        convolved: Optional[tuple[Floats, ...]] = None,
    ) -> tuple[Floats, Optional[Memory]]:
        """Return the outputs of a batch, and what `backward` needs.

        images: float32 [B, C, H, W]. parameters: float32, in one or more parts of any shapes: of
        each layer the weight and the bias, if it has one. for_backward: False for outputs alone, in
        little memory. convolved: see `new_convolved`.
        """
        self.compile("convolution")
        count = len(images)
        chunks = self._chunks_of(count)
        sizes = (count, len(chunks)) if for_backward else (0, 0)
        memory = self._take_memory(*sizes)
        skip = self._load(parameters, memory)
        flat = np.ascontiguousarray(images.reshape(count, -1))  # a slice's tensor need not be
        outputs = np.empty((count, *self.net.output_shape), np.float32)
        flat_outputs = outputs.reshape(count, -1)

        def run(number: int, chunk: slice) -> None:
            kept = memory.rows(chunk) if for_backward else self._own.memory.rows()
            rows = (*kept, memory.weights, skip, self._own.work)
            at = convolved or self._no_convolved, np.uint64(chunk.start)
            self._run_forward(flat[chunk], flat_outputs[chunk], *at, *rows)

        map_chunks(run, chunks, threads)
        if for_backward:
            return outputs, memory
        self._give_back(memory)
        return outputs, None

    def backward(self, gradient: Floats, memory: Memory, threads: int) -> Floats:
        """Return the gradients of the images, if `Net` has them, and of the parameters, flat.

        gradient: of the outputs, in their shape. memory: of `forward`; it is used up.
        """
        self.compile("gradients")
        count = len(gradient)
        chunks = self._chunks_of(count)
        flat = np.ascontiguousarray(gradient.reshape(count, -1))
        first = self.net.blocks[0]
        pixels = first.channels * first.height * first.width if self.net.input_gradient else 0
        images = np.empty((count, pixels), np.float32)

        def run(number: int, chunk: slice) -> None:
            sums = memory.sums[number]
            sums[:] = 0
            kept = (*memory.rows(chunk), memory.weights)
            self._run_backward(flat[chunk], images[chunk], *kept, sums, self._own.work)

        map_chunks(run, chunks, threads)
        return np.concatenate([images.ravel(), self._sum(memory, len(chunks))])

    def cross_entropy(
        self,
        images: Floats,
        labels: npt.NDArray[np.int64],
        parameters: Sequence[Floats],
        smoothing: float,
        threads: int,
        convolved: Optional[tuple[Floats, ...]] = None,
    ) -> Floats:
        """Return the mean loss of a batch, its logits, and the gradients of the parameters.

        They stand one after another in one flat array.

        images, parameters, convolved: as for `forward`. labels: int64 [B], each less than
        `net.classes`.
        """
        for title in self.functions:
            self.compile(title)
        count, shape = len(images), self.net.output_shape
        chunks = self._chunks_of(count)
        memory = self._take_memory(0, len(chunks))
        flat = np.ascontiguousarray(images.reshape(count, -1))
        end = 1 + count * math.prod(shape)
        values = np.empty(end + len(self._unpacking), np.float32)
        logits, totals = values[1:end].reshape(count, *shape), values[end:]
        losses = np.empty(count, np.float32)

        counter, arrivals = np.zeros(1, np.uint64), np.zeros(len(chunks), np.uint64)
        batch = (self._passes, counter, arrivals, flat, labels, smoothing)
        places = np.concatenate([*parameters, _PADDING], axis=None), self._packing
        results = logits, losses, convolved or self._no_convolved
        sums = memory.sums, self._unpacking, totals

        def run(number: int, chunk: slice) -> None:
            gradients = np.empty((1, *shape), np.float32), np.empty((1, 0), np.float32)
            own = (*self._own.memory.rows(), self._own.memory.weights, self._own.work)
            self._run_batch(*batch, *places, *results, *sums, *gradients, *own)

        map_chunks(run, chunks[:threads], threads)  # each thread takes chunks until none is left
        self._give_back(memory)
        values[0] = np.add.reduce(losses, dtype=np.float64) / count
        return values

    # -------------------------------------------------------------- memory

    def new_convolved(self, count: int) -> tuple[Floats, ...]:
        """Return arrays [B, C, H, W] for the outputs of each convolution of a batch.

        `forward` and `cross_entropy` fill them if they are given any.
        """
        shapes = ((count, *block.convolved_shape) for block in self.net.blocks)
        return tuple(np.empty(shape, np.float32) for shape in shapes)

    def _chunks_of(self, count: int) -> tuple[slice, ...]:
        """Divide a batch: finely, unless the sums of a net of many parameters would be too many."""
        return chunks_of(count, min(MOST_SMALL, MAX_SMALL_BYTES // (4 * self.net.sums.size)))

    def _take_memory(self, count: int, chunks: int) -> Memory:
        """Return memory for at least this many images and chunks, to be returned by `_give_back`.

        count: 0 if only the weights and the sums are needed.
        """
        try:
            memory = self._reusable.pop()
        except IndexError:  # none yet, or other passes have it
            return new_memory(self.net, count, chunks)
        is_large_enough = len(memory.inputs) >= count and len(memory.sums) >= chunks
        return memory if is_large_enough else new_memory(self.net, count, chunks)

    def _give_back(self, memory: Memory) -> None:
        if memory.inputs.nbytes + memory.sums.nbytes <= MAX_REUSED_BYTES:
            self._reusable.append(memory)

    # -------------------------------------------------------------- parameters

    def _load(self, parameters: Sequence[Floats], memory: Memory) -> np.float32:
        """Write the parameters into a batch's memory; return the value that need not be visited."""
        padded = np.concatenate([*parameters, _PADDING], axis=None)
        np.take(padded, self._packing, out=memory.weights, mode="clip")  # "raise" would copy
        # 0 * inf is nan: with such weights, zeros have to be visited too
        return kernels.ZERO if np.logical_and.reduce(np.isfinite(padded)) else kernels.NAN

    def _sum(self, memory: Memory, chunks: int) -> Floats:
        """Return the gradients of the parameters, flat, summed over the chunks; end the batch."""
        with np.errstate(all="ignore"):  # what is not finite shows in the loss
            sums: Floats = np.add.reduce(memory.sums[:chunks])
        self._give_back(memory)
        return sums[self._unpacking]
