"""Weights drawn from U(-1, 1), as in the tutorial's part three: the net dies at once."""

import argparse
import dataclasses

from markdown_tables import table

from paddle_mnist.mnist.images import Images
from reproduction.initialization import build_net, first_steps

STEPS = 20


def measure(data: Images, args: argparse.Namespace) -> dict:
    """Return the losses of the first steps, and the findings of a watch that looks at each."""
    from paddle import nn

    from paddle_mnist import MnistDataset, watch

    model = build_net(nn.initializer.Uniform(), args.seed)
    with watch(model, on_finding=lambda finding: None) as watched:
        train = MnistDataset("train", data.path)
        losses = [loss.item() for loss in first_steps(model, train, STEPS)]
    findings = [dataclasses.asdict(finding) for finding in watched.findings]
    return {"seed": args.seed, "losses": losses, "findings": findings}


def tabulate(report: dict) -> str:
    rows = ((f["step"], f["place"], f["message"]) for f in report["findings"])
    first, last = report["losses"][0], report["losses"][-1]
    note = f"The loss of step 1 is {first:.1f}, of step {len(report['losses'])} {last:.2f}."
    return table({"step": "d", "where": "", "what the watch says": ""}, rows, note)
