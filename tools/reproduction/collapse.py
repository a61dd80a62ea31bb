"""Weights drawn from U(-1, 1), as in the tutorial's part three: the net dies at once."""

import dataclasses
import itertools

from reproduction.initialization import net_of

STEPS = 20


def measured(data: str, seed: int) -> dict:
    """The losses of the first steps, and the findings of a watch that looks at each."""
    import paddle
    from paddle import nn

    from paddle_mnist import BatchLoader, MnistDataset, watch
    from paddle_mnist.data.loader import epoch_batches

    model = net_of(nn.initializer.Uniform(), seed)
    optimizer = paddle.optimizer.Momentum(0.01, parameters=model.parameters())
    loader = BatchLoader(MnistDataset("train", data), 32, shuffle=False)
    losses = []
    with watch(model, on_finding=lambda finding: None) as seen:
        for images, labels in itertools.islice(epoch_batches(loader, 0), STEPS):
            loss = nn.functional.cross_entropy(model(images), labels)
            losses.append(loss.item())
            loss.backward()
            optimizer.step()
            optimizer.clear_grad()
    findings = [dataclasses.asdict(finding) for finding in seen.findings]
    return {"seed": seed, "losses": losses, "findings": findings}


def table(report: dict) -> str:
    rows = ["| step | where | what the watch says |", "|---|---|---|"]
    rows += [f"| {f['step']} | {f['place']} | {f['message']} |" for f in report["findings"]]
    first, last = report["losses"][0], report["losses"][-1]
    return "\n".join(
        [
            *rows,
            "",
            f"The loss of step 1 is {first:.1f}, of step {len(report['losses'])} {last:.2f}.",
        ]
    )
