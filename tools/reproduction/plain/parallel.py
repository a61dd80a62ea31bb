"""An epoch with `DataParallel`, of all the images in each process, or of its share of them.

python [-m paddle.distributed.launch --nproc_per_node 2] parallel.py DATA IMAGES all|share FILE
"""

import json
import sys
import time

import paddle
import paddle.distributed as dist
from paddle.io import BatchSampler, DataLoader, DistributedBatchSampler
from paddle.nn.functional import cross_entropy

from paddle_mnist import MNIST, MnistDataset

data, limit, kind, path = sys.argv[1:]
dist.init_parallel_env()
paddle.seed(1)
dataset = MnistDataset("train", data, int(limit))
model = paddle.DataParallel(MNIST(fast_conv="off"))
optimizer = paddle.optimizer.Momentum(0.01, parameters=model.parameters())
if kind == "all":
    sampler = BatchSampler(dataset, shuffle=True, batch_size=64)
else:
    sampler = DistributedBatchSampler(dataset, 64 // dist.get_world_size(), shuffle=True)
samples, began = paddle.zeros([1]), time.perf_counter()
for images, labels in DataLoader(dataset, batch_sampler=sampler):
    cross_entropy(model(images), labels).backward()
    optimizer.step()
    optimizer.clear_grad()
    samples += len(images)
seconds = time.perf_counter() - began
if dist.get_world_size() > 1:
    dist.all_reduce(samples)
if dist.get_rank() == 0:
    report = {"steps": len(sampler), "samples": int(samples), "seconds": seconds}
    with open(path, "w") as file:
        json.dump(report, file)
