"""The race of recipes: who goes on, how rows are compared, and that eval stays unscored."""

import json

import pytest
from reproduction.claims import Scale, Workspace
from reproduction.search import BASE, CLAIM, Race, Round, compare, judge, survivors
from reproduction.significance import holm, paired_difference
from reproduction.trainings import Training

from paddle_mnist.mnist.cache import open_data


def row(errors, losses, seconds=(1.0, 1.0, 1.0)):
    return {"errors": list(errors), "losses": list(losses), "seconds": list(seconds)}


def one_round(**rows):
    return {"epochs": 20, "seeds": [1, 2, 3], "rows": rows}


def test_the_rows_of_least_loss_go_on_with_the_one_they_are_compared_with():
    rows = {
        BASE: row((60, 61, 62), (0.03, 0.03, 0.03)),
        "fewest errors": row((50, 50, 50), (0.025, 0.025, 0.025)),
        "least loss": row((58, 58, 58), (0.02, 0.02, 0.02)),
        "worst": row((70, 70, 70), (0.04, 0.04, 0.04)),
    }
    assert survivors(one_round(**rows), 1) == [BASE, "least loss"]
    assert survivors(one_round(**rows), 2) == [BASE, "least loss", "fewest errors"]


def test_rows_are_compared_seed_by_seed():
    """A gain that each seed shows is told, though seeds differ by more among themselves."""
    base, better = row((50, 60, 70), (0.02, 0.03, 0.04)), row((45, 55, 64), (0.019, 0.029, 0.0391))
    errors, losses = compare(one_round(**{BASE: base, "better": better}))["better"]
    assert errors["gap"] == pytest.approx(16 / 3) and errors["low"] > 0 and errors["p"] < 0.05
    assert losses["gap"] > 0 and losses["p"] < 0.05
    three = {BASE: base, "better": better, "one": base, "two": base}
    (corrected, _), (same, _) = (compare(one_round(**three))[name] for name in ("better", "one"))
    assert corrected["p"] == pytest.approx(3 * errors["p"])
    assert same == {"gap": 0, "low": 0, "high": 0, "p": 1}


@pytest.mark.parametrize(
    ("p_values", "corrected"),
    [
        ([0.01], [0.01]),
        ([0.03, 0.01, 0.02], [0.04, 0.03, 0.04]),  # none below one that is more significant
        ([0.4, 0.9, 0.02], [0.8, 0.9, 0.06]),
        ([0.6, 0.7], [1, 1]),
        ([], []),
    ],
)
def test_holm(p_values, corrected):
    assert holm(p_values) == pytest.approx(corrected)


def test_a_difference_that_is_the_same_for_every_seed_is_certain():
    assert paired_difference([1, 2, 3], [2, 3, 4]) == {"gap": 1, "low": 1, "high": 1, "p": 0}


def test_the_verdict_names_the_row_of_least_loss():
    rows = {BASE: row((60, 61, 62), (0.03, 0.03, 0.03)), "elastic": row((50, 51, 50), (0.02,) * 3)}
    sentence = judge({"rounds": [one_round(**rows)]}).first_sentence
    assert sentence.en.startswith("Best after 20 epochs: elastic, 50.3 errors on the 10,000")
    assert "弹性变形 1，验证集 10,000 张图像上平均错 50.3 张" in sentence.zh
    rows["elastic"] = row((50, 51, 50), (0.04,) * 3)
    sentence = judge({"rounds": [one_round(**rows)]}).first_sentence
    assert sentence.en.startswith("After 20 epochs nothing was better than the affine alone, 61.0")


def test_no_seed_is_in_two_rounds_nor_among_those_that_are_scored_on_eval():
    seeds = [seed for one in CLAIM.rounds for seed in one.seeds]
    assert len(set(seeds)) == len(seeds) and min(seeds) > 100
    assert [one.epochs for one in CLAIM.rounds] == sorted(one.epochs for one in CLAIM.rounds)


def test_a_race_goes_on_where_it_stopped_and_leaves_eval_unscored(tmp_path):
    """Its rows train on the embedded digits, two rounds of one epoch."""
    rows = {name: CLAIM.rows[name] for name in (BASE, "elastic", "elastic, batch 32")}
    rounds = (Round(1, (101, 102), kept=1), Round(1, (111, 112), kept=1))
    race = Race("search", judge, rows=rows, rounds=rounds)
    workspace = Workspace(open_data("digits"), tmp_path, tmp_path / "out", Scale(quick=True))
    assert race.report(workspace, {}) == {} and race.table({}) == "Not measured yet."
    race.measure_missing(workspace)
    report = race.report(workspace, {})
    assert race.is_complete(report)
    first, second = report["rounds"]
    assert set(first["rows"]) == set(rows)
    assert list(second["rows"]) == survivors(first, 1) and len(second["rows"]) == 2
    assert all(seconds > 0 for one in second["rows"].values() for seconds in one["seconds"])
    assert str(race.judge(report)).startswith(("Best after 1 epochs", "After 1 epochs nothing"))
    assert race.table(report).count("| 1 epochs, 2 seeds |") == 2

    results = tmp_path / "search.json"
    stored = json.loads(results.read_text())
    assert len(stored) == 10 and not any("eval" in key for one in stored.values() for key in one)
    runs = list((tmp_path / "out/search").glob("*/result.json"))
    assert len(runs) == 10 and not any("eval" in path.read_text() for path in runs)

    before = {path: path.stat().st_mtime_ns for path in runs}
    lost = race.rounds[1].trainings(rows[BASE], workspace.scale)[0]
    results.write_text(json.dumps({k: v for k, v in stored.items() if k != lost.name}))
    assert not race.is_complete(race.report(workspace, {}))
    race.measure_missing(workspace)
    assert before == {path: path.stat().st_mtime_ns for path in runs}  # nothing is trained again
    again = json.loads(results.read_text())[lost.name]
    assert again == {**stored[lost.name], "cpu_seconds": None}
    assert isinstance(lost, Training)
