"""The tutorial's loop, which counts the batches of an epoch by reading them all at each of them.

python counted.py DATA IMAGES STEPS: prints the processor seconds of each step, and the share of the
images that the steps have seen; both also of a loop that counts them once
"""

import itertools
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import paddle
from paddle.nn.functional import cross_entropy

from paddle_mnist import MnistDataset

sys.path.insert(0, str(Path(__file__).parents[2]))
from baseline_tutorial import Net, load_data

data, limit, steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
images, labels = MnistDataset("train", data, limit).batch(np.arange(limit))
images[:, 0, 0, 0] = np.arange(limit) / limit  # a pixel that tells which image it is
lists = images.reshape([limit, -1]).tolist(), labels[:, 0].tolist()


def seconds_of_steps(reads_all: bool, seen: set[float]) -> Iterator[float]:
    train_loader, model, iters = load_data([lists], "train"), Net(), []
    optimizer = paddle.optimizer.Adam(0.01, parameters=model.parameters())
    count, began = len(list(train_loader())), time.process_time()
    for batch_id, (images, labels) in enumerate(train_loader()):
        seen.update(images[:, 0, 0, 0].tolist())
        logits, _ = model(paddle.to_tensor(images), paddle.to_tensor(labels))
        cross_entropy(logits, paddle.to_tensor(labels)).backward()
        optimizer.step()
        optimizer.clear_grad()
        batches = len(list(train_loader())) if reads_all else count
        iters.append(batch_id + 0 * batches)  # of epoch 0
        yield time.process_time() - began
        began = time.process_time()


report = {}
seen: dict[str, set[float]] = {"reading": set(), "once": set()}
loops = [seconds_of_steps(way == "reading", seen[way]) for way in seen]
taken = [*itertools.islice(zip(*loops), steps)]
for way, seconds in zip(seen, zip(*taken)):
    report[way] = {"seconds": seconds, "seen": len(seen[way]) / min(limit, 100 * len(seconds))}
print(json.dumps(report))
