"""The READMEs keep their word: the commands run, and the figures are those of the pages."""

import os
import re
import subprocess
import sys
import time

import pytest
from benchmarks.headlines import RATIOS
from conftest import ROOT
from pages import blocks

README = ROOT / "README.md"
READMES = (README, README.with_suffix(".zh-CN.md"))
RUN = "work/output/my_net"  # of its example


def first_commands():
    """Return what a reader types once the package is installed, without the dashboard."""
    lines = "".join(blocks(README, "sh")).splitlines()
    others = ("paddle-mnist dashboard", "make", "source")
    return [line for line in lines if not line.startswith(others)]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_first_commands_keep_what_they_promise(tmp_path):
    """`kill -9` in an empty folder, without MNIST, costs no bit."""
    lines = first_commands()
    typed = [line for line in lines if line.split("#")[0].strip() != "paddle-mnist train"]
    assert len(typed) < len(lines)  # test_install runs this one
    path = f"{os.path.dirname(sys.executable)}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "MPLBACKEND": "Agg"}
    command = ["bash", "-c", "\n".join(typed)]
    log = subprocess.run(command, cwd=tmp_path, env=env, stdout=subprocess.PIPE, text=True).stdout
    lines = log.splitlines()
    assert "exit code 137" in lines and lines.count("the same bits") == 2, log  # once by `prove`
    (resumed_at,) = map(int, re.findall(r"resuming after step (\d+)", log))
    assert 190 <= resumed_at < 1140
    losses = re.findall(r" step 200/1140 lr \S+ (loss \S+ acc \S+)", log)
    assert len(losses) == (3 if resumed_at == 190 else 2) and len(set(losses)) == 1
    killed, unbroken = (tmp_path / run / "mnist.pdparams" for run in ("killed", "unbroken"))
    assert killed.read_bytes() == unbroken.read_bytes()
    (reading,) = (line for line in lines if line.endswith("example.jpg"))
    assert reading.split()[0] == "7"


@pytest.mark.slow
def test_example_is_silent_and_resumes_to_the_same_bits(tmp_path):
    """Run it as its reader does, in a process with a home of its own."""
    ours = ("PYTHONWARNINGS", "MPLBACKEND", "PADDLE_MNIST_CACHE")
    env = {name: value for name, value in os.environ.items() if name not in ours}
    env["HOME"] = str(tmp_path)

    def start(folder):
        folder.mkdir(exist_ok=True)
        example = blocks(README, "python")[0].replace("epochs=300", "epochs=5")  # not ten seconds
        (folder / "example.py").write_text(example)
        command, pipe = [sys.executable, "example.py"], subprocess.PIPE
        return subprocess.Popen(command, cwd=folder, env=env, text=True, stdout=pipe, stderr=pipe)

    def finish(folder):
        process = start(folder)
        printed, errors = process.communicate()
        assert (process.returncode, errors) == (0, "")  # nothing that the page has to explain
        return printed.splitlines(), (folder / RUN / "model.pdparams").read_bytes()

    (rehearsal, *log, _, weights, dashboard, last), unbroken = finish(tmp_path / "unbroken")
    assert rehearsal.startswith("rehearsing a resume")
    assert all(line.startswith("epoch ") for line in log)
    assert weights.startswith("weights: ") and dashboard.startswith("dashboard: ")
    assert float(last.split()[0]) > 0.85 and last.endswith(f" {RUN}/model.pdparams")
    for attempt in range(100):  # until it has not ended before it is killed
        folder = tmp_path / f"killed{attempt}"
        process = start(folder)
        first_epoch = folder / RUN / "checkpoints/model_epoch0.json"
        while not first_epoch.exists() and process.poll() is None:
            time.sleep(0.002)
        process.kill()
        process.communicate()
        if not (folder / RUN / "result.json").exists():
            break
    printed, weights = finish(folder)
    assert "resuming after step" in "".join(printed)
    assert printed[-1] == last and weights == unbroken


def test_readmes_quote_the_same_figures_and_begin_with_the_set_up():
    texts = [readme.read_text() for readme in READMES]
    quotes = [re.findall(r"<!-- benchmark ([\w-]+) -->(.*?)<!-- end -->", text) for text in texts]
    assert dict(quotes[0]) == dict(quotes[1])
    assert dict(quotes[0]).keys() == {*RATIOS, "accuracy-fast"}
    for text in texts:
        first_screen = "\n".join(text.splitlines()[:24])
        assert re.findall("^make [a-z]+", first_screen, re.M) == ["make train", "make test"]
