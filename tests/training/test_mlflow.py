"""The logger of examples/log_to_mlflow.py, with a store of MLflow in a folder."""

import runpy

import pytest
from conftest import ROOT
from fit_rows import ProgramError, StopsAt, history, stop, train

ROW = "SGD with clipping"  # five steps an epoch


def logger():
    """Return an instance of the example's class."""
    return runpy.run_path(ROOT / "examples/log_to_mlflow.py")["MLflow"]()


@pytest.fixture
def client(tmp_path, monkeypatch):
    import mlflow  # not before this test: it takes half a second, of each worker of pytest

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri(tmp_path / "store")
    yield mlflow.MlflowClient()
    mlflow.set_tracking_uri(None)


def test_mlflow_logger_of_a_resumed_training_continues_its_run(tmp_path, client):
    """Each point of it once: steps that are trained again have the same values."""
    options = {"epochs": 2, "save_every_steps": 3, "save_on_exception": False}
    with pytest.raises(ProgramError):
        train(ROW, tmp_path / "run", callbacks=[logger(), StopsAt(8, stop)], **options)
    (run,) = client.search_runs(["0"])
    assert run.info.status == "KILLED"
    train(ROW, tmp_path / "run", callbacks=[logger()], **options)
    (run,) = client.search_runs(["0"])
    assert run.info.status == "FINISHED" and run.data.params["batch_size"] == "8"
    for tag in ("train/loss", "valid/loss"):
        logged = [(row.step, row.value) for row in client.get_metric_history(run.info.run_id, tag)]
        assert logged == [*zip(*history(tmp_path / "run", tag))]
    speeds = client.get_metric_history(run.info.run_id, "speed/ips")
    assert len({row.step for row in speeds}) == len(speeds)
