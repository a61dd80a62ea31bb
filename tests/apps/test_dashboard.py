"""VisualDL's dashboard of real runs, in a real browser."""

import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from conftest import ROOT
from fit_rows import Points, train
from visualdl import LogReader

from paddle_mnist.apps.dashboard import log_folders
from paddle_mnist.metrics.visualdl import ABOUT

SMALL = ["--recipe", "default", "--epochs", "2", "--batch_size", "32", "--log_every", "5"]
SMALL += ["--watch", "5", "--visualdl", "all"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory, tool_in, tiny):
    """A folder with two runs in it, `one` and `two`, which are alike."""
    folder = tmp_path_factory.mktemp("runs")
    tool_in(folder)("train", *SMALL, "--data", tiny, "--output", "work/output/one")
    shutil.copytree(folder / "work/output/one", folder / "work/output/two")
    return folder


@pytest.fixture(scope="module")
def runs_of_fit(tmp_path_factory):
    """A folder with a run of `fit`, which evaluates two splits of its own names."""
    folder = tmp_path_factory.mktemp("fit")
    splits = {"near": Points(), "far": Points(12)}
    pages = ("scalars", "histograms", "text", "hparams", "figures")
    options = {"visualdl": pages, "watch": 1000, "figures": True}
    train("EMA", folder / "work/output/own", valid=splits, **options)
    return folder


@contextmanager
def served(folder, *arguments):
    """The dashboard's process and address, as a user starts it behind a proxy."""
    log = (folder / "dashboard.log").open("w")
    process = subprocess.Popen(
        [
            sys.executable,
            ROOT / "tools/dashboard.py",
            "--port",
            "0",
            "--language",
            "en",
            *arguments,
        ],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=log,  # VisualDL writes many lines; a pipe that nobody reads would stop it
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1", "all_proxy": "socks5://127.0.0.1:9"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        lines = []
        for line in process.stdout:
            lines.append(line)
            if match := re.match(r"dashboard: (http://\S+:\d+)/\S+/scalar", line):
                yield process, match[1], lines
                break
        else:
            pytest.fail(f"no address: {lines} {(folder / 'dashboard.log').read_text()}")
    finally:
        process.kill()
        process.communicate()
        log.close()


def tags(address, **headers):
    """The status and the names of the runs and of what they hold, as the pages ask for them."""
    connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=30)
    with closing(connection):
        connection.request("GET", "/app/api/scalar/tags", headers=headers)
        response = connection.getresponse()
        return response.status, response.read().decode()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_serves_every_run_and_stops_cleanly(runs, number):
    with served(runs) as (process, address, lines):
        assert lines[:2] == ["showing one/vdl\n", "showing two/vdl\n"]
        _, answer = tags(address)
        for run in ("one", "two"):
            assert f"{run}/vdl/001/train" in answer and f"{run}/vdl/001/valid" in answer
        process.send_signal(number)
        assert process.wait(20) == 0
        assert "Traceback" not in (runs / "dashboard.log").read_text()


def test_serves_runs_of_fit(runs_of_fit):
    """Its page, and the metrics of every split."""
    with served(runs_of_fit) as (_, address, lines):
        assert lines[0] == "showing own/vdl\n"
        status, answer = tags(address)
        shown = json.loads(answer)["data"]
        metrics = {run: set(names) for run, names in zip(shown["runs"], shown["tags"])}
        for split in ("near", "far"):
            assert metrics[f"own/vdl/001/{split}"] == {"loss", "acc"}
        assert {"loss", "acc", "lr"} <= metrics["own/vdl/001/train"]
        with urllib.request.urlopen(f"{address}/app/scalar", timeout=30) as page:
            assert status == page.status == 200 and b"<html" in page.read().lower()


