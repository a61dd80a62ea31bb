"""The READMEs keep their word: the commands run, and the figures are those of the pages."""

import itertools
import os
import re
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
GET_STARTED = ROOT / "docs/en/get-started.md"


def first_commands(page):
    """Return what a page's reader types once the package is installed, and the dashboard's line."""
    lines = "".join(blocks(page, "sh")).splitlines()
    served = [line for line in lines if line.startswith("paddle-mnist dashboard")]
    typed = [line for line in lines if line not in served and not line.startswith(("pip", "make"))]
    return "\n".join(typed), served


def typed_into_bash(folder, commands, **options):
    """Start bash as a user does, with the programs of this environment."""
    path = f"{os.path.dirname(sys.executable)}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "MPLBACKEND": "Agg", "PYTHONFAULTHANDLER": "1"}
    words, pipe = ["bash", "-c", commands], subprocess.PIPE
    return subprocess.Popen(words, cwd=folder, env=env, text=True, stdout=pipe, **options)


def test_get_started_has_the_commands_of_the_readme():
    first, other = (
        sorted(line.partition(" #")[0].rstrip() for line in first_commands(page)[0].splitlines())
        for page in (README, GET_STARTED)
    )
    assert first == other


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_first_commands_keep_what_they_promise(tmp_path):
    """In an empty folder, without MNIST: `kill -9` ends a training that costs no bit."""
    typed, served = first_commands(README)
    typed = typed.replace("paddle-mnist train\n", "", 1)  # test_install runs this one
    log = typed_into_bash(tmp_path, typed).communicate()[0]
    lines = log.splitlines()
    assert "exit code 137" in lines and "the same bits" in lines, log
    (resumed_at,) = map(int, re.findall(r"resuming after step (\d+)", log))
    assert 190 <= resumed_at < 1140
    losses = re.findall(r" step 200/1140 lr \S+ (loss \S+ acc \S+)", log)
    assert len(losses) == (3 if resumed_at == 190 else 2) and len(set(losses)) == 1
    killed, unbroken = (tmp_path / run / "mnist.pdparams" for run in ("killed", "unbroken"))
    assert killed.read_bytes() == unbroken.read_bytes()
    (reading,) = (line for line in lines if line.endswith("example.jpg"))
    assert reading.split()[0] == "7"
    for command in served:
        free_port = f"exec {command.partition('#')[0]} --port 0"
        server = typed_into_bash(tmp_path, free_port, start_new_session=True)
        try:
            assert any(line.startswith("dashboard: http") for line in server.stdout)
            server.send_signal(signal.SIGINT)
            server.communicate(timeout=60)
        finally:
            server.send_signal(signal.SIGABRT)  # has one that hangs say where, by faulthandler
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
    rehearsal, *log, _, weights, dashboard, last = printed.splitlines()
    assert rehearsal.startswith("rehearsing a resume") and all(
        line.startswith("epoch ") for line in log
    )
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
    pages = (README, GET_STARTED)
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
        assert int(count) == page.count('.py "test_')


def test_both_set_up_commands_are_on_the_first_screen():
    for readme in (README, README.with_suffix(".zh-CN.md")):
        first = readme.read_text().splitlines()[:24]
        assert [line.split("#")[0].strip() for line in first if line.startswith("make ")] == [
            "make train",
            "make test",
        ]
