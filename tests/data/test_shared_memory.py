"""Workers where shared memory is small, as the 64 MB that Docker gives a container are."""

import shutil
import subprocess
import sys

import pytest
from conftest import ROOT

# In a mount namespace of its own a process can have another /dev/shm, as in a container.
MOUNT = ["unshare", "--mount", "--map-root-user", "sh", "-c"]
SCRIPT = 'mount -t tmpfs -o "$0" tmpfs /dev/shm && exec "$@"'

PROGRAM = """
import numpy as np
import paddle
from paddle_mnist.data.external import open_loader

class Large(paddle.io.Dataset):
    def __len__(self):
        return 40
    def __getitem__(self, index):  # 3 MB
        return np.full([3, 512, 512], index, "float32"), np.array([index])

options = {"batch_size": 2, "num_workers": 2}
loader = paddle.io.DataLoader(Large(), **options)
persistent = paddle.io.DataLoader(Large(), **options, persistent_workers=True)
for data in (Large(), loader, persistent, Large()):
    kept = [*open_loader(data, batch_size=2, num_workers=2).epoch(0)]  # together 120 MB
    for number, (images, labels) in enumerate(kept):
        assert labels.tolist() == [[2 * number], [2 * number + 1]]
        assert (images == labels.astype("float32").reshape([2, 1, 1, 1])).all()
    print(len(kept))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        ("size=64m", 0, "has no room for the batches of the workers: they are sent through pipes"),
        ("size=8k", 1, "the 2 workers that read the data cannot start ([Errno 28]"),
        ("ro", 1, "the 2 workers that read the data cannot start ([Errno 30]"),
    ],
)
def test_workers_with_little_shared_memory_log_or_raise_one_line(options, code, words):
    trial = [*MOUNT, SCRIPT, "size=1m", "true"]
    if not shutil.which("unshare") or subprocess.run(trial, capture_output=True).returncode:
        pytest.skip("needs mount namespaces: Linux, and leave to make them")
    command = [*MOUNT, SCRIPT, options, sys.executable, "-W", "ignore", "-c", PROGRAM]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == code, done.stderr[-2000:]
    assert done.stdout.split() == ["20"] * (0 if code else 4)
    lines = [line for line in done.stderr.splitlines() if "/dev/shm" in line]
    assert len(lines) == 1 and words in lines[0]
