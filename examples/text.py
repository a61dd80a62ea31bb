"""Classify sentences of any length, in batches of similar length, with sparse gradients."""

import sys

from paddle_mnist import Loading, Saving, fit

import numpy as np
import paddle
from paddle import nn

GOOD, BAD, NOT, OTHERS, WORDS = range(1, 6), range(6, 11), 11, 12, 20_000
BATCH, MOST_WORDS = 32, 32


class Reviews(paddle.io.Dataset):
    """Sentences with a good word or a bad one, which a "not" before it turns into its opposite.

    Most are short, a few are long; what is beyond `most_words` is cut off.
    """

    def __init__(self, length, seed, most_words=None):
        self.length, self.seed, self.most_words = length, seed, most_words

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        random = np.random.RandomState([self.seed, index])
        words = random.randint(OTHERS, WORDS, 4 + int(random.exponential(12)))
        place, label, negated = random.randint(1, len(words)), random.randint(2), random.randint(2)
        words[place] = random.choice(GOOD if label != negated else BAD)
        words[place - 1] = NOT if negated else words[place - 1]
        return words[: self.most_words], np.array([label])


def pad(samples, length=0):
    """Make a batch of sentences, of `length` or of the length of the longest; 0 is not a word."""
    sentences, labels = zip(*samples)
    # One 0 follows the longest, too: so padding never changes an output.
    length = 1 + max(length, *map(len, sentences))
    padded = [np.pad(words, (0, length - len(words))) for words in sentences]
    return np.stack(padded), np.stack(labels)


def by_length(lengths, batch_size):
    """Return an order, for `Loading`, in which the samples of a batch have similar lengths.

    Samples of the same length, and the batches, are shuffled, by the epoch alone.
    """

    def order(epoch):
        random = np.random.RandomState(epoch)
        samples = random.permutation(len(lengths))
        samples = samples[np.argsort(lengths[samples], kind="stable")]
        whole = len(samples) // batch_size * batch_size
        batches = random.permutation(samples[:whole].reshape(-1, batch_size))
        return np.append(batches, samples[whole:])

    return order


class Classifier(nn.Layer):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, 16, padding_idx=0, sparse=True)
        self.pairs, self.out = nn.Conv1D(16, 32, 2, bias_attr=False), nn.Linear(32, 2)

    def forward(self, words):
        pairs = nn.functional.relu(self.pairs(self.words(words).transpose([0, 2, 1])))
        return self.out(pairs.max(axis=2))


def optimizer(parameters):
    return paddle.optimizer.Adam(0.005, parameters=parameters, lazy_mode=True)


if __name__ == "__main__":
    output = sys.argv[1] if len(sys.argv) > 1 else "work/output/text"
    train, valid = Reviews(4000, 0, MOST_WORDS), Reviews(500, 1, MOST_WORDS)
    lengths = np.array([len(train[index][0]) for index in range(len(train))])
    order = by_length(lengths, BATCH)
    task = {"loss": nn.CrossEntropyLoss(), "metrics": {"acc": paddle.metric.Accuracy()}}
    run = {"epochs": 4, "batch_size": BATCH, "saving": Saving(every_steps=50), "output": output}
    loading = Loading(order=order, collate_fn=pad)
    result = fit(Classifier, train, valid, **task, optimizer=optimizer, loading=loading, **run)
    print(f"chance 0.500, net {result.metrics['valid/acc']:.3f}")
