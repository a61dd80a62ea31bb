"""The first batch is tried without a trace, and what is wrong is said with its shapes."""

import numpy as np
import paddle
import pytest
from fit_rows import Points, TextNet, Texts
from paddle import nn
from paddle.nn import functional as F

from paddle_mnist.data.loader import BatchLoader
from paddle_mnist.data.sampler import ShardSpec
from paddle_mnist.errors import ConfigError, DataError
from paddle_mnist.metrics.sums import Mean, Sums
from paddle_mnist.training.batch_errors import describe_batch
from paddle_mnist.training.first_batch import try_evaluation, try_first_batch
from paddle_mnist.training.steps import SupervisedStep


class Everything(nn.Layer):
    """A net whose pass changes state in each of the ways to change it; in evaluation, too."""

    def __init__(self, fails=False):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1D(4), nn.Dropout(0.5))
        self.frozen = nn.Linear(4, 4)
        for parameter in self.frozen.parameters():
            parameter.stop_gradient = True
        self.spectral = nn.utils.spectral_norm(nn.Linear(4, 3))
        self.register_buffer("in_place", paddle.zeros([4]))
        self.register_buffer("replaced", paddle.zeros([], "int64"))
        self.register_buffer("later", None)
        self.mask = None
        self.fails = fails

    def forward(self, points):
        hidden = self.frozen(self.body(points))
        self.in_place.set_value(self.in_place + hidden.detach().mean(axis=0))
        self.replaced = self.replaced + 1
        self.later = self.seen = hidden
        if self.mask is None:
            self.mask = paddle.ones([4])  # which is now a buffer, and no attribute
        if self.fails:
            raise ZeroDivisionError("by hand")
        return self.spectral(hidden * self.mask)


def sgd(model):
    return paddle.optimizer.SGD(0.1, parameters=model.parameters())


def loader(dataset=None, batch_size=8, shards=None):
    whole = BatchLoader(dataset or Points(), batch_size, seed=1)
    return whole.sharded(ShardSpec(shards)) if shards else whole


STEP = SupervisedStep(F.cross_entropy)


def traces(model):
    """All that a pass could have changed, with the objects that hold it."""
    tensors = {**dict(model.named_buffers()), **dict(model.named_parameters())}
    modes = [layer.training for layer in model.sublayers(include_self=True)]
    values = {name: (id(one), one.numpy().tobytes()) for name, one in tensors.items()}
    return values, modes, model.state_dict().keys(), vars(model).keys()


@pytest.mark.parametrize("is_training", [True, False, None])
@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("shards", [None, 2])
def test_the_first_batch_leaves_no_trace(fails, shards, is_training):
    model = Everything(fails)
    model.train() if is_training else model.eval()
    if is_training is None:
        model.body[1].train()  # one layer in a mode of its own
    before = traces(model)
    for run in (
        lambda: try_first_batch(STEP, model, sgd(model), loader(shards=shards), seed=1),
        lambda: try_evaluation(STEP, model, loader(), "valid"),
    ):
        if fails:
            with pytest.raises(ConfigError, match="ZeroDivisionError: by hand"):
                run()
        else:
            run()
        assert traces(model) == before
        assert all(one.grad is None or not one.grad.numpy().any() for one in model.parameters())


def test_a_training_that_was_rehearsed_is_that_of_one_that_was_not():
    def train(rehearses):
        with paddle.utils.unique_name.guard():
            paddle.seed(3)
            model = Everything()
            optimizer = sgd(model)
        if rehearses:
            try_first_batch(STEP, model, optimizer, loader(), seed=1)
            try_evaluation(STEP, model, loader(), "valid")
        paddle.seed(4)
        for batch in loader().epoch(0):
            STEP(model, batch)["loss"].backward()
            optimizer.step()
            optimizer.clear_grad()
        return {name: one.numpy().tobytes() for name, one in model.state_dict().items()}

    assert train(True) == train(False)


def wrong_metric(outputs, labels):
    return outputs.reshape([7, 7]).mean()


def fails_with(error):
    def loss(outputs, labels):
        raise error

    return loss


class Picky(nn.Layer):
    def forward(self, points):
        raise DataError("image 3 is torn")


