"""Send the metrics to Weights & Biases, one curve over resumes; kill it and run it again."""

import contextlib
import json
import os
import sys

from paddle_mnist import Callback, Console, Saving, fit

import paddle
import wandb


class WandB(Callback):
    """Logs settings and metrics. Checkpoints hold the ID of the run at W&B."""

    run_id, logged = None, frozenset()

    def before_training(self, training):
        self.logged = set()  # read from the history, before a resume cuts it
        if training.run.metrics.exists():
            for line in training.run.metrics.read_text().splitlines():
                with contextlib.suppress(ValueError):  # a line may be torn
                    row = json.loads(line)
                    self.logged.add((row["step"], row["tag"]))

    def before_first_step(self, training):
        if training.world.is_main_process:
            config = dict(training.hyperparameters)
            run = wandb.init(id=self.run_id, resume="allow", config=config, dir=training.run.path)
            run.define_metric("*", step_metric="step")
            self.run_id = run.id

    def write(self, state, values):
        values = {tag: v for tag, v in values.items() if (state.step, tag) not in self.logged}
        if wandb.run and not all(tag.startswith("speed/") for tag in values):
            wandb.run.log({"step": state.step, **values})

    def close(self):
        if wandb.run:
            wandb.run.finish()

    def state_dict(self):
        return {"run_id": self.run_id}

    def set_state_dict(self, state):
        self.run_id = state["run_id"]


if __name__ == "__main__":
    os.environ.setdefault("WANDB_MODE", "offline")  # without it, W&B asks for an account
    paddle.seed(0)
    points = paddle.randn([400, 4])
    sums = points.sum(axis=1, keepdim=True)
    data = paddle.io.TensorDataset([points, sums])
    result = fit(
        model=lambda: paddle.nn.Linear(4, 1),
        train=data,
        valid=data,
        loss=paddle.nn.functional.mse_loss,
        optimizer=lambda parameters: paddle.optimizer.Adam(0.1, parameters=parameters),
        epochs=5,
        saving=Saving(every_steps=10),
        callbacks=[WandB(), Console(every=5)],
        output=sys.argv[1] if len(sys.argv) > 1 else "work/output/log_to_wandb",
    )
    zero, net = (sums**2).mean().item(), result.metrics["valid/loss"]
    print(f"mean squared error: zero {zero:.3f}, net {net:.3f}")
