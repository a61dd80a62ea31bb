"""VisualDL's dashboard of real runs, in a real browser."""

import http.client
import json
import os
import re
import shutil
import signal
import socket
import sys
import urllib.parse
import urllib.request
from contextlib import closing, contextmanager
from pathlib import Path

import forked
import pytest
from conftest import PATIENCE, ROOT


@pytest.fixture(scope="module")
def runs(tmp_path_factory, run_of_command):
    """A folder with two runs in it, `one` and `two`, which are alike."""
    folder = tmp_path_factory.mktemp("runs")
    for name in ("one", "two"):
        shutil.copytree(run_of_command, folder / "work/output" / name)
    return folder


@contextmanager
def served(folder, *arguments, program=("tools/dashboard.py",)):
    """The dashboard's process and address, as a user starts it behind a proxy."""
    script, *name = program
    command = [sys.executable, "-u", ROOT / script, *name, "--port", "0", "--language", "en"]
    with (folder / "dashboard.log").open("w") as log:
        process = forked.Popen(
            [*command, *arguments],
            cwd=folder,
            env={**os.environ, "all_proxy": "socks5://127.0.0.1:9"},
            stderr=log.fileno(),
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


def tags(address, **headers):
    """The status and the names of the runs and of what they hold, as the pages ask for them."""
    connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=30)
    with closing(connection):
        connection.request("GET", "/app/api/scalar/tags", headers=headers)
        response = connection.getresponse()
        return response.status, response.read().decode()


def test_dashboard_of_two_runs_serves_them_on_loopback_until_ctrl_c(runs):
    with served(runs) as (process, address, lines):
        assert lines[:2] == ["showing one/vdl\n", "showing two/vdl\n"]
        assert f"the net's graph: {address}/app/graph/dynamic_graph\n" in lines
        host, _, port = address.removeprefix("http://").rpartition(":")
        # A connection that asks nothing, as browsers open them beforehand, holds up nobody.
        with socket.create_connection((host, int(port))):
            _, answer = tags(address)
        for run in ("one", "two"):
            assert f"{run}/vdl/001/train" in answer and f"{run}/vdl/001/valid" in answer
        table = Path(f"/proc/{process.pid}/net/tcp").read_text().splitlines()[1:]
        rows = [row.split() for row in table]
        own = [row[1] for row in rows if row[1].endswith(f":{int(port):04X}") and row[3] == "0A"]
        assert own == [f"0100007F:{int(port):04X}"]  # 127.0.0.1, as the kernel writes it
        assert tags(address, Host="site.example")[0] == 403  # its name now stands for 127.0.0.1
        assert tags(address, Origin="https://site.example")[0] == 403
        assert tags(address, Origin=address)[0] == 200
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
    assert "Traceback" not in (runs / "dashboard.log").read_text()


def test_dashboard_with_a_public_path_serves_all_below_it(run_of_fit, tmp_path):
    """Pages, what they load, and the data of every split; a proxy passes nothing else on."""
    shutil.copytree(run_of_fit, tmp_path / "work/output/own")
    path = "/team/user@mnist/proxy"
    command = ("paddle_mnist/__main__.py", "dashboard")
    with served(tmp_path, "--public_path", path, program=command) as (process, address, lines):
        assert lines[0] == "showing own/vdl\n" and "graph" not in "".join(lines)
        assert lines[-1].startswith(f"dashboard: {address}{path}/scalar ")

        def get(below):
            with urllib.request.urlopen(f"{address}{path}{below}", timeout=30) as answer:
                return answer.read().decode()

        page = get("/scalar")
        loaded = re.findall(r"(?:href|src)=[\"']?([^\"' >]+)", page)
        assert len(loaded) > 10 and all(url.startswith(f"{path}/") for url in loaded), loaded
        scripts = [url for url in loaded if url.endswith(".js")]
        assert "/app/" not in page + get(scripts[-1].removeprefix(path))
        shown = json.loads(get("/api/scalar/tags"))["data"]
        metrics = {run: set(names) for run, names in zip(shown["runs"], shown["tags"])}
        assert metrics["own/vdl/001/near"] == metrics["own/vdl/001/far"] == {"loss", "acc"}
        process.terminate()
        assert process.wait(20) == 143


def test_dashboard_with_host_and_logdir_opens_it_to_all(runs):
    with served(runs, "-t", "0.0.0.0", "--logdir", "work/output") as (process, address, lines):
        assert lines[0] == "showing output\n"
        assert process.stdout.readline().startswith("0.0.0.0 is not loopback")
        status, shown = tags(address, Host="site.example")
        assert status == 200 and "output/one/vdl/001/train" in shown


