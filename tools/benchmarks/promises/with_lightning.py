"""Train with Lightning, which saves every few steps and resumes from the newest."""

import lightning
import torch
from digits import DROPOUT, EPOCHS, HIDDEN, SAVE_EVERY, SEED, Samples, Trained, main
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import Dataset
from torchdata.stateful_dataloader import StatefulDataLoader
from torchmetrics.classification import MulticlassAccuracy


class Digits(Samples, Dataset):
    pass


def build():
    return nn.Sequential(
        nn.Linear(64, HIDDEN), nn.ReLU(), nn.Dropout(DROPOUT), nn.Linear(HIDDEN, 10)
    )


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = build()
        self.accuracy = MulticlassAccuracy(10, average="micro")

    def training_step(self, batch, number):
        images, labels = batch
        return nn.functional.cross_entropy(self.net(images), labels)

    def validation_step(self, batch, number):
        images, labels = batch
        logits = self.net(images)
        self.accuracy(logits, labels)
        self.log("loss", nn.functional.cross_entropy(logits, labels), sync_dist=True)
        self.log("acc", self.accuracy)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 0.002)


def train(output, batch_size, processes):
    lightning.seed_everything(SEED, workers=True)
    model = Classifier()
    trainer = lightning.Trainer(
        default_root_dir=output,
        max_epochs=EPOCHS,
        accelerator="cpu",
        devices=processes,
        deterministic=True,
        callbacks=ModelCheckpoint(
            output, save_last=True, every_n_train_steps=SAVE_EVERY, save_on_exception=True
        ),
    )
    train_loader = StatefulDataLoader(Digits("train"), batch_size // processes, shuffle=True)
    valid_loader = StatefulDataLoader(Digits("valid"), batch_size // processes)
    trainer.fit(model, train_loader, valid_loader, ckpt_path="last")
    (metrics,) = trainer.validate(model, valid_loader)
    return metrics["loss"], metrics["acc"], model


def trained(output, batch_size, processes):
    loss, accuracy, model = train(output, batch_size, processes)
    weights = [value.detach().numpy().T for value in model.net.parameters()]
    return Trained(loss, accuracy, weights)


if __name__ == "__main__":
    main(trained)
