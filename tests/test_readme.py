"""The READMEs keep their word: the commands run, and the figures are those of the pages."""

import itertools
import os
import re
import shlex
import signal
import subprocess
import sys
import time

import pytest
from benchmarks.headlines import HEADLINES, headlines
from conftest import ROOT
from log_lines import LINE
from markdown_tables import marked_tables
from pages import blocks

README = ROOT / "README.md"
RUN = "work/output/my_net"  # of its example
MINUTE = next(block for block in blocks(README, "sh") if "infer" in block)


@pytest.fixture(scope="module")
def shell(tmp_path_factory):
    """Runs a line as a user does, with the programs of this environment, in an empty folder."""
    folder = tmp_path_factory.mktemp("minute")
    (folder / "tests").symlink_to(ROOT / "tests")
    scripts = os.path.dirname(sys.executable)
    env = {**os.environ, "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}", "MPLBACKEND": "Agg"}

    def start(words, **options):
        pipe = subprocess.PIPE
        return subprocess.Popen(words, cwd=folder, env=env, text=True, stdout=pipe, **options)

    start.folder = folder
    return start


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_sixty_seconds_keep_what_they_promise(shell):
    """Also without MNIST. The killed training ends with the bits of one that is not killed."""
    infer, killed, resumed, dashboard = (
        shlex.split(line, comments=True) for line in MINUTE.splitlines()
    )
    read = shell(infer)
    assert "tests/pictures/7-07.jpg" in read.communicate()[0] and read.returncode == 0
    assert killed[:3] == ["timeout", "-s", "KILL"] and killed[4:] == resumed
    first = shell(killed)
    first.communicate()
    assert first.returncode in (137, -signal.SIGKILL, 0)  # 0: the machine was faster
    second = shell(resumed)
    log = second.communicate()[0]
    assert second.returncode == 0 and "eval accuracy" in log
    unbroken = shell([*resumed, "--output", "unbroken"])
    unbroken.communicate()
    weights = [shell.folder / run / "mnist.pdparams" for run in ("work/output/digits", "unbroken")]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    server = shell([*dashboard, "--port", "0"], start_new_session=True)
    try:
        assert any(line.startswith("dashboard: http") for line in server.stdout)
        server.send_signal(signal.SIGINT)
        server.communicate(timeout=60)
    finally:
        server.kill()
        server.communicate()


def start_example(folder, home):
    """Start the README's example as its reader does, in a process with a home of its own."""
    folder.mkdir(exist_ok=True)
    (folder / "example.py").write_text(blocks(README, "python")[0])
    ours = ("PYTHONWARNINGS", "MPLBACKEND", "PADDLE_MNIST_CACHE")
    env = {name: value for name, value in os.environ.items() if name not in ours}
    command, pipe = [sys.executable, "example.py"], subprocess.PIPE
    env["HOME"] = str(home)
    return subprocess.Popen(command, cwd=folder, env=env, text=True, stdout=pipe, stderr=pipe)


def finish_example(folder, home):
    """Run it to its end; return what it prints, and the trained weights."""
    process = start_example(folder, home)
    printed, errors = process.communicate()
    assert process.returncode == 0, errors
    assert errors == ""  # nothing that the page would have to explain
    return printed, (folder / RUN / "model.pdparams").read_bytes()


@pytest.mark.slow
def test_example_is_silent_and_ends_with_the_same_bits_after_a_kill(tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    printed, unbroken = finish_example(tmp_path / "unbroken", home)
    *log, _, weights, dashboard, last = printed.splitlines()
    assert all(line.startswith("epoch ") for line in log)
    assert weights.startswith("weights: ") and dashboard.startswith("dashboard: ")
    assert float(last.split()[0]) > 0.85 and last.endswith(f" {RUN}/model.pdparams")
    for attempt in itertools.count():  # until it has not ended before it is killed
        folder = tmp_path / f"killed{attempt}"
        process = start_example(folder, home)
        first_epoch = folder / RUN / "checkpoints/model_epoch0.json"
        while not first_epoch.exists() and process.poll() is None:
            time.sleep(0.002)
        process.kill()
        process.communicate()
        if not (folder / RUN / "result.json").exists():
            break
    resumed, weights = finish_example(folder, home)
    assert "resuming after step" in resumed
    assert resumed.splitlines()[-1] == last and weights == unbroken


def test_log_excerpt_has_the_form_of_the_log():
    """`tools/benchmark.py log` writes it; the same on each page."""
    pages = (README, ROOT / "docs/en/get-started.md")
    excerpt, other = (marked_tables(page.read_text())["benchmark log"] for page in pages)
    assert excerpt == other
    evaluated = re.compile(r"epoch \d+/\d+ step \d+/\d+ valid loss \d+\.\d{4} acc \d\.\d{4}")
    forms = [
        "```text",
        "data: digits, from scikit-learn's digits",
        LINE,
        evaluated,
        r"\.\.\.",
        evaluated,
        r"eval accuracy \d\.\d{4}, loss \d\.\d{4} \(.*\); trained 15 epochs in \d+\.\d s",
        "weights: work/output/digits/mnist.pdparams",
        "dashboard: paddle-mnist dashboard work/output/digits",
        "```",
    ]
    lines = excerpt.splitlines()
    assert len(lines) == len(forms) and all(map(re.match, forms, lines))


def test_figures_are_those_of_the_page_on_speed():
    """`tools/benchmark.py` writes both."""
    tables = marked_tables((ROOT / "docs/en/speed.md").read_text())
    figures = {}
    for source in {source for source, *_ in HEADLINES.values()}:
        figures.update(headlines(source, tables[f"benchmark {source}"]))
    for readme in (README, README.with_suffix(".zh-CN.md")):
        quoted = dict(
            re.findall(r"<!-- benchmark ([\w-]+) -->(.*?)<!-- end -->", readme.read_text())
        )
        assert quoted == figures


def test_faults_are_as_many_as_the_page_lists():
    page = (ROOT / "docs/en/resume.md").read_text()
    for readme in (README, README.with_suffix(".zh-CN.md")):
        (count,) = re.findall(r"\[(\d+) [^\]]*\]\(docs/\w+/resume.md#what", readme.read_text())
        assert int(count) == page.count(".py::test_")


def test_both_set_up_commands_are_on_the_first_screen():
    for readme in (README, README.with_suffix(".zh-CN.md")):
        first = readme.read_text().splitlines()[:24]
        assert [line.split("#")[0].strip() for line in first if line.startswith("make ")] == [
            "make train",
            "make test",
        ]