def test_dashboard_with_a_public_path_serves_all_below_it(runs_of_fit):
    """Pages, what they load, and the data; a proxy passes nothing else on."""
    path = "/team/user@mnist/proxy"
    with served(runs_of_fit, "--public_path", path) as (_, address, lines):
        assert lines[-1].startswith(f"dashboard: {address}{path}/scalar ")

        def get(below):
            with urllib.request.urlopen(f"{address}{path}{below}", timeout=30) as answer:
                assert answer.status == 200
                return answer.read().decode()

        page = get("/scalar")
        loaded = re.findall(r"(?:href|src)=[\"']?([^\"' >]+)", page)
        assert len(loaded) > 10 and all(one.startswith(f"{path}/") for one in loaded), loaded
        assert "/app/" not in page
        scripts = [one for one in loaded if one.endswith(".js")]
        for one in (scripts[0], scripts[-1]):
            assert "/app/" not in get(one.removeprefix(path))
        assert "own/vdl/001/train" in get("/api/scalar/tags")


def test_short_run_has_histograms_and_says_what_it_is(runs_of_fit):
    """By the files, which plain `visualdl` reads too."""
    (file,) = runs_of_fit.glob("work/output/own/vdl/001/train/vdlrecords*")
    reader = LogReader(file_path=str(file))
    tags = reader.get_tags()
    steps = [[r.id for r in reader.get_data("histogram", tag)] for tag in tags["histogram"]]
    assert all(len(each) >= 10 and each[0] == 1 for each in steps)  # it watches every 1000th
    assert min(tags["text"]) == ABOUT  # the page sorts them, and opens the first
    introduction, result = reader.get_data("text", ABOUT)
    assert "parameters; " in introduction.text.encoded_text_string and introduction.id == 0
    assert "; trained " in result.text.encoded_text_string and result.id == steps[0][-1]


def test_says_where_the_graph_is_if_there_is_one(runs, runs_of_fit):
    with served(runs) as (_, address, lines):
        assert f"the net's graph: {address}/app/graph/dynamic_graph\n" in lines
    with served(runs_of_fit) as (_, _, lines):
        assert "graph" not in "".join(lines)


def test_listens_on_loopback_alone_unless_asked(runs):
    with served(runs, "work/output/one") as (process, address, _):
        port = f":{int(address.rpartition(':')[2]):04X}"
        table = Path(f"/proc/{process.pid}/net/tcp").read_text().splitlines()[1:]
        rows = [row.split() for row in table]
        addresses = [row[1] for row in rows if row[1].endswith(port) and row[3] == "0A"]
        assert addresses == [f"0100007F{port}"]  # 127.0.0.1, as the kernel writes it
        assert tags(address, Host="site.example")[0] == 403  # its name now stands for 127.0.0.1
        assert tags(address, Origin="https://site.example")[0] == 403
        assert tags(address, Origin=address)[0] == 200


def test_host_opens_it_to_all_and_says_so(runs):
    with served(runs, "work/output/one", "-t", "0.0.0.0") as (process, address, _):
        assert process.stdout.readline().startswith("0.0.0.0 is not loopback: whoever reaches")
        assert tags(address, Host="site.example")[0] == 200


def test_connection_that_asks_nothing_holds_up_nobody(runs):
    """As browsers open them beforehand: the pages stood still until they gave that up."""
    with served(runs, "work/output/one") as (_, address, _):
        host, _, port = address.removeprefix("http://").rpartition(":")
        with socket.create_connection((host, int(port))):
            assert tags(address)[0] == 200


def test_logdir_is_taken_as_visualdl_takes_it(runs):
    with served(runs, "--logdir", "work/output") as (_, address, lines):
        assert lines[0] == "showing output\n"
        status, shown = tags(address)
        assert status == 200
        assert "output/one/vdl/001/train" in shown and "output/two/vdl/001/valid" in shown


