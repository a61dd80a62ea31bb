"""The race of recipes: who goes on, how rows are compared, and that eval stays unscored."""

import json
import re
from dataclasses import replace

import numpy as np
import paddle
import pytest
from reproduction.halving import BASE, compare, survivors
from reproduction.page import findings
from reproduction.racing import Round
from reproduction.search import CLAIM, judge
from reproduction.significance import paired_difference
from reproduction.trainings import Training
from reproduction.workspace import Scale, Workspace
from train_candidate import CANDIDATES

from paddle_mnist.mnist.cache import open_data


def row(errors, losses, seconds=(1.0, 1.0, 1.0)):
    return {"errors": list(errors), "losses": list(losses), "seconds": list(seconds)}


def one_round(**rows):
    return {"epochs": 20, "seeds": [1, 2, 3], "rows": rows}


def test_the_best_by_errors_and_by_loss_go_on_with_the_row_they_are_compared_with():
    rows = {
        BASE: row((60, 61, 62), (0.03, 0.03, 0.03)),
        "fewest errors": row((50, 50, 50), (0.025, 0.025, 0.025)),
        "least loss": row((58, 58, 58), (0.02, 0.02, 0.02)),
        "worst": row((70, 70, 70), (0.04, 0.04, 0.04)),
    }
    assert survivors(one_round(**rows), 1) == [BASE, "fewest errors"]
    assert survivors(one_round(**rows), 2) == [BASE, "fewest errors", "least loss"]
    assert survivors(one_round(**rows), 9) == [BASE, "fewest errors", "least loss", "worst"]
    rows["best of both"] = row((40, 40, 40), (0.01, 0.01, 0.01))
    assert survivors(one_round(**rows), 2) == [BASE, "best of both", "fewest errors"]


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


def test_a_difference_that_is_the_same_for_every_seed_is_certain():
    assert paired_difference([1, 2, 3], [2, 3, 4]) == {"gap": 1, "low": 1, "high": 1, "p": 0}


def test_the_verdict_names_the_row_of_the_fewest_errors():
    rows = {BASE: row((60, 61, 62), (0.03, 0.03, 0.03)), "elastic": row((50, 51, 50), (0.02,) * 3)}
    verdict = judge({"rounds": [one_round(**rows)]})
    for details in findings(verdict):
        assert "`augment=rotate=8,shift=1.5,scale=0.08,shear=4,elastic=0.7`" in details
        assert "`epochs=20`" in details
    assert verdict.summary.en.startswith(
        "After 20 epochs, elastic 0.7 and a smaller affine makes 50.3 errors on the 10,000 images"
    )
    assert (
        "弹性形变 0.7 加较小的仿射变换，在验证集的 10,000 张图像上平均错 50.3 张"
        in verdict.summary.zh
    )
    rows["elastic"] = row((63, 61, 60), (0.02,) * 3)
    nothing = judge({"rounds": [one_round(**rows)]}).summary.en
    assert nothing.startswith("After 20 epochs no row makes fewer errors")
    assert nothing.endswith("than affine augmentation alone, 61.0")


def test_no_seed_is_in_two_rounds_nor_among_those_that_are_scored_on_eval():
    seeds = [seed for one in CLAIM.rounds for seed in one.seeds]
    assert len(set(seeds)) == len(seeds) and min(seeds) > 100
    assert [one.epochs for one in CLAIM.rounds] == sorted(one.epochs for one in CLAIM.rounds)


def test_a_race_goes_on_where_it_stopped_and_leaves_eval_unscored(tmp_path):
    """Its rows train on the embedded digits, two rounds of one epoch."""
    rows = {name: CLAIM.rows[name] for name in (BASE, "elastic", "elastic, batch 32")}
    rounds = (Round(1, (101, 102), kept=1), Round(1, (111, 112), kept=1))
    race = replace(CLAIM, rows=rows, rounds=rounds)
    workspace = Workspace(open_data("digits"), tmp_path, tmp_path / "out", Scale(quick=True))
    assert race.report(workspace, {}) == {}
    assert race.table({}).en.count("| not measured yet |") == len(rows)
    verdict = race.judge({})
    assert verdict.summary.en.endswith("0 of 6 trainings of round 1 of 2 are done")
    assert verdict.summary.zh.endswith("共 2 个阶段，第 1 个阶段的 6 次训练中已完成 0 次")
    race.measure_missing(workspace)
    report = race.report(workspace, {})
    assert race.is_complete(report)
    first, second = report["rounds"]
    assert set(first["rows"]) == set(rows)
    assert list(second["rows"]) == survivors(first, 1) and len(second["rows"]) == 2
    assert all(seconds > 0 for one in second["rows"].values() for seconds in one["seconds"])
    assert findings(race.judge(report)).en.startswith("After 1 epochs")
    tables = race.table(report)
    assert tables.en.count("| 1 epochs, 2 seeds |") == 2
    assert tables.zh.count("| 1 个 epoch，2 个随机种子 |") == 2

    results = tmp_path / "candidates.json"
    stored = json.loads(results.read_text())
    assert len(stored) == 10 and not any("eval" in key for one in stored.values() for key in one)
    runs = list((tmp_path / "out/candidates").glob("*/result.json"))
    assert len(runs) == 10 and not any("eval" in path.read_text() for path in runs)
    assert not (tmp_path / "out/candidates/teachers").exists()  # nobody learns from any

    before = {path: path.stat().st_mtime_ns for path in runs}
    lost = race.rounds[1].trainings(rows[BASE], workspace.scale)[0]
    results.write_text(json.dumps({k: v for k, v in stored.items() if k != lost.name}))
    unfinished = race.report(workspace, {})
    assert not race.is_complete(unfinished)
    words = "The search is not complete: 3 of 4 trainings of round 2 of 2 are done"
    assert findings(race.judge(unfinished)).en.startswith(words)
    assert "--only candidates" in findings(race.judge(unfinished)).zh
    assert race.table(unfinished).zh.count("尚未测量") == 1
    race.measure_missing(workspace)
    assert before == {path: path.stat().st_mtime_ns for path in runs}  # nothing is trained again
    again = json.loads(results.read_text())[lost.name]
    assert again == {**stored[lost.name], "cpu_seconds": None}
    assert isinstance(lost, Training)


