"""Programs as people write them train as they are: nothing is refused, nothing warned of.

Much of what they keep in Python is no state of the training: caches, statistics, open files, locks,
times. Each program is a function that returns arguments of `fit`, and is run in an empty folder.
With those of `fit_rows` and `usual_programs`, whose tests ask for the same silence, they are 86.
"""

import csv
import enum
import functools
import gc
import io
import logging
import random
import sqlite3
import threading
import time
import types
import weakref
import zipfile
from collections import Counter, OrderedDict, deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import paddle
import pytest
from flat_options import grouped
from paddle import nn
from paddle.distributed.fleet.utils import recompute
from paddle.nn import functional as F
from paddle.optimizer import lr
from paddle.vision import transforms
from paddle.vision.models.resnet import BasicBlock
from PIL import Image
from silence import silent
from small_nets import (
    CLASSES,
    VOCABULARY,
    WIDTH,
    Points,
    Texts,
    perceptron,
)
from tqdm import tqdm

from paddle_mnist import Callback, ResumableBatchSampler, fit

SIDE = 8  # of an image of `Pictures`
log = logging.getLogger("program")
PROGRAMS = {}


def program(function):
    """Add a program to the table."""
    PROGRAMS[function.__name__] = function
    return function


def adam(parameters):
    return paddle.optimizer.Adam(0.01, parameters=parameters)


def arguments():
    """Return the arguments that a program does not give itself."""
    return {
        "model": perceptron,
        "train": Points(),
        "valid": Points(17),
        "loss": nn.CrossEntropyLoss(),
        "optimizer": adam,
        "epochs": 2,
        "batch_size": 8,
        "output": "run",
        "log_every": 2,
        "visualdl": (),
        "figures": False,
        "device": "cpu",
    }


class Reader(nn.Layer):
    """Embeds words, and classifies what `read` makes of them."""

    def __init__(self, width=8):
        super().__init__()
        self.words, self.out = nn.Embedding(VOCABULARY, width), nn.Linear(width, CLASSES)

    def forward(self, words):
        return self.out(self.read(self.words(words)))


def on_texts(model):
    return {"model": model, "train": Texts(), "valid": Texts()}


# Layers that derive their weights, and layers that keep something to look at or to be quicker.


@program
def weight_norm():
    def build():
        net = perceptron()
        nn.utils.weight_norm(net[0])
        nn.utils.weight_norm(net[2], dim=None)
        return net

    return {"model": build}


@program
def activations_kept_by_a_forward_hook():
    net, activations = perceptron(), {}

    def keep(name):
        def hook(layer, inputs, output):
            activations[name] = output

        return hook

    for name, layer in net.named_sublayers():
        layer.register_forward_post_hook(keep(name))
    return {"model": net, "optimizer": adam(net.parameters())}


@program
def positional_encoding_made_in_the_first_forward_pass():
    class Net(Reader):
        def __init__(self):
            super().__init__()
            self.positions = None

        def read(self, hidden):
            length, width = hidden.shape[1:]
            if self.positions is None or self.positions.shape[0] < length:
                angles = np.arange(length)[:, None] / 10000 ** (np.arange(0, width, 2) / width)
                table = np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
                self.positions = paddle.to_tensor(table, "float32")
            return (hidden + self.positions[:length]).mean(axis=1)

    return on_texts(Net)


@program
def masks_cached_by_length():
    @functools.cache
    def causal_mask(length):
        return paddle.triu(paddle.full([length, length], -1e9), diagonal=1)

    class Net(Reader):
        def read(self, hidden):
            scores = hidden @ hidden.transpose([0, 2, 1]) + causal_mask(hidden.shape[1])
            return (F.softmax(scores) @ hidden)[:, -1]

    return on_texts(Net)


