"""Ordinary programs train as they are: `fit` neither refuses nor warns.

Much of what they keep in Python is not state of the training: caches, statistics, open files,
locks, times. Each program combines some of it, and is a function that returns arguments of `fit`;
it runs in an empty folder. The programs of `fit_rows` and `usual_programs` must be silent, too.
"""

import csv
import enum
import functools
import gc
import logging
import random
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
from PIL import Image
from silence import silent
from small_nets import CLASSES, VOCABULARY, WIDTH, Points, Texts, perceptron
from tqdm import tqdm

from paddle_mnist import Callback, ResumableBatchSampler, fit

SIDE = 8  # of an image of `Pictures`


def adam(parameters):
    return paddle.optimizer.Adam(0.01, parameters=parameters)


# ------------------------------------------------------------------ nets


class Pooling(enum.Enum):
    MEAN = "mean"
    MAX = "max"


@dataclass
class Config:
    width: int = 8
    pooling: Pooling = Pooling.MEAN
    names: list = field(default_factory=lambda: ["a", "b", "c"])


@functools.cache
def causal_mask(length):
    return paddle.triu(paddle.full([length, length], -1e9), diagonal=1)


class Attention(nn.Layer):
    """Has caches and statistics, and objects that are not tensors."""

    def __init__(self, config):
        super().__init__()
        self.config, self.log = config, logging.getLogger("program.net")
        self.options, self.activation = types.SimpleNamespace(verbose=True), F.gelu
        self.words = nn.Embedding(VOCABULARY, config.width)
        self.head, self.positions = nn.Linear(config.width, CLASSES), None
        self.head.parent = weakref.ref(self)
        self.shapes = Counter()

    def forward(self, words):
        if self.positions is None:
            print("the first batch is", words.shape)
            table = np.sin(np.arange(words.shape[1])[:, None] / np.arange(1, 1 + self.config.width))
            self.positions = paddle.to_tensor(table, "float32")
        hidden = self.words(words) + self.positions
        scores = hidden @ hidden.transpose([0, 2, 1]) + causal_mask(words.shape[1])
        hidden = self.activation(F.softmax(scores) @ hidden)
        self.log.debug("hidden: %s", hidden.shape)
        self.shapes[tuple(words.shape)] += 1
        is_mean = self.config.pooling is Pooling.MEAN
        return self.head(hidden.mean(axis=1) if is_mean else hidden.max(axis=1))


def attention_that_keeps_statistics():
    net, activations = Attention(Config()), {}

    def keep(name):
        def hook(layer, inputs, output):
            activations[name] = output

        return hook

    for name, layer in net.named_sublayers():
        layer.register_forward_post_hook(keep(name))
    texts = {"train": Texts(), "valid": Texts()}
    return {**texts, "model": net, "optimizer": adam(net.parameters())}


class Sign(paddle.autograd.PyLayer):
    @staticmethod
    def forward(ctx, values):
        ctx.save_for_backward(values)
        return values.sign()

    @staticmethod
    def backward(ctx, grad):
        (values,) = ctx.saved_tensor()
        return grad * (values.abs() < 1).astype(grad.dtype)


