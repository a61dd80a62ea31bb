"""Check what a training run needs before it starts, on one screen.

Takes the options of train, and ends with the same error and exit code as train would. It writes a
test file to the output folder and, like every command, may cache the images.
"""

import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from paddle_mnist.checkpoint.run import DEFAULT_OUTPUT
from paddle_mnist.commands import Parser, command
from paddle_mnist.commands._train_options import add_train_options, train_config
from paddle_mnist.system.devices import require_paddle, select_device
from paddle_mnist.system.environment import usable_cpus, versions
from paddle_mnist.system.files import PendingFile
from paddle_mnist.system.regular_files import read_bytes

MEMORY = Path("/proc/meminfo")  # of Linux


@command(prints_data=True)
def main(argv: Sequence[str]) -> None:
    """Print one line each about the device, the data, the output and the memory."""
    parser = Parser("paddle-mnist check", __doc__, "--data work --output work/output/mine")
    add_train_options(parser)
    config = train_config(parser.parse_args(argv))
    require_paddle()
    from paddle_mnist.mnist.images import open_data

    device = select_device(config.device)
    print(f"device  {device}, Paddle {versions()['paddle']}, {usable_cpus()} CPUs")
    images = open_data(config.images.data)
    sizes = " / ".join(str(len(split)) for split in images.splits.values())
    print(f"data    {images.name}, from {images.source}: {sizes} images, readable")
    output = Path(config.output or DEFAULT_OUTPUT).expanduser()
    folder = next(path for path in (output, *output.absolute().parents) if path.exists())
    with PendingFile(folder / "check") as file:  # deletes the file at the end
        file.write(bytes(2**20))
        file.finish()
    print(f"output  {output}: writable, {shutil.disk_usage(folder).free / 2**30:.1f} GiB free")
    known = read_bytes(MEMORY, 2**20) if MEMORY.exists() else b""
    if found := re.search(rb"MemAvailable: +(\d+)", known):
        print(f"memory  {int(found[1]) / 2**20:.1f} GiB available")
