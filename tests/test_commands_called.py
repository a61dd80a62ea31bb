"""What other tests stand on: commands called in this process, and forked from one."""

import logging
import os
import random
import signal
import sys
import textwrap
import warnings

import forked
import in_process
import numpy as np
import paddle
import pytest

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
log.setLevel(logging.DEBUG)
log.propagate = False
signal.signal(signal.SIGTERM, signal.SIG_IGN)
random.seed(1), np.random.seed(1), paddle.seed(1)
random.random(), np.random.rand(), paddle.rand([1])
warnings.simplefilter("error")
names = [paddle.nn.Linear(1, 1).weight.name for _ in range(2)]
log.debug("%s", names)
os.write(2, b"of C++\\n")
print("last", file=sys.stderr)
END
"""


def state():
    log = logging.getLogger("paddle_mnist")
    return {
        "interpreter": (os.getcwd(), dict(os.environ), list(sys.path), sys.argv, sys.stdout),
        "log": (log.handlers[:], log.level, log.propagate, logging.getLogger().handlers[:]),
        "signals": [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)],
        "random": random.getstate(),
        "numpy": np.random.get_state()[1].tolist(),
        "warnings": warnings.filters[:],
    }


@pytest.mark.parametrize(
    ("end", "code", "said"),
    [("", 0, ""), ("sys.exit(7)", 7, ""), ("raise ValueError('mine')", 1, "ValueError: mine\n")],
)
def test_called_command_leaves_nothing_behind(tmp_path, end, code, said):
    inside = tmp_path / "inside"
    inside.mkdir()
    script = tmp_path / "script.py"
    script.write_text(LEAKS.replace("END", end))
    out, err = tmp_path / "out", tmp_path / "err"
    before = state()
    paddle.seed(5)
    expected = paddle.rand([3]).tolist()
    for _ in range(2):  # the second finds what the first did
        paddle.seed(5)
        ended = in_process.call([str(script)], inside, {"OF_THE_TEST": "set"}, out, err)
        assert ended == code, err.read_text()
        assert state() == before and paddle.rand([3]).tolist() == expected
        assert out.read_text() == "['linear_0.w_0', 'linear_1.w_0']\n"
        assert err.read_text().startswith("of C++\nlast\n") and err.read_text().endswith(said)


PROGRAM = """
import multiprocessing, os, signal, sys
assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
print(sys.argv[1:], os.path.basename(os.getcwd()), os.environ["OF_THE_TEST"], __name__)
print(multiprocessing.get_start_method(), sys.stdin.read(), file=sys.stderr)
sys.exit(3)
"""


def test_forked_process_is_as_a_started_one_and_can_be_killed(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    command = [sys.executable, "-c", textwrap.dedent(PROGRAM), "a", "b"]
    env = {**os.environ, "OF_THE_TEST": "set"}
    done = forked.run(command, cwd=folder, env=env, input="told")
    printed = "['a', 'b'] folder set __main__\n"
    assert (done.returncode, done.stdout, done.stderr) == (3, printed, "fork told\n")
    process = forked.Popen([sys.executable, "-u", "-c", "print('up')\nimport time; time.sleep(99)"])
    assert process.stdout.readline() == "up\n" and process.poll() is None
    process.kill()
    assert process.communicate(60) == ("", "")
    assert process.returncode == -signal.SIGKILL