class Unusual(nn.Layer):
    """Has derived and unused weights, recomputed activations, a custom gradient, a running mean."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(WIDTH, 16), nn.ReLU(), nn.Dropout(0.1))
        self.block, self.out = nn.Linear(16, 16), nn.Linear(16, CLASSES)
        self.unused = nn.Linear(2, 2)
        nn.utils.weight_norm(self.body[0])
        nn.utils.weight_norm(self.out, dim=None)
        self.register_buffer("mean", paddle.zeros([WIDTH]))
        self.register_buffer("scale", paddle.full([WIDTH], 2.0), persistable=False)

    def forward(self, points):
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * points.mean(axis=0)
        hidden = self.body((points - self.mean) / self.scale)
        hidden = recompute(self.block, hidden) if self.training else self.block(hidden)
        self.penalty = hidden.square().mean()  # with its graph, for the step
        return self.out(Sign.apply(hidden))


def derived_weights_and_custom_gradients():
    def step(model, batch):
        points, labels = batch
        return {"loss": F.cross_entropy(model(points), labels) + 0.1 * model.penalty}

    return {"model": Unusual, "step": step}


def data_parallel_net_that_the_script_uses():
    net, predictions, rates = paddle.DataParallel(perceptron()), [], []

    def factor(step):
        rates.append(0.9**step)
        return rates[-1]

    schedule = lr.LambdaDecay(0.1, factor)
    optimizer = paddle.optimizer.Adam(schedule, parameters=net.parameters())

    class Predicts(Callback):
        def after_epoch(self, view):
            net.eval()
            with paddle.no_grad():
                predictions.append(net(paddle.ones([1, WIDTH])).numpy())
            net.train()

    def step(model, batch):
        points, labels = batch
        print(schedule.last_epoch, optimizer.get_lr(), len(net.parameters()))
        return {"loss": F.cross_entropy(model(points), labels)}

    return {"model": net, "optimizer": optimizer, "step": step, "callbacks": [Predicts()]}


class Finetuned(nn.Layer):
    """Trains a head on a backbone that is frozen."""

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


# ------------------------------------------------------------------ datasets


@functools.lru_cache(maxsize=16)
def read_image(path, index):
    return Image.fromarray(np.load(path)[index])


class Pictures(paddle.io.Dataset):
    """Crops and flips images at random; remembers, counts, and prepares images in threads."""

    def __init__(self):
        images = np.random.RandomState(1).randint(0, 255, [24, SIDE, SIDE, 3], "uint8")
        np.save("images.npy", images)
        self.generator, self.pool = np.random.default_rng(0), ThreadPoolExecutor(2)
        self.chosen = self.generator.permutation(len(images))[:20]
        self.cache, self.recent = {}, OrderedDict()
        self.transform = transforms.Compose(
            [
                transforms.RandomCrop(SIDE, padding=1),
                transforms.RandomHorizontalFlip(),
                transforms.ColorJitter(0.1, 0.1),
                transforms.ToTensor(),
            ]
        )

    def __len__(self):
        return len(self.chosen)

    @functools.cached_property
    def mean(self):
        return np.load("images.npy").mean() / 255

    def __getitem__(self, index):
        if index not in self.cache:
            self.cache[index] = read_image("images.npy", int(self.chosen[index]))
        self.recent[index] = time.perf_counter()
        while len(self.recent) > 5:
            self.recent.popitem(last=False)
        image = self.transform(self.cache[index]).numpy() - np.float32(self.mean)
        return np.stack(list(self.pool.map(np.tanh, image))), np.int64(index % CLASSES)


def convolutional_net_on_pictures_that_are_remembered():
    def build():
        layers = [nn.Conv2D(3, 8, 3), nn.BatchNorm2D(8), nn.ReLU(), nn.AdaptiveAvgPool2D(1)]
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(8, CLASSES))

    return {"model": build, "train": Pictures(), "valid": Pictures()}


class Stored(paddle.io.Dataset):
    """Reads points that `read(index)` of a subclass returns as bytes."""

    def __len__(self):
        return len(Points())

    def __getitem__(self, index):
        point = np.frombuffer(self.read(index), "float32")
        return point, point[:CLASSES].argmax()


class Mapped(Stored):
    """Opens its array with the first sample, as programs do with an HDF5 file."""

    def __init__(self):
        np.save("points.npy", Points().points)
        self.array = None

    def read(self, index):
        if self.array is None:
            self.array = np.load("points.npy", mmap_mode="r")
        return self.array[index].tobytes()


class Zipped(Stored):
    """Opens a zip file once in each process and thread."""

    def __init__(self):
        self.files = threading.local()
        with zipfile.ZipFile("points.zip", "w") as file:
            for number, point in enumerate(Points().points):
                file.writestr(str(number), point.tobytes())

    def read(self, index):
        if not hasattr(self.files, "zip"):
            self.files.zip = zipfile.ZipFile("points.zip")
        return self.files.zip.read(str(index))


class Records(Stored):
    """Reads from one open file, which has a position, under a lock."""

    def __init__(self):
        Points().points.tofile("points.bin")
        self.file, self.lock = open("points.bin", "rb"), threading.Lock()  # noqa: SIM115

    def read(self, index):
        with self.lock:
            self.file.seek(4 * WIDTH * index)
            return self.file.read(4 * WIDTH)


def datasets_of_open_files():
    joined = paddle.io.ConcatDataset([Mapped(), Zipped(), Records()])
    train, valid = paddle.io.random_split(joined, [75, 24])
    return {
        "train": train,
        "valid": {"random": valid, "first": paddle.io.Subset(joined, [0, 1, 2])},
        "monitor": "first/loss",
        "epochs": 1,
    }


def files_opened_by_worker_processes():
    data = paddle.io.ConcatDataset([Mapped(), Zipped()])
    return {"train": data, "valid": data, "num_workers": 2, "epochs": 1}


class Lines(paddle.io.IterableDataset):
    """Reads a file line by line, in random order within a buffer; has `set_epoch`."""

    def __init__(self):
        self.epoch = 0
        np.savetxt("points.csv", Points().points, delimiter=",")

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        buffer = []
        with open("points.csv", newline="") as file:
            for row in csv.reader(file):
                point = np.array(row, "float32")
                buffer.append((point, point[:CLASSES].argmax()))
                if len(buffer) == 8:
                    yield buffer.pop(random.randrange(8))
        yield from buffer


def static_graph_on_an_iterable_dataset():
    return {"train": Lines(), "model": lambda: paddle.jit.to_static(perceptron())}


def loaders_with_samplers_of_paddle():
    data = Points()
    weighted = paddle.io.WeightedRandomSampler(1 + data.classes, len(data))
    batches = {
        "weighted": paddle.io.BatchSampler(sampler=weighted, batch_size=8),
        "distributed": paddle.io.DistributedBatchSampler(data, 8, num_replicas=1, rank=0),
        "resumable": ResumableBatchSampler(data, batch_size=8, seed=1),
    }
    valid = {name: paddle.io.DataLoader(data, batch_sampler=one) for name, one in batches.items()}
    options = {"num_workers": 2, "persistent_workers": True, "shuffle": True}
    train = paddle.io.DataLoader(data, batch_size=8, **options)
    return {"train": train, "valid": valid, "epochs": 1, "monitor": "distributed/loss"}


# ------------------------------------------------------------------ collate function, callback


def mix(samples):
    """Mix samples and their labels, by the global generator."""
    points, labels = (np.stack(column) for column in zip(*samples))
    share = np.random.beta(0.4, 0.4)
    order = np.random.permutation(len(points))
    mixed = share * points + (1 - share) * points[order]
    one_hot = np.eye(CLASSES, dtype="float32")[labels.flatten()]
    return mixed.astype("float32"), share * one_hot + (1 - share) * one_hot[order]


class History(Callback):
    """Keeps values and times, and writes them to a file and a progress bar."""

    def __init__(self, path):
        self.times, self.view, self.start = deque(maxlen=4), None, time.time()
        self.file = open(path, "w", newline="")  # noqa: SIM115
        self.rows, self.bar = csv.writer(self.file), None

    def before_training(self, training):
        self.training, self.bar = training, tqdm(total=training.steps, disable=None)

    def after_step(self, view):
        self.view = view
        self.times.append(time.time() - self.start)
        self.rows.writerow([view.step, view.loss])
        self.bar.update()
        return {"seconds": self.times[-1]}

    def after_training(self, training, result):
        self.bar.close()
        self.file.close()


def frozen_backbone_on_mixed_samples_with_a_history():
    return {
        "model": Finetuned,
        "collate_fn": mix,
        "loss": functools.partial(F.cross_entropy, soft_label=True),
        "callbacks": [History("history.csv")],
    }


PROGRAMS = [
    attention_that_keeps_statistics,
    derived_weights_and_custom_gradients,
    data_parallel_net_that_the_script_uses,
    convolutional_net_on_pictures_that_are_remembered,
    datasets_of_open_files,
    files_opened_by_worker_processes,
    static_graph_on_an_iterable_dataset,
    loaders_with_samplers_of_paddle,
    frozen_backbone_on_mixed_samples_with_a_history,
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_ordinary_program_trains_without_a_warning(program, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    gc.collect()  # otherwise a file that an earlier program has left open warns here
    gc.freeze()  # looking through all modules and tests takes long each time
    for seed in (random.seed, np.random.seed, paddle.seed):
        seed(0)
    options = {
        "model": perceptron,
        "train": Points(),
        "valid": Points(17),
        "optimizer": adam,
        "epochs": 2,
        "batch_size": 8,
        "log_every": 2,
        "visualdl": (),
        "figures": False,
        "device": "cpu",
    }
    with silent():
        given = program()
        loss = None if "step" in given else nn.CrossEntropyLoss()
        result = fit(**grouped(**{"loss": loss, **options, **given}, output="run"))
    assert result.stopped == "finished"
    assert Path("run/model.pdparams").exists()
