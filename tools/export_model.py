#!/usr/bin/env python
"""Export a trained model for inference: pixels in, chosen outputs out, nothing else needed.

The exported model is run on 100 images at once; its outputs must be the net's.
"""

import os
import sys
from pathlib import Path

from paddle_mnist.cli import Parser, run_command
from paddle_mnist.device import require_paddle
from paddle_mnist.errors import ConfigError


def main(argv) -> None:
    parser = Parser(prog="tools/export_model.py", description=__doc__)
    parser.add_argument(
        *("--checkpoint", "-k"),
        default="pretrained",
        metavar="PATH",
        help="pretrained, latest, best, a checkpoint of a run, or a bare .pdparams [pretrained]",
    )
    parser.add_argument("--run", help="run directory of latest and best [work/output/default]")
    parser.add_argument(
        "--output", default="work/output/exported", metavar="FOLDER", help="[work/output/exported]"
    )
    parser.add_argument(
        "--outputs", default="logits,probabilities", help="what it gives [logits,probabilities]"
    )
    parser.add_argument("--format", choices=("paddle", "onnx"), default="paddle", help="[paddle]")
    parser.add_argument(
        "--legacy", action="store_true", help="write .pdmodel, which Paddle 2 can read, too"
    )
    parser.add_argument("--list", action="store_true", help="only list the net's variables")
    args = parser.parse_args(argv)
    if args.legacy and args.format == "onnx":
        raise ConfigError("--legacy is a form of Paddle's own; expected it without --format onnx")
    if args.legacy:
        os.environ["FLAGS_enable_pir_api"] = "0"  # noqa: SIM112  Paddle reads it when imported
    os.environ.setdefault("GLOG_minloglevel", "2")  # Paddle warns when it exports its softmax
    require_paddle()
    from paddle_mnist import MNIST
    from paddle_mnist.checkpoint.contents import load_weights
    from paddle_mnist.export import export_model, variables
    from paddle_mnist.rundir import find_weights

    model = MNIST()
    if args.list:
        for kind, there in variables(model).items():
            print(f"{kind}:")
            print("\n".join(f"  {name:14} {shape}" for name, shape in there))
        return
    name, weights, manifest, _ = find_weights(args.checkpoint, args.run)
    load_weights(model, weights, name)
    outputs = [name for name in args.outputs.split(",") if name]
    about = {"weights": Path(name).name, "data_hash": manifest.get("data_hash")}
    told = export_model(model, Path(args.output), outputs, args.format, about)
    for file in (*told["files"], "about.json"):
        path = Path(args.output, file)
        print(f"{path}  {path.stat().st_size:,} bytes")
    print(f"outputs {', '.join(told['outputs'])}: at most {told['difference']:.2g} from the net's")


if __name__ == "__main__":
    run_command(main, log_to=sys.stderr)
