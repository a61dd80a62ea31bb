"""Evaluate weights: exact loss and accuracy, scores per class, the confusion matrix."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from paddle_mnist.commands import Parser, command
from paddle_mnist.commands._train_options import add_device_option
from paddle_mnist.commands._weights import add_weights_arguments, named_weights
from paddle_mnist.mnist.splits import SPLIT_NAMES, noun_of
from paddle_mnist.system.devices import require_paddle


@command(prints_data=True)
def main(argv: Sequence[str]) -> None:
    """Evaluate weights and print the report; return the exit code."""
    parser = Parser("paddle-mnist eval", __doc__, "work/output/default")
    add_weights_arguments(parser, "newest run in work/output", run_options=("--run", "--output"))
    parser.add_argument("--data", help="auto, digits, or a file or folder [the data of the run]")
    parser.add_argument(
        "--split", default="eval", choices=SPLIT_NAMES, help="split to evaluate on [eval]"
    )
    add_device_option(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args(argv)
    weights = named_weights(args)
    require_paddle()
    from paddle_mnist.mnist.evaluation import load_and_evaluate

    evaluated = load_and_evaluate(*weights, args.data, args.split, args.device, net=args.net)
    report = evaluated.report()
    print(json.dumps(report) if args.json else _as_text(report))


def _as_text(report: Mapping[str, Any]) -> str:
    noun = noun_of(report["dataset"])
    others = [f", {name} {value:.4f}" for name, value in report["metrics"].items() if name != "acc"]
    lines = [
        f"{report['checkpoint']} on {report['dataset']}, {report['split']}: "
        f"accuracy {report['accuracy']:.4f}, loss {report['loss']:.4f}{''.join(others)}, "
        f"{report['count']} images",
        "",
        f"{noun}  precision  recall  F1      images",
    ]
    for label, row in report["per_class"].items():
        lines.append(
            f"{label:{len(noun)}}  {row['precision']:9.4f}  {row['recall']:.4f}  "
            f"{row['f1-score']:.4f}  {row['support']:6.0f}"
        )
    lines += ["", f"confusion matrix (row: the {noun}, column: predicted)"]
    lines += [" ".join(f"{count:5}" for count in row) for row in report["confusion_matrix"]]
    return "\n".join(lines)