TYPES = "the batch is (float32 [8, 6], int64 [8, 1])"
WRONG = {
    "shape of the model": (nn.Linear(7, 3), STEP, ["Error", TYPES]),
    "shape of the loss": (
        nn.Linear(6, 3),
        SupervisedStep(lambda outputs, labels: F.mse_loss(outputs, outputs[:, :2])),
        ["Error", TYPES],
    ),
    "shape of a metric": (
        nn.Linear(6, 3),
        SupervisedStep(F.cross_entropy, {"m": wrong_metric}),
        ["the metric 'm' fails with ValueError", "it got (float32 [8, 3], int64 [8, 1])"],
    ),
    "an error of one's own": (
        nn.Linear(6, 3),
        SupervisedStep(fails_with(KeyError("weight"))),
        ["fails with KeyError: 'weight'", TYPES],
    ),
    "an error without a text": (
        nn.Linear(6, 3),
        SupervisedStep(fails_with(NotImplementedError())),
        ["fails with NotImplementedError;", TYPES],
    ),
    "a loss for each sample": (
        nn.Linear(6, 3),
        SupervisedStep(lambda outputs, labels: outputs.sum(axis=1)),
        ["the loss is a Tensor of shape [8]"],
    ),
    "a loss that is a number": (
        nn.Linear(6, 3),
        SupervisedStep(lambda outputs, labels: 0.5),
        ["the loss is a float; expected a tensor of one element"],
    ),
    "no loss": (nn.Linear(6, 3), lambda model, batch: {"acc": 1.0}, ["a dict of acc; expected"]),
    "nothing": (nn.Linear(6, 3), lambda model, batch: None, ["returned a NoneType; expected"]),
    "a metric of a shape": (
        nn.Linear(6, 3),
        SupervisedStep(F.cross_entropy, {"m": lambda outputs, labels: outputs}),
        ["a Tensor of shape [8, 3] as 'm'"],
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_wrong_is_said_with_the_shapes_of_the_batch(wrong):
    model, step, messages = WRONG[wrong]
    for what, run in (
        ("the first batch", lambda: try_first_batch(step, model, sgd(model), loader(), seed=1)),
        ("the first batch of far", lambda: try_evaluation(step, model, loader(), "far")),
    ):
        with pytest.raises(ConfigError) as refusal:
            run()
        text = str(refusal.value)
        assert all(message in text for message in messages), text
        assert len(text) < 500 and "\n" not in text
        if TYPES in messages:
            assert text.startswith(f"{what} fails with")


def test_errors_of_this_package_are_not_explained():
    model = nn.Sequential(Picky(), nn.Linear(6, 3))
    with pytest.raises(DataError, match=r"^image 3 is torn$"):
        try_first_batch(STEP, model, sgd(model), loader(), seed=1)


def test_a_loss_without_a_gradient_is_refused():
    model = nn.Linear(6, 3)
    step = SupervisedStep(lambda outputs, labels: F.cross_entropy(outputs.detach(), labels))
    with pytest.raises(ConfigError, match="gradient"):
        try_first_batch(step, model, sgd(model), loader(), seed=1)


def test_data_without_batches_are_refused():
    model = nn.Linear(6, 3)
    with pytest.raises(DataError, match="the training data have no batches"):
        try_first_batch(STEP, model, sgd(model), [], seed=1)
    with pytest.raises(DataError, match="the data 'far' have no batches"):
        try_evaluation(STEP, model, [], "far")


def adam(parameters):
    return paddle.optimizer.Adam(0.1, parameters=parameters, lazy_mode=True)


def adamw(parameters):
    return paddle.optimizer.AdamW(0.1, parameters=parameters)


def text_net(sparse):
    model = TextNet()
    model.words._sparse = sparse
    return model


@pytest.mark.parametrize("make", [adam, adamw])
@pytest.mark.parametrize("sparse", [True, False])
def test_adamw_and_a_sparse_embedding_are_refused_but_only_together(make, sparse, lines):
    model = text_net(sparse)
    before = traces(model)

    def run():
        optimizer = make(model.parameters())
        try_first_batch(STEP, model, optimizer, loader(Texts()), seed=1, is_divided=True)

    if make is adamw and sparse:
        with pytest.raises(
            ConfigError, match="the optimizer is AdamW, and an embedding has sparse"
        ):
            run()
    else:
        run()
        assert any("sparse gradients are made dense" in line for line in lines()) == sparse
    assert traces(model) == before
    # the gradients that follow may be dense, as an exchange makes them
    for parameter in model.parameters():
        parameter.grad = paddle.ones_like(parameter)


def test_what_the_first_batches_tell():
    def twice(totals):
        return 2 * float(totals[0])

    def step(model, batch):
        loss = F.cross_entropy(model(batch[0]), batch[1])
        return {"loss": loss, "a": Mean(3, 4), "b": Sums([1], twice), "c": 0.5}

    model = nn.Linear(6, 3)
    shown = try_first_batch(step, model, sgd(model), loader(), seed=1)
    totals = {name: metric.with_values(np.array([3, 4.0])) for name, metric in shown.items()}
    values = {name: total.compute() for name, total in totals.items()}
    assert values == {"a": 0.75, "b": 6, "c": 0.75}
    assert try_evaluation(step, model, loader(), "far") == [
        "far/loss",
        "far/a",
        "far/b",
        "far/c",
    ]


def test_the_model_is_in_the_mode_of_the_rehearsal():
    modes = []

    def step(model, batch):
        modes.append((model.training, paddle.is_grad_enabled()))
        return {"loss": F.cross_entropy(model(batch[0]), batch[1])}

    model = nn.Linear(6, 3)
    model.eval()
    try_first_batch(step, model, sgd(model), loader(), seed=1)
    try_evaluation(step, model, loader(), "valid")
    training, *evaluation = modes
    assert training == (True, True) and set(evaluation) == {(False, False)}


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        ([paddle.zeros([2, 3]), np.zeros(4)], "[float32 [2, 3], float64 [4]]"),
        ({"x": (paddle.zeros([], "int64"),), "t": ["a"]}, "{'x': (int64 [],), 't': [str]}"),
        (3, "int"),
    ],
)
def test_batches_are_described_with_dtypes_and_shapes(batch, expected):
    assert describe_batch(batch) == expected
