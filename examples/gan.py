"""Train a GAN, whose discriminator is state beside the weights; kill it and run it again."""

import sys

from paddle_mnist import Saving, fit, load_model

import paddle
from paddle import nn
from paddle.nn import functional as F

CENTER = paddle.to_tensor([1.0, -1.0])

paddle.seed(0)
real = CENTER + 0.1 * paddle.randn([512, 2])
noise = paddle.randn([1000, 4])
discriminator = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = paddle.optimizer.Adam(0.005, parameters=discriminator.parameters())


def build():
    return nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))


def judged(points, is_real):
    logits = discriminator(points)
    return F.binary_cross_entropy_with_logits(logits, paddle.full_like(logits, is_real))


def step(model, batch):
    (points,) = batch
    generated = model(paddle.randn([len(points), 4]))
    if model.training:
        optimizer.clear_grad()
        (judged(points, 1.0) + judged(generated.detach(), 0.0)).backward()
        optimizer.step()
    return {"loss": judged(generated, 1.0)}


def distance(generator):
    """Return how far the points of a generator are from the real ones, on average."""
    with paddle.no_grad():
        return (generator(noise) - CENTER).norm(axis=1).mean().item()


if __name__ == "__main__":
    untrained = distance(build())
    result = fit(
        build,
        paddle.io.TensorDataset([real]),
        step=step,
        optimizer=lambda parameters: paddle.optimizer.Adam(0.005, parameters=parameters),
        state={"discriminator": discriminator, "discriminator_optimizer": optimizer},
        epochs=20,
        saving=Saving(every_steps=10),
        output=sys.argv[1] if len(sys.argv) > 1 else "work/output/gan",
    )
    trained = distance(load_model(result.weights, build))
    print(f"distance from the real points: untrained {untrained:.3f}, trained {trained:.3f}")
