"""The tutorial's part three in plain Paddle: train some epochs in the document's order, and save.

python resume.py DATA IMAGES FIRST_EPOCH END_EPOCH FOLDER [FOLDER TO RESUME FROM]
"""

import json
import os
import sys

import paddle
from paddle.nn.functional import cross_entropy

from paddle_mnist import MNIST, BatchLoader, MnistDataset

data, limit, first, end, folder, *start = sys.argv[1:]
paddle.seed(1)
model = MNIST(fast_conv="off")
schedule = paddle.optimizer.lr.PolynomialDecay(0.01, 4689, 0.001)  # never stepped, as there
optimizer = paddle.optimizer.Momentum(schedule, parameters=model.parameters())
for path in start:
    model.set_state_dict(paddle.load(f"{path}/mnist.pdparams"))
    optimizer.set_state_dict(paddle.load(f"{path}/mnist.pdopt"))
loader = BatchLoader(MnistDataset("train", data, int(limit) or None), 32, shuffle=False)
step, losses = int(first) * len(loader), {}
for epoch in range(int(first), int(end)):
    for images, labels in loader.epoch(epoch):
        loss = cross_entropy(model(images), labels)
        loss.backward()
        step += 1
        if step % 10 == 0:
            losses[step] = loss.item()
        optimizer.step()
        optimizer.clear_grad()
os.makedirs(folder)
paddle.save(model.state_dict(), f"{folder}/mnist.pdparams")
paddle.save(optimizer.state_dict(), f"{folder}/mnist.pdopt")
print(json.dumps({"steps": step, "losses": losses}))