@program
def statistics_of_activations_and_times():
    class Net(nn.Layer):
        def __init__(self):
            super().__init__()
            self.body, self.out = nn.Linear(WIDTH, 16), nn.Linear(16, CLASSES)
            self.calls, self.seconds, self.largest = 0, 0.0, -np.inf
            self.shapes = Counter()

        def forward(self, points):
            start = time.perf_counter()
            hidden = F.relu(self.body(points))
            if self.calls == 0:
                print("the first batch is", points.shape)
            self.calls += 1
            self.largest = max(self.largest, hidden.max().item())
            self.shapes[tuple(points.shape)] += 1
            self.seconds += time.perf_counter() - start
            return self.out(hidden)

    return {"model": Net}


@program
def running_mean_in_a_buffer():
    class Net(nn.Layer):
        def __init__(self):
            super().__init__()
            self.body = perceptron()
            self.register_buffer("mean", paddle.zeros([WIDTH]))
            self.register_buffer("scale", paddle.full([WIDTH], 2.0), persistable=False)

        def forward(self, points):
            if self.training:
                self.mean = 0.9 * self.mean + 0.1 * points.mean(axis=0)
            return self.body((points - self.mean) / self.scale)

    return {"model": Net}


# What a layer holds that is no tensor.


class Pooling(enum.Enum):
    MEAN = "mean"
    MAX = "max"


@dataclass
class Config:
    width: int = 16
    pooling: Pooling = Pooling.MEAN
    dropout: float = 0.1
    names: list = field(default_factory=lambda: ["a", "b", "c"])


@program
def config_object_and_logger_on_the_model():
    class Net(Reader):
        def __init__(self, config):
            super().__init__(config.width)
            self.config, self.log = config, logging.getLogger("program.net")
            self.options = types.SimpleNamespace(verbose=True)
            self.drop = nn.Dropout(config.dropout)

        def read(self, hidden):
            hidden = self.drop(hidden)
            self.log.debug("hidden: %s", hidden.shape)
            is_mean = self.config.pooling is Pooling.MEAN
            return hidden.mean(axis=1) if is_mean else hidden.max(axis=1)

    return on_texts(lambda: Net(Config()))


@program
def layers_that_know_their_parent():
    class Head(nn.Layer):
        def __init__(self, parent):
            super().__init__()
            self.out, self.parent = nn.Linear(16, CLASSES), weakref.ref(parent)

        def forward(self, hidden):
            return self.out(hidden) * self.parent().scale

    class Net(nn.Layer):
        def __init__(self):
            super().__init__()
            self.body, self.scale, self.activation = nn.Linear(WIDTH, 16), 0.5, F.gelu
            self.head = Head(self)

        def forward(self, points):
            return self.head(self.activation(self.body(points)))

    return {"model": Net}


# Nets.


@program
def to_static():
    return {"model": lambda: paddle.jit.to_static(perceptron())}


@program
def data_parallel_in_one_process():
    net = paddle.DataParallel(perceptron())
    return {"model": net, "optimizer": adam(net.parameters())}


class Pictures(paddle.io.Dataset):
    """Images with random crops and flips."""

    def __init__(self, samples=24):
        self.images = np.random.RandomState(1).randint(0, 255, [samples, SIDE, SIDE, 3], "uint8")
        self.transform = transforms.Compose(
            [
                transforms.RandomCrop(SIDE, padding=1),
                transforms.RandomHorizontalFlip(),
                transforms.ColorJitter(0.1, 0.1),
                transforms.ToTensor(),
                transforms.Normalize([0.5] * 3, [0.5] * 3),
            ]
        )

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return self.transform(Image.fromarray(self.images[index])), np.int64(index % CLASSES)


def residual_net():
    norm = functools.partial(nn.BatchNorm2D, momentum=0.9)
    down = nn.Sequential(nn.Conv2D(3, 8, 1, stride=2, bias_attr=False), norm(8))
    blocks = BasicBlock(3, 8, 2, down), BasicBlock(8, 8)
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2D(1), nn.Flatten(), nn.Linear(8, CLASSES))


