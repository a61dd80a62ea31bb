"""Runs that earlier versions began, in format 4, continue: their manifests had other entries."""

import json

import pytest
from fit_rows import ProgramError, StopsAt, bits, stop, train

from paddle_mnist import TrainConfig, fit
from paddle_mnist.checkpoint.manifest import checksum
from paddle_mnist.errors import ConfigError
from paddle_mnist.mnist.setup import parts

ROW = "BatchNorm"
COMPARED = {"images": {"crop": 28, "sizes": (1, 2)}, "version": 1}
# What version 0.2 compared of a training on digits, besides the hash of the data.
OF_DIGITS = """
    train_limit eval_limit shuffle epochs batch_size seed label_smoothing dropout augment ema
    early_stop_patience init_from incremental_from replay_fraction optimizer learning_rate
    lr_schedule end_lr momentum weight_decay weight_decay_layers amp fast_conv grad_shards
""".split()


def rewrite(run, change):
    """Have a function change what the manifests of a run say that a resume compares."""
    for path in (run / "checkpoints").glob("*.json"):
        manifest = json.loads(path.read_text())
        manifest["config"] = change(manifest["config"])
        path.write_text(json.dumps({**manifest, "checksum": checksum(manifest)}))


def as_in_version_0_2(config):
    return {
        f"binding.{name}" if name.partition(".")[0] in COMPARED else name: value
        for name, value in config.items()
    }


def before_there_were_averages(config):
    newer = ("ema", "amp", "accumulate", "schedule_every", "early_stop_patience")
    return {name: value for name, value in config.items() if name not in newer}


@pytest.mark.parametrize("former", [as_in_version_0_2, before_there_were_averages])
def test_run_of_a_former_fit_resumes_to_the_same_bits(former, tmp_path):
    whole = train(ROW, tmp_path / "whole", must_match=COMPARED)
    with pytest.raises(ProgramError):
        train(ROW, tmp_path / "run", must_match=COMPARED, callbacks=[StopsAt(7, stop)])
    rewrite(tmp_path / "run", former)
    with pytest.raises(ConfigError) as refusal:
        other = {**COMPARED, "images": {"crop": 27, "sizes": (1, 2)}}
        train(ROW, tmp_path / "run", must_match=other)
    assert "images.crop: 28 in the run, 27 now" in str(refusal.value)
    with pytest.raises(ConfigError, match=r"ema: 0.0 in the run, 0.5 now"):
        train(ROW, tmp_path / "run", must_match=COMPARED, ema=0.5)
    resumed = train(ROW, tmp_path / "run", must_match=COMPARED)
    assert resumed.stopped == "finished" and bits(resumed) == bits(whole)
    rewrite(tmp_path / "run", former)
    assert train(ROW, tmp_path / "run", must_match=COMPARED).stopped == "already finished"


def train_digits(output, *callbacks, **options):
    config = TrainConfig(
        **{
            "data": "digits",
            "train_limit": 160,
            "epochs": 2,
            "batch_size": 32,
            "learning_rate": 0.05,
            "output": output,
            "visualdl": False,
            "device": "cpu",
            **options,
        }
    )
    values = parts(config)
    return fit(**{**values, "callbacks": [*values["callbacks"], *callbacks]})


@pytest.mark.slow
def test_run_of_digits_of_a_former_version_resumes_to_the_same_bits(tmp_path):
    """They hashed the data beside the configuration, and described neither the net nor them."""
    whole = train_digits(tmp_path / "whole")
    with pytest.raises(ProgramError):
        train_digits(tmp_path / "run", StopsAt(7, stop))
    rewrite(tmp_path / "run", lambda config: {name: config[name] for name in OF_DIGITS})
    for changed, message in (
        ({"data": "digits#0-8"}, "data: '"),
        ({"train_limit": 161}, "train_limit: 160 in the run, 161 now"),
        ({"weight_decay": 0.25}, "weight_decay: 0.0005 in the run, 0.25 now"),
    ):
        with pytest.raises(ConfigError, match=f"  {message}"):
            train_digits(tmp_path / "run", **changed)
    resumed = train_digits(tmp_path / "run")
    assert resumed.stopped == "finished" and resumed.weights.read_bytes() == (
        whole.weights.read_bytes()
    )
    rewrite(tmp_path / "run", lambda config: {name: config[name] for name in OF_DIGITS})
    assert train_digits(tmp_path / "run").stopped == "already finished"
