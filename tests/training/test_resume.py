"""Stopped at any step and gone on with in a new process, a training ends with the same bits."""

import itertools
import json
import sys
from pathlib import Path

import forked
import pytest

STOPS = [*map(str, range(1, 7)), "epoch 1", "epoch 2", "writing 1", "writing 2"]
ADAM = {"optimizer": "adam", "schedule": "onecycle"}
OTHERS = [
    {"optimizer": optimizer, "schedule": schedule}
    for optimizer in ("sgd", "momentum", "adagrad", "adam", "adamw")
    for schedule in ("constant", "polynomial", "cosine", "onecycle")
]
OTHERS.remove(ADAM)


def run(tiny, jobs):
    """One process for all of them; gives their outcomes."""
    done = forked.run(
        [sys.executable, Path(__file__).parents[1] / "resume_worker.py", tiny],
        input=json.dumps(jobs),
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def end_of(folder):
    """Weights, their average, the optimizer with its rate, and the final weights."""
    names = [f"mnist_epoch1.{suffix}" for suffix in ("pdparams", "pdtrain", "pdopt")]
    return [(Path(folder) / name).read_bytes() for name in [*names, "mnist.pdparams"]]


@pytest.fixture(scope="module")
def begun(tmp_path_factory, tiny):
    """An unbroken training, and one stopped at each place, by one process."""
    base = tmp_path_factory.mktemp("begun")
    jobs = [
        {**ADAM, "folder": str(base / (stop or "unbroken")), "stop": stop}
        for stop in (None, *STOPS)
    ]
    return dict(zip([None, *STOPS], zip(jobs, run(tiny, jobs))))


@pytest.mark.parametrize("stop", STOPS)
def test_stopped_anywhere(tiny, begun, stop):
    (unbroken, whole), (job, before) = begun[None], begun[stop]
    saved = {path.stem for path in Path(job["folder"]).glob("*.json")}
    if stop.isdigit():
        assert f"mnist_epoch{(int(stop) - 1) // 3}_step{stop}_breakpoint" in saved
    [after] = run(tiny, [{**job, "stop": None}])
    assert end_of(job["folder"]) == end_of(unbroken["folder"])
    assert before["written"] + after["written"] == whole["written"]
    assert before["samples"] + after["samples"] == whole["samples"]
    assert after["scores"] == whole["scores"]


def test_an_epoch_holds_each_sample_once(begun):
    _, whole = begun[None]
    for epoch in (whole["samples"][:3], whole["samples"][3:]):
        assert [len(batch) for batch in epoch] == [32, 32, 6]
        assert sorted(itertools.chain(*epoch)) == list(range(70))


def test_stopped_again_and_again(tiny, tmp_path, begun):
    """A chain of processes, each stopped after a step or two, or at an epoch's end."""
    (unbroken, whole), outcomes = begun[None], []
    for stop in ("1", "2", "epoch 1", "5", None):
        outcomes += run(tiny, [{**ADAM, "folder": str(tmp_path / "chain"), "stop": stop}])
    assert end_of(tmp_path / "chain") == end_of(unbroken["folder"])
    for what in ("written", "samples"):
        assert list(itertools.chain(*(one[what] for one in outcomes))) == whole[what]


@pytest.mark.release
def test_every_other_optimizer_and_schedule_at_three_points(tiny, tmp_path):
    """First step, short batch, last but one: begun by one process, gone on with by another."""

    def jobs(stops):
        return [
            {**pair, "folder": str(tmp_path / f"{number}-{name}"), "stop": stop}
            for number, pair in enumerate(OTHERS)
            for name, stop in stops.items()
        ]

    begun = jobs({"unbroken": None, "1": "1", "3": "3", "5": "5"})
    before = run(tiny, begun)
    broken = [n for n, job in enumerate(begun) if job["stop"]]
    after = run(tiny, [{**begun[n], "stop": None} for n in broken])
    assert len(after) == 57
    for n, gone_on in zip(broken, after):
        first = n - n % 4
        assert end_of(begun[n]["folder"]) == end_of(begun[first]["folder"]), begun[n]
        assert before[n]["written"] + gone_on["written"] == before[first]["written"], begun[n]