def test_teachers_are_trained_and_learned_from(tmp_path):
    rows = {name: CLAIM.rows[name] for name in (BASE, "elastic, distilled")}
    race = replace(
        CLAIM,
        rows=rows,
        rounds=(Round(1, (101,), kept=1),),
        teacher=BASE,
        teachers=Round(1, (121, 122), kept=0),
    )
    workspace = Workspace(open_data("digits"), tmp_path, tmp_path / "out", Scale(quick=True))
    race.measure_missing(workspace)
    assert race.is_complete(race.report(workspace, {}))
    out = tmp_path / "out/candidates"
    assert sorted(path.name for path in (out / "teachers").iterdir()) == [
        "121.pdparams",
        "122.pdparams",
    ]
    (answers,) = out.glob("answers-*.float16")
    logits = np.memmap(answers, np.float16, "r", shape=(20, 640, 10))
    assert logits.any(axis=(1, 2)).all()  # of each view


SMALL = "--recipe digits --train_limit 320 --epochs 2 --augment shift=1,elastic=0.5".split()
SMALL += "--figures false --visualdl false --watch 0 --final_split valid".split()


@pytest.fixture(scope="module")
def plain(tmp_path_factory, tool_in):
    """The weights of the same training without a candidate's change."""
    folder = tmp_path_factory.mktemp("plain")
    tool_in(folder)("train", *SMALL, "--output", "run")
    return folder / "run/mnist.pdparams"


@pytest.mark.parametrize("candidate", CANDIDATES)
def test_a_candidate_is_resumed_to_the_same_bits(tool, tmp_path, plain, candidate):
    options = ["--candidate", candidate, "--teachers", plain, *SMALL, "--save_every_steps", 3]
    options += ["--keep_last", 50]
    tool("train_candidate", *options, "--output", "whole")
    inside = next((tmp_path / "whole/checkpoints").glob("mnist_epoch1_step*.json"))
    tool("train_candidate", *options, "--output", "resumed", "--resume", inside.with_suffix(""))
    whole, resumed = (tmp_path / run / "mnist.pdparams" for run in ("whole", "resumed"))
    assert whole.read_bytes() == resumed.read_bytes() != plain.read_bytes()
    other = "nesterov" if candidate != "nesterov" else "mixup"
    refused = tool("train_candidate", "--candidate", other, *SMALL, "--output", "whole", expect=2)
    assert re.search(r"change the run on purpose with --override [\w,]*candidate", refused.stderr)


def test_distillation_learns_from_the_teacher_alone(tool, tmp_path):
    """Whose answers are right for most images, and wrong for all once its classes are turned."""
    longer = [*SMALL, "--epochs", 12]
    tool("train", *longer, "--output", "plain")
    plain = tmp_path / "plain/mnist.pdparams"
    turned = paddle.load(str(plain))
    for name in ("fc.weight", "fc.bias"):
        turned[name] = paddle.to_tensor(np.roll(turned[name].numpy(), 1, axis=-1))
    paddle.save(turned, str(tmp_path / "turned.pdparams"))
    accuracies = {}
    for teacher in (plain, tmp_path / "turned.pdparams"):
        run = f"from-{teacher.stem}"
        options = ["--candidate", "distilled", "--teachers", teacher, *longer, "--output", run]
        tool("train_candidate", *options)
        accuracies[teacher.stem] = json.loads((tmp_path / run / "result.json").read_text())
    assert accuracies["mnist"]["valid_acc"] > 0.7 and accuracies["turned"]["valid_acc"] < 0.1


def test_distillation_without_teachers_is_refused(tool):
    done = tool("train_candidate", "--candidate", "distilled", *SMALL, "--output", "r", expect=2)
    assert "distilled has no teachers; expected --teachers" in done.stderr
