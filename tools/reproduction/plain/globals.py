"""Train in the document's two ways, and in this package's, and look at the weights left behind.

python globals.py DATA SEED FOLDER: prints the accuracies of the trained nets and of what is left
"""

import json
import sys

import paddle
from short import accuracy, new_net, train

from paddle_mnist import Trainer

data, seed, folder = sys.argv[1:]
paddle.seed(int(seed))
model = new_net()  # the module's, as in a notebook


class TheirTrainer:
    def __init__(self, model):
        self.model = model

    def save(self, path):
        paddle.save(model.state_dict(), path)


def train_new(model):
    model = new_net()
    return train(model, data)


theirs, callers, own = TheirTrainer(new_net()), new_net(), train(new_net(), data)
train(theirs.model, data)
theirs.save(f"{folder}/theirs")
Trainer(f"{folder}/ours", own, paddle.optimizer.SGD(parameters=own.parameters())).save()
ways = {"theirs": (theirs.model, new_net()), "callers": (train_new(callers), callers)}
ways["ours"] = (own, new_net())
for way in ("theirs", "ours"):
    ways[way][1].set_state_dict(paddle.load(f"{folder}/{way}"))
print(json.dumps({way: [accuracy(net, data) for net in nets] for way, nets in ways.items()}))
