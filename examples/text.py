"""Classify sentences; the gradient of the embedding has only the rows of a batch's words."""

import sys

from paddle_mnist import Loading, fit

import numpy as np
import paddle
from paddle import nn

GOOD, BAD, NOT, OTHERS, WORDS = range(1, 6), range(6, 11), 11, 12, 20_000


class Reviews(paddle.io.Dataset):
    """Sentences with a good word or a bad one, which "not" before it turns into its opposite."""

    def __init__(self, length, seed):
        self.length, self.seed = length, seed

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        random = np.random.RandomState([self.seed, index])
        words = random.randint(OTHERS, WORDS, random.randint(4, 13))
        place, label, negated = random.randint(1, len(words)), random.randint(2), random.randint(2)
        words[place] = random.choice(GOOD if label != negated else BAD)
        words[place - 1] = NOT if negated else words[place - 1]
        return words, np.array([label])


def pad(samples):
    """Make a batch of sentences of different lengths; 0 is not a word."""
    padded = [np.pad(words, (0, 12 - len(words))) for words, _ in samples]
    return np.stack(padded), np.stack([label for _, label in samples])


class Classifier(nn.Layer):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, 16, padding_idx=0, sparse=True)
        self.pairs, self.out = nn.Conv1D(16, 32, 2), nn.Linear(32, 2)

    def forward(self, words):
        pairs = nn.functional.relu(self.pairs(self.words(words).transpose([0, 2, 1])))
        return self.out(pairs.max(axis=2))


def optimizer(parameters):
    return paddle.optimizer.Adam(0.005, parameters=parameters, lazy_mode=True)


if __name__ == "__main__":
    output = sys.argv[1] if len(sys.argv) > 1 else "work/output/text"
    train, valid = Reviews(4000, seed=0), Reviews(500, seed=1)
    task = {"loss": nn.CrossEntropyLoss(), "metrics": {"acc": paddle.metric.Accuracy()}}
    run = {"epochs": 4, "loading": Loading(collate_fn=pad), "output": output}
    result = fit(Classifier, train, valid, **task, optimizer=optimizer, **run)
    print(f"chance 0.500, net {result.metrics['valid/acc']:.3f}")
