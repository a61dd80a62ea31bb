"""Save a net to one path again and again: with `paddle.save`, or with this package's `Trainer`.

python save.py PATH TIMES paddle|trainer
"""

import sys

import paddle

from paddle_mnist import MNIST, Trainer

path, times, way = sys.argv[1:]
model = MNIST()
trainer = Trainer(path, model, paddle.optimizer.SGD(parameters=model.parameters()))
for _ in range(int(times)):
    if way == "paddle":
        paddle.save(model.state_dict(), path)
    else:
        trainer.save()
