"""What other tests stand on: commands called in this process, and forked from one."""

import logging
import os
import random
import signal
import sys
import warnings

import forked
import in_process
import numpy as np
import paddle

LEAKS = """
import logging, os, random, signal, sys, warnings
import numpy as np, paddle

assert sys.argv == [__file__], sys.argv
assert os.environ["OF_THE_TEST"] == "set" and os.path.basename(os.getcwd()) == "inside"
log = logging.getLogger("paddle_mnist")
assert not log.handlers and log.propagate and not logging.getLogger().handlers
os.chdir("/")
os.environ["LEFT"] = "behind"
del os.environ["OF_THE_TEST"]
sys.path.append("left")
log.addHandler(logging.StreamHandler(sys.stdout))
log.propagate = False
signal.signal(signal.SIGTERM, signal.SIG_IGN)
random.seed(1), np.random.seed(1), paddle.seed(1)
warnings.simplefilter("error")
print([paddle.nn.Linear(1, 1).weight.name for _ in range(2)])
os.write(2, b"of C++\\n")
raise ValueError("mine")
"""


def state():
    log = logging.getLogger("paddle_mnist")
    return {
        "interpreter": (os.getcwd(), dict(os.environ), list(sys.path), sys.argv, sys.stdout),
        "log": (log.handlers[:], log.level, log.propagate, logging.getLogger().handlers[:]),
        "signals": [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)],
        "random": (random.getstate(), np.random.get_state()[1].tolist()),
        "warnings": warnings.filters[:],
    }


def test_called_command_leaves_nothing_behind(tmp_path):
    inside, script = tmp_path / "inside", tmp_path / "script.py"
    inside.mkdir()
    script.write_text(LEAKS)
    out, err = tmp_path / "out", tmp_path / "err"
    before = state()
    paddle.seed(5)
    expected = paddle.rand([3]).tolist()
    for _ in range(2):  # the second finds what the first did
        paddle.seed(5)
        assert in_process.call([str(script)], inside, {"OF_THE_TEST": "set"}, out, err) == 1
        assert state() == before and paddle.rand([3]).tolist() == expected
        assert out.read_text() == "['linear_0.w_0', 'linear_1.w_0']\n"
        text = err.read_text()
        assert text.startswith("of C++\n") and text.endswith("ValueError: mine\n")


PROGRAM = """
import os, signal, sys
assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
print(sys.argv[1:], os.path.basename(os.getcwd()), os.environ["OF_THE_TEST"], __name__, flush=True)
print(sys.stdin.readline(), file=sys.stderr)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_forked_process_is_as_a_started_one(tmp_path):
    env = {**os.environ, "OF_THE_TEST": "set"}
    done = forked.run([sys.executable, "-c", PROGRAM, "a"], cwd=tmp_path, env=env, input="told")
    assert done.stdout == f"['a'] {tmp_path.name} set __main__\n" and done.stderr == "told\n"
    assert done.returncode == -signal.SIGKILL
