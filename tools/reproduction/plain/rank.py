"""Write the GPUs that the launcher gave to this process into a file named by its rank.

python -m paddle.distributed.launch rank.py FOLDER
"""

import os
import sys
from pathlib import Path

rank = os.environ["PADDLE_TRAINER_ID"]
gpus = os.environ.get("FLAGS_selected_gpus", "")  # noqa: SIM112, Paddle's name
Path(sys.argv[1], f"{rank}.txt").write_text(gpus)
