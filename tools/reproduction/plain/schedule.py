"""Steps with Paddle's own schedule of the learning rate, which is stepped after each, or never.

python schedule.py DATA STEPS: prints the rates at the end
"""

import itertools
import json
import sys

import paddle
from paddle.nn.functional import cross_entropy

from paddle_mnist import MNIST, BatchLoader, MnistDataset

data, steps = sys.argv[1], int(sys.argv[2])
rates = {}
for way in ("never", "each"):
    model, schedule = MNIST(), paddle.optimizer.lr.PolynomialDecay(0.01, steps, 0.001)
    optimizer = paddle.optimizer.Momentum(schedule, parameters=model.parameters())
    loader = BatchLoader(MnistDataset("train", data), 2, shuffle=False)
    for images, labels in itertools.islice(loader.epoch(0), steps):
        cross_entropy(model(images), labels).backward()
        optimizer.step()
        optimizer.clear_grad()
        if way == "each":
            schedule.step()
    rates[way] = optimizer.get_lr()
print(json.dumps(rates))
