"""Runs that earlier versions began, in format 4, continue: their manifests had other entries."""

import json

import paddle
import pytest
from fit_rows import Points, ProgramError, StopsAt, bits, stop, train

from paddle_mnist.checkpoint.manifest import checksum
from paddle_mnist.errors import ConfigError

ROW = "BatchNorm"
COMPARED = {"images": {"crop": 28, "sizes": (1, 2)}, "version": 1}


def rewrite(run, change):
    """Have a function change what the manifests of a run say that a resume compares.

    Leave out how samples were seeded, which former versions did not write.
    """
    for path in (run / "checkpoints").glob("*.json"):
        manifest = json.loads(path.read_text())
        manifest["config"] = change(manifest["config"])
        manifest.pop("seeding", None)
        path.write_text(json.dumps({**manifest, "checksum": checksum(manifest)}))


def without_newer_options(config):
    newer = ("ema", "amp", "accumulate", "schedule_every", "early_stop_patience")
    return {name: value for name, value in config.items() if name not in newer}


def as_in_version_1_0(config):
    """Record the batch size that was passed beside a loader, not the loader's own."""
    others = {name: value for name, value in config.items() if not name.endswith(".batch_size")}
    return {**others, "batch_size": 64}


def test_run_of_a_loader_that_recorded_another_batch_size_continues(tmp_path):
    def options(**others):
        loader = paddle.io.DataLoader(Points(), batch_size=8)
        return {"train": loader, "valid": loader, "batch_size": 8, **others}

    whole = train(ROW, tmp_path / "whole", **options())
    with pytest.raises(ProgramError):
        train(ROW, tmp_path / "run", callbacks=[StopsAt(7, stop)], **options())
    rewrite(tmp_path / "run", as_in_version_1_0)
    resumed = train(ROW, tmp_path / "run", **options(batch_size=64))
    assert resumed.stopped == "finished" and bits(resumed) == bits(whole)
    rewrite(tmp_path / "run", as_in_version_1_0)
    assert train(ROW, tmp_path / "run", **options(batch_size=64)).stopped == "already finished"


def test_run_of_a_former_fit_resumes_to_the_same_bits(tmp_path, lines):
    whole = train(ROW, tmp_path / "whole", must_match=COMPARED)
    with pytest.raises(ProgramError):
        train(ROW, tmp_path / "run", must_match=COMPARED, callbacks=[StopsAt(7, stop)])
    rewrite(tmp_path / "run", without_newer_options)
    other = {**COMPARED, "images": {"crop": 27, "sizes": (1, 2)}}
    with pytest.raises(ConfigError, match=r"images.crop: 28 in the run, 27 now"):
        train(ROW, tmp_path / "run", must_match=other)
    with pytest.raises(ConfigError, match=r"ema: 0.0 in the run, 0.5 now"):
        train(ROW, tmp_path / "run", must_match=COMPARED, ema=0.5)
    resumed = train(ROW, tmp_path / "run", must_match=COMPARED)
    assert resumed.stopped == "finished" and bits(resumed) == bits(whole)
    assert len([line for line in lines() if "seeds the random numbers" in line]) == 1
    rewrite(tmp_path / "run", without_newer_options)
    assert train(ROW, tmp_path / "run", must_match=COMPARED).stopped == "already finished"