@pytest.mark.parametrize(
    ("named", "common", "shown"),
    [
        ([], "work/output", ["one/vdl", "two/vdl"]),
        (["work/output/one"], "work/output", ["one/vdl"]),
        (["work/output/one/vdl"], "work/output", ["one/vdl"]),
        (["work/output"], "work", ["output"]),
        (["work/output/one", "work/output/two"], "work/output", ["one/vdl", "two/vdl"]),
        (["plain"], ".", ["plain"]),
        (["nested"], ".", ["nested"]),
        (["nested/a", "work/output/one"], ".", ["nested/a", "work/output/one/vdl"]),
    ],
)
def test_runs_their_folders_and_plain_logs_are_found(tmp_path, monkeypatch, named, common, shown):
    monkeypatch.chdir(tmp_path)
    logs = ["work/output/one/vdl/001/train", "work/output/two/vdl/001/train", "plain", "nested/a"]
    for folder in map(Path, logs):
        folder.mkdir(parents=True)
        (folder / "vdlrecords.1.log").touch()
    assert log_folders(named) == ((tmp_path / common).resolve(), shown)


def test_port_that_is_taken_is_said(runs, tool):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = tool("dashboard", "--port", port, cwd=runs, expect=2, timeout=120)
    assert done.stderr.count("\n") == 1
    assert f"127.0.0.1:{port}: cannot listen there (Address already in use" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([], 3, "work/output: no run with VisualDL's files there; train first"),
        (["nowhere"], 3, "nowhere: nothing of VisualDL there; expected a run that was"),
        (["--port", "http"], 2, "invalid int value: 'http'"),
        (["--port", "70000"], 2, "127.0.0.1:70000: cannot listen there"),
        (["--host", "nowhere.invalid"], 2, "nowhere.invalid:8080: cannot listen there"),
        (["--public_path", "app"], 2, "public_path is 'app'; expected a path, such as /app"),
        (["--public-path", "/"], 2, "public_path is '/'; expected a path, such as /app"),
    ],
)
def test_nothing_to_show_is_an_error(runs, tool, tmp_path, arguments, code, message):
    cwd = runs if code == 2 else tmp_path
    done = tool("dashboard", *arguments, cwd=cwd, expect=code, timeout=120)
    assert message in done.stderr and "Traceback" not in done.stderr


# ------------------------------------------------------------------ in a browser

# What must be on a page, as text, and what its charts are drawn with.
PAGES = {
    "scalar": (["acc", "loss", "lr", "watch", "one/vdl/001/train", "two/vdl/001/valid"], "canvas"),
    "sample/image": (["inputs", "figures/confusion_matrix", "figures/kernels", "mistakes"], "img"),
    "sample/text": (["about this run", "20,350 parameters", "configuration", "environment"], None),
    "histogram": (["gradients", "weights", "one/vdl/001/train"], "canvas"),
    "graph/dynamic_graph": (["Model Properties"], "iframe"),
    "pr-curve": (["precision and recall", "two/vdl/001/train"], "canvas"),
    "roc-curve": (["roc", "two/vdl/001/train"], "canvas"),
    "hyper-parameter": (["Trial ID", "learning_rate", "one/vdl/001/train"], None),
    "high-dimensional": (["Points: 70", "Component #1"], "canvas"),
}


@pytest.fixture(scope="module")
def context(browser):
    """Of all pages, so that VisualDL's scripts, which are large, are loaded once."""
    return browser.new_context(viewport={"width": 1400, "height": 1000})


@pytest.fixture(scope="module")
def shown(runs):
    with served(runs) as (_, address, _):
        yield address


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name == "scalar" else pytest.mark.release) for name in PAGES],
)
def test_page_shows_its_content_and_no_error(context, shown, screenshots, name):
    texts, drawn = PAGES[name]
    page = context.new_page()
    page.set_default_timeout(60_000)
    errors = []
    page.on("console", lambda log: errors.append(log.text) if log.type == "error" else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("response", lambda got: errors.append(got.url) if got.status >= 400 else None)
    page.goto(f"{shown}/app/{name}")
    for text in texts:
        page.get_by_text(text, exact=False).locator("visible=true").first.wait_for()
    if drawn:
        page.locator(drawn).first.wait_for()
    page.wait_for_timeout(3000)  # for what moves into its place
    page.screenshot(path=screenshots / f"{name.replace('/', '-')}.png")
    page.close()
    assert errors == []
