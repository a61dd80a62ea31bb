"""Train with parameter servers, on Paddle 2.6.2. Start it with Paddle's launch."""

from collections.abc import Sequence

from paddle_mnist.commands import Parser, command
from paddle_mnist.system.devices import require_paddle


@command()
def main(argv: Sequence[str]) -> None:
    """Serve parameters or train with them, as Paddle's launch asks for; return the exit code."""
    program = "paddle-mnist train-ps"
    launch = f"python -m paddle.distributed.launch --server_num 2 --trainer_num 2 {program}"
    parser = Parser(prog=program, description=f"{__doc__[:-1]}:\n\n{launch}")
    parser.add_argument("--data", default="auto", help="auto, digits, or a file or folder [auto]")
    parser.add_argument(
        "--sync",
        action="store_true",
        help="synchronous training: all trainers take part in each step [asynchronous]",
    )
    parser.add_argument("--epochs", type=int, default=1, help="passes over the training split [1]")
    parser.add_argument(
        "--batch_size", type=int, default=64, help="samples per step, over all trainers [64]"
    )
    parser.add_argument(
        "--learning_rate", type=float, default=0.05, help="learning rate of SGD [0.05]"
    )
    parser.add_argument("--seed", type=int, default=1, help="[1]")
    parser.add_argument("--output", metavar="FOLDER", default="work/output/servers")
    parser.add_argument(
        "--start_from", metavar="FOLDER", help="persistables/ folder of an earlier run"
    )
    args = vars(parser.parse_args(argv))
    require_paddle()
    from paddle_mnist.legacy.parameter_server import serve_or_train
    from paddle_mnist.legacy.server_trainer import ServedTraining

    data = args.pop("data")
    serve_or_train(ServedTraining(**args), data)
