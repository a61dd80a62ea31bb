"""Send the metrics to MLflow, and continue its run on resume; kill it and run it again."""

import os
import sys

from paddle_mnist import Callback, Console, Saving, fit

import mlflow
import paddle


class MLflow(Callback):
    """Logs settings and metrics. Checkpoints hold the ID of MLflow's run."""

    run_id, logged = None, frozenset()

    def before_first_step(self, training):
        if training.world.is_main_process:
            is_new = self.run_id is None
            run = mlflow.start_run(run_id=self.run_id)
            self.run_id = run.info.run_id
            if is_new:
                mlflow.log_params(training.hyperparameters)
            # MLflow's points include those since the checkpoint, whose steps are trained again.
            history = mlflow.MlflowClient().get_metric_history
            points = (point for tag in run.data.metrics for point in history(self.run_id, tag))
            self.logged = {(point.step, point.key) for point in points}

    def write(self, state, values):
        values = {tag: v for tag, v in values.items() if (state.step, tag) not in self.logged}
        if mlflow.active_run():
            mlflow.log_metrics(values, step=state.step)

    def after_training(self, training, result):
        mlflow.end_run()

    def close(self):
        mlflow.end_run("KILLED")  # unless it has ended already

    def state_dict(self):
        return {"run_id": self.run_id}

    def set_state_dict(self, state):
        self.run_id = state["run_id"]


if __name__ == "__main__":
    output = sys.argv[1] if len(sys.argv) > 1 else "work/output/log_to_mlflow"
    os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"  # a folder; MLflow prefers a database
    mlflow.set_tracking_uri(f"{output}-mlruns")
    paddle.seed(0)
    points = paddle.randn([400, 4])
    sums = points.sum(axis=1, keepdim=True)
    data = paddle.io.TensorDataset([points, sums])
    fit(
        model=lambda: paddle.nn.Linear(4, 1),
        train=data,
        valid=data,
        loss=paddle.nn.functional.mse_loss,
        optimizer=lambda parameters: paddle.optimizer.Adam(0.1, parameters=parameters),
        epochs=5,
        saving=Saving(every_steps=10),
        callbacks=[MLflow(), Console(every=5)],
        output=output,
    )
    (run,) = mlflow.search_runs(output_format="list")
    zero, net = (sums**2).mean().item(), run.data.metrics["valid/loss"]
    print(f"mean squared error: zero {zero:.3f}, net {net:.3f}")