def test_dashboard_wrong_options_exits_with_its_code(runs, tool):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for arguments, code, message in (
            (["nowhere"], 3, "nowhere: no VisualDL files there"),
            (["--port", "70000"], 2, "127.0.0.1:70000: cannot listen there"),
            (["--port", port], 2, f"127.0.0.1:{port}: cannot listen there (Address already in"),
            (["--host", "nowhere.invalid"], 2, "nowhere.invalid:8080: cannot listen there"),
            (["--public_path", "app"], 2, "public_path is 'app'"),
        ):
            done = tool("dashboard", *arguments, cwd=runs, expect=code)
            assert message in done.stderr and done.stderr.count("\n") == 1


KILLED = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
from fit_rows import StopsAt, train

def kill():
    os.kill(os.getpid(), signal.SIGKILL)

stops = [StopsAt(int(step), kill) for step in sys.argv[3:]]
pages = ("scalars", "histograms")
train("dropout", sys.argv[2], callbacks=stops, visualdl=pages, epochs=6, save_every_steps=4)
"""


def train_until(folder, *steps):
    """Train `work/output/own` of 30 steps, and kill it in one of them."""
    tests, run = ROOT / "tests", folder / "work/output/own"
    forked.run([sys.executable, "-c", KILLED, tests, run, *steps], cwd=folder)
    assert (run / "result.json").exists() == (not steps)


# ------------------------------------------------------------------ in a browser


@pytest.mark.slow
def test_run_killed_three_times_is_one_curve_on_an_open_dashboard(browser, tmp_path, screenshots):
    train_until(tmp_path, 7)
    page = browser.new_page(viewport={"width": 1400, "height": 1000})
    page.set_default_timeout(PATIENCE)
    both = {"own/vdl/001/train", "own/vdl/001/valid"}
    drawn = {}

    def keep(response):
        if "/api/scalar/list" in response.url:
            query = urllib.parse.parse_qs(urllib.parse.urlsplit(response.url).query)
            points = [step for _, step, _ in json.loads(response.text())["data"]]
            drawn[query["run"][0], query["tag"][0]] = points

    def last_steps():
        """Open the page, and return the last steps of the curves that it then draws."""
        drawn.clear()
        page.goto(f"{address}/app/scalar")
        page.get_by_text("own/vdl/001/valid").locator("visible=true").first.wait_for()
        while not all((run, "acc") in drawn for run in both):
            page.wait_for_timeout(50)
        return {drawn[run, "acc"][-1] for run in both}

    page.on("response", keep)
    with served(tmp_path) as (_, address, _):
        for steps in ((13,), (22,), ()):
            last_steps()
            train_until(tmp_path, *steps)
        while last_steps() != {30}:  # VisualDL repeats its answers for 20 seconds
            pass
        settled(page, screenshots / "killed-three-times.png")
    assert {run for run, _ in drawn} == both
    assert drawn["own/vdl/001/valid", "acc"] == [5, 10, 15, 20, 25, 30]
    steps = sorted({*range(3, 31, 3), *range(5, 31, 5)})
    assert drawn["own/vdl/001/train", "acc"] == steps


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


@pytest.mark.slow
@pytest.mark.parametrize(
    "names", [["scalar"], pytest.param([*PAGES][1:], marks=pytest.mark.release)], ids=len
)
def test_pages_show_their_content_and_no_error(browser, runs, screenshots, names):
    context = browser.new_context(viewport={"width": 1400, "height": 1000})
    with served(runs) as (_, address, _):
        for name in names:
            assert errors_of(context, address, name, screenshots) == [], name


def errors_of(context, address, name, screenshots):
    """Open a page, wait for what it must show, and return its errors."""
    texts, drawn = PAGES[name]
    page = context.new_page()
    page.set_default_timeout(PATIENCE)
    errors = []
    page.on("console", lambda log: errors.append(log.text) if log.type == "error" else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("response", lambda got: errors.append(got.url) if got.status >= 400 else None)
    page.goto(f"{address}/app/{name}")
    for text in texts:
        page.get_by_text(text, exact=False).locator("visible=true").first.wait_for()
    if drawn:
        page.locator(drawn).first.wait_for()
    screenshot = screenshots / f"{name.replace('/', '-')}.png"
    if name == "high-dimensional":  # its points never rest
        page.screenshot(path=screenshot)
    else:
        settled(page, screenshot)
    page.close()
    return errors


def settled(page, screenshot):
    """Take a screenshot of a page once nothing on it moves any more."""
    before = None
    while (shown := page.screenshot(path=screenshot)) != before:
        before = shown