@program
def recomputed_activations():
    class Net(nn.Layer):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(WIDTH, 16), nn.ReLU(), nn.Dropout(0.1))
            self.block, self.out = nn.Linear(16, 16), nn.Linear(16, CLASSES)

        def forward(self, points):
            hidden = self.body(points)
            return self.out(recompute(self.block, hidden) if self.training else self.block(hidden))

    return {"model": Net}


@program
def frozen_backbone():
    class Net(nn.Layer):
        def __init__(self):
            super().__init__()
            self.backbone = perceptron(nn.BatchNorm1D(16))
            self.backbone.eval()
            for parameter in self.backbone.parameters():
                parameter.stop_gradient = True
            self.head = nn.Linear(CLASSES, CLASSES)

        def train(self):
            super().train()
            self.backbone.eval()

        def forward(self, points):
            with paddle.no_grad():
                features = self.backbone(points)
            return self.head(features)

    return {"model": Net}


@program
def variational_autoencoder():
    class Net(nn.Layer):
        def __init__(self):
            super().__init__()
            self.encode, self.decode = nn.Linear(WIDTH, 4), nn.Linear(2, WIDTH)

        def forward(self, points):
            mean, spread = self.encode(points).chunk(2, axis=1)
            noise = paddle.randn(mean.shape) if self.training else paddle.zeros_like(mean)
            self.divergence = 0.5 * (spread.exp() + mean**2 - 1 - spread).sum(axis=1).mean()
            return self.decode(mean + noise * (0.5 * spread).exp())

    def step(model, batch):
        points, _ = batch
        return {"loss": F.mse_loss(model(points), points) + 0.1 * model.divergence}

    return {"model": Net, "step": step}


@program
def function_with_a_gradient_of_its_own():
    class Sign(paddle.autograd.PyLayer):
        @staticmethod
        def forward(ctx, values):
            ctx.save_for_backward(values)
            return values.sign()

        @staticmethod
        def backward(ctx, grad):
            (values,) = ctx.saved_tensor()
            return grad * (values.abs() < 1).astype(grad.dtype)

    class Binary(nn.Layer):
        def forward(self, hidden):
            return Sign.apply(hidden)

    return {"model": lambda: perceptron(Binary())}


# Datasets with files, caches, locks and counters.


def write_arrays():
    points = Points()
    np.save("points.npy", points.points)
    np.save("classes.npy", points.classes)


class Mapped(paddle.io.Dataset):
    """Opens its arrays when the first sample is read, as one does with an HDF5 file."""

    def __init__(self):
        self.arrays = None

    def __len__(self):
        return 33

    def __getitem__(self, index):
        if self.arrays is None:
            names = ("points.npy", "classes.npy")
            self.arrays = [np.load(name, mmap_mode="r") for name in names]
        points, classes = self.arrays
        return np.array(points[index]), classes[index]


@program
def lazily_opened_arrays():
    write_arrays()
    return {"train": Mapped(), "valid": Mapped()}


class Zipped(paddle.io.Dataset):
    """Opens a zip file once for each process that reads it."""

    def __init__(self, path):
        self.path, self.files = path, threading.local()
        with zipfile.ZipFile(path, "w") as file:
            for number, point in enumerate(Points().points):
                buffer = io.BytesIO()
                np.save(buffer, point)
                file.writestr(f"{number}.npy", buffer.getvalue())
            self.names = sorted(file.namelist())

    def __len__(self):
        return len(self.names)

    def __getitem__(self, index):
        if not hasattr(self.files, "zip"):
            self.files.zip = zipfile.ZipFile(self.path)
        point = np.load(io.BytesIO(self.files.zip.read(self.names[index])))
        return point, point[:CLASSES].argmax()


@program
def lazily_opened_zip_file():
    data = Zipped("points.zip")
    return {"train": data, "valid": data}


@program
def lazily_opened_zip_file_in_workers():
    data = Zipped("points.zip")
    return {"train": data, "valid": data, "num_workers": 2, "epochs": 1}


