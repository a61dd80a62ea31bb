"""The tutorial's recipe in PyTorch eager with images in memory: a command to compare with."""

import argparse

import numpy as np
import torch
from torch.nn import functional as F

from benchmarks.rivals import CORES, torch_net
from paddle_mnist.mnist.images import open_data


def tensors(source: str, mode: str) -> tuple[torch.Tensor, torch.Tensor]:
    split = open_data(source)[mode]
    images, labels = split.pixels(slice(None)), np.asarray(split.labels, np.int64)
    return torch.from_numpy(images[:, None]), torch.from_numpy(labels)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data")
    parser.add_argument("--seed", type=int)
    args = parser.parse_args()
    torch.set_num_threads(CORES)
    torch.manual_seed(args.seed)
    images, labels = tensors(args.data, "train")
    model = torch_net()
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for _ in range(5):
        for chosen in torch.randperm(len(images)).split(100):
            optimizer.zero_grad()
            F.cross_entropy(model(images[chosen]), labels[chosen]).backward()
            optimizer.step()
    images, labels = tensors(args.data, "eval")
    with torch.no_grad():
        num_correct = sum(
            int((model(images[part]).argmax(1) == labels[part]).sum())
            for part in torch.arange(len(images)).split(500)
        )
    print(f"eval accuracy {num_correct / len(images):.4f}")


if __name__ == "__main__":
    main()