class Records(paddle.io.Dataset):
    """Reads from one open file, which has a position, under a lock."""

    def __init__(self, path):
        Points().points.tofile(path)
        self.file, self.lock = open(path, "rb"), threading.Lock()  # noqa: SIM115
        self.size = 4 * WIDTH

    def __len__(self):
        return Path(self.file.name).stat().st_size // self.size

    def __getitem__(self, index):
        with self.lock:
            self.file.seek(index * self.size)
            point = np.frombuffer(self.file.read(self.size), "float32")
        return point, point[:CLASSES].argmax()


@program
def open_file_under_a_lock():
    return {"train": Records("train.bin"), "valid": Records("valid.bin")}


class Table(paddle.io.Dataset):
    """Reads a table of SQLite, whose connection cannot be copied."""

    def __init__(self, path):
        self.path, self._connection = path, None
        with sqlite3.connect(path) as connection:
            connection.execute("create table points (id integer primary key, data blob)")
            rows = [(number, row.tobytes()) for number, row in enumerate(Points().points)]
            connection.executemany("insert into points values (?, ?)", rows)
        connection.close()

    @property
    def connection(self):
        if self._connection is None:
            self._connection = sqlite3.connect(self.path)
        return self._connection

    def __len__(self):
        return self.connection.execute("select count(*) from points").fetchone()[0]

    def __getitem__(self, index):
        query = "select data from points where id = ?"
        point = np.frombuffer(self.connection.execute(query, [index]).fetchone()[0], "float32")
        return point, point[:CLASSES].argmax()


@program
def data_base():
    data = Table("points.sqlite")
    return {"train": data, "valid": data}


class Cached(Pictures):
    """Keeps the images it has decoded, and counts what it reads."""

    def __init__(self):
        super().__init__()
        self.cache, self.reads, self.seconds = {}, 0, 0.0
        self.recent = OrderedDict()

    def __getitem__(self, index):
        start = time.perf_counter()
        if index not in self.cache:
            self.cache[index] = Image.fromarray(self.images[index])
        self.recent[index] = start
        while len(self.recent) > 5:
            self.recent.popitem(last=False)
        self.reads += 1
        self.seconds += time.perf_counter() - start
        return self.transform(self.cache[index]), np.int64(index % CLASSES)


@program
def image_cache():
    data = Cached()
    return {"model": residual_net, "train": data, "valid": data}


@functools.lru_cache(maxsize=16)
def read_point(path, index):
    return np.load(path)[index]


class Remembered(Points):
    """Reads by a function and by a method that remember, and keeps derived data."""

    @functools.cache  # noqa: B019, as people write it
    def label(self, index):
        return np.array([self.classes[index]])

    @functools.cached_property
    def scale(self):
        return self.points.std(axis=0)

    def __getitem__(self, index):
        return read_point("points.npy", index) / self.scale, self.label(index)


@program
def functions_that_remember():
    write_arrays()
    return {"train": Remembered(), "valid": Remembered()}


class Divided(Points):
    """Keeps the generator by which it has chosen its samples."""

    def __init__(self):
        super().__init__()
        self.generator = np.random.default_rng(0)
        self.chosen = self.generator.permutation(len(self.points))[:20]

    def __len__(self):
        return len(self.chosen)

    def __getitem__(self, index):
        return super().__getitem__(self.chosen[index])


@program
def generator_kept_after_the_samples_are_chosen():
    return {"train": Divided(), "valid": Divided()}


@program
def samples_prepared_by_threads():
    class Prepared(Points):
        def __init__(self):
            super().__init__()
            self.pool = ThreadPoolExecutor(2)

        def __getitem__(self, index):
            point, label = super().__getitem__(index)
            return np.stack(list(self.pool.map(np.tanh, point))), label

    return {"train": Prepared(), "valid": Prepared()}


# Feeding.


@program
def parts_of_datasets():
    joined = paddle.io.ConcatDataset([Points(), Points(noise=0.1)])
    train, valid = paddle.io.random_split(joined, [50, 16])
    return {
        "train": train,
        "valid": {"random": valid, "first": paddle.io.Subset(joined, [0, 1, 2])},
        "monitor": "first/loss",
    }


class Lines(paddle.io.IterableDataset):
    """Reads a file line by line, with a buffer that shuffles."""

    def __init__(self, path):
        self.path, self.epoch, self.lines = path, 0, 0
        with open(path, "w", newline="") as file:
            csv.writer(file).writerows(Points().points)

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        buffer = []
        with open(self.path, newline="") as file:
            for row in csv.reader(file):
                self.lines += 1
                buffer.append(np.array(row, "float32"))
                if len(buffer) == 8:
                    yield self.sample(buffer.pop(random.randrange(8)))
        yield from map(self.sample, buffer)

    @staticmethod
    def sample(point):
        return point, point[:CLASSES].argmax()


@program
def iterable_dataset():
    return {"train": Lines("points.csv")}


@program
def data_loader_whose_workers_persist():
    options = {"num_workers": 2, "persistent_workers": True}
    data = paddle.io.DataLoader(Points(), batch_size=8, shuffle=True, **options)
    return {"train": data, "epochs": 1}


@program
def samplers_of_paddle():
    data = Points()
    weights = paddle.io.WeightedRandomSampler(1 + data.classes, len(data))
    sampler = paddle.io.BatchSampler(sampler=weights, batch_size=8)
    distributed = paddle.io.DistributedBatchSampler(Points(17), 8, num_replicas=1, rank=0)
    return {
        "train": paddle.io.DataLoader(data, batch_sampler=sampler),
        "valid": paddle.io.DataLoader(Points(17), batch_sampler=distributed),
    }


@program
def data_loader_that_resumes():
    data = Points()
    sampler = ResumableBatchSampler(data, batch_size=8, seed=1)
    return {"train": paddle.io.DataLoader(data, batch_sampler=sampler)}


@program
def mixed_samples():
    """Mixup in the collate function, with the global generator."""

    def mix(samples):
        points, labels = (np.stack(column) for column in zip(*samples))
        share = np.random.beta(0.4, 0.4)
        order = np.random.permutation(len(points))
        mixed = share * points + (1 - share) * points[order]
        one_hot = np.eye(CLASSES, dtype="float32")[labels.flatten()]
        return mixed.astype("float32"), share * one_hot + (1 - share) * one_hot[order]

    return {"collate_fn": mix, "loss": functools.partial(F.cross_entropy, soft_label=True)}


# Losses, metrics and steps.


@program
def step_that_is_a_method():
    class Task:
        def __init__(self, smoothing, history=[]):  # noqa: B006, as people write it
            self.loss, self.smoothing = nn.CrossEntropyLoss(soft_label=True), smoothing
            self.history, self.timer = history, None

        def step(self, model, batch, tick=[0]):  # noqa: B006, as people write it
            tick[0] += 1
            points, labels = batch
            targets = F.label_smooth(F.one_hot(labels.flatten(), CLASSES), epsilon=self.smoothing)
            outputs = model(points)
            self.newest_outputs = outputs.detach()
            loss = self.loss(outputs, targets)
            self.history.append(loss.item())
            self.timer = time.perf_counter()
            return {"loss": loss}

    return {"step": Task(0.1).step}


@program
def step_that_prints_the_learning_rate():
    net = perceptron()
    schedule = lr.ExponentialDecay(0.1, 0.9)
    optimizer = paddle.optimizer.Adam(schedule, parameters=net.parameters())

    def step(model, batch):
        points, labels = batch
        print(schedule.last_epoch, optimizer.get_lr(), len(net.parameters()))
        return {"loss": F.cross_entropy(model(points), labels)}

    return {"model": net, "optimizer": optimizer, "step": step}


@program
def distilled_from_a_frozen_teacher():
    teacher = perceptron(nn.BatchNorm1D(16), nn.Dropout(0.1), width=16)
    teacher.eval()

    def step(model, batch):
        points, labels = batch
        with paddle.no_grad():
            targets = F.softmax(teacher(points) / 2)
        logits = model(points)
        soft = F.kl_div(F.log_softmax(logits / 2), targets, reduction="batchmean")
        return {"loss": F.cross_entropy(logits, labels) + soft}

    return {"step": step}


@program
def loss_without_parameters():
    class Smoothed(nn.Layer):
        def __init__(self, epsilon):
            super().__init__()
            self.epsilon, self.newest = epsilon, None

        def forward(self, outputs, labels):
            targets = F.label_smooth(F.one_hot(labels.flatten(), CLASSES), epsilon=self.epsilon)
            losses = -(targets * F.log_softmax(outputs)).sum(axis=1)
            self.newest = losses.detach()
            return losses.mean()

    return {"loss": Smoothed(0.1)}


# Optimizers and options.


def with_schedule(make):
    return lambda parameters: paddle.optimizer.Adam(make(), parameters=parameters)


@program
def schedule_by_a_closure():
    rates = []

    def factor(step):
        rates.append(0.9**step)
        return rates[-1]

    return {"optimizer": with_schedule(lambda: lr.LambdaDecay(0.1, factor))}


# Callbacks.


class History(Callback):
    """Keeps values, times and the best of them, and writes them to a file and a progress bar."""

    def __init__(self, path):
        self.losses, self.times, self.best, self.patience = [], deque(maxlen=4), None, 0
        self.start, self.file = time.time(), open(path, "w", newline="")  # noqa: SIM115
        self.rows, self.bar = csv.writer(self.file), None
        self.weights, self.training, self.view = {}, None, None

    def before_training(self, training):
        self.training = training
        self.start, self.bar = time.time(), tqdm(total=training.job.steps, disable=None)

    def after_step(self, view):
        self.view = view
        self.losses.append(view.loss)
        self.times.append(time.time() - self.start)
        self.rows.writerow([view.step, view.loss])
        self.bar.update()
        self.weights = {name: view.parameter(name) for name in view.parameters}
        return {"seconds": self.times[-1]}

    def after_epoch(self, view):
        loss = view.metrics["valid/loss"]
        is_better = self.best is None or loss < self.best
        self.best, self.patience = (loss, 0) if is_better else (self.best, self.patience + 1)

    def after_training(self, training, result):
        self.bar.close()
        self.file.close()


@program
def callback_with_history_and_times():
    return {"callbacks": [History("history.csv")]}


@program
def net_that_the_script_goes_on_using():
    net = perceptron()
    optimizer = adam(net.parameters())
    predictions = []

    class Predicts(Callback):
        def after_epoch(self, view):
            net.eval()
            with paddle.no_grad():
                predictions.append(net(paddle.ones([1, WIDTH])).numpy())
            net.train()

    return {"model": net, "optimizer": optimizer, "callbacks": [Predicts()]}


IN_MAKE_TEST = """
    weight_norm activations_kept_by_a_forward_hook masks_cached_by_length
    statistics_of_activations_and_times config_object_and_logger_on_the_model
    data_parallel_in_one_process image_cache recomputed_activations data_base
    lazily_opened_zip_file_in_workers functions_that_remember samples_prepared_by_threads
    iterable_dataset samplers_of_paddle mixed_samples step_that_is_a_method schedule_by_a_closure
    callback_with_history_and_times net_that_the_script_goes_on_using
""".split()
OTHERS = [name for name in PROGRAMS if name not in IN_MAKE_TEST]


@pytest.mark.parametrize(
    "name", [*IN_MAKE_TEST, *(pytest.param(name, marks=pytest.mark.release) for name in OTHERS)]
)
def test_ordinary_program_trains_without_a_warning(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    gc.collect()  # else what an earlier program has left open is warned of here
    gc.freeze()  # what is left, all modules and tests, takes long to look through each time
    for seed in (random.seed, np.random.seed, paddle.seed):
        seed(0)
    with silent():
        given = PROGRAMS[name]()
        without = {"loss": None} if "step" in given else {}
        result = fit(**grouped(**{**arguments(), **without, **given}))
    assert result.stopped == "finished"
