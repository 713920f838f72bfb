"""Trains a small network on handwritten digits with Lightning, as it is, over Warren.

    warren run -n 4 -- python -m warren.torch examples/python/torch_lightning.py [--epochs=N] [--weights_file=PATH]

The one thing in it that is Warren's is the name of the backend. A worker that is killed runs the program from the
beginning then, with results from the log. With --checkpoints it goes on from the newest epoch.
"""

import argparse
import os
import pathlib

import digits
import lightning
import torch
from lightning.pytorch.strategies import DDPStrategy

BATCH = 64  # images of all workers


class Classifier(lightning.LightningModule):
    def __init__(self, epochs):
        super().__init__()
        self.epochs = epochs
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(65, 64), torch.nn.BatchNorm1d(64), torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(64, 10)
        )

    def training_step(self, batch, _):
        x, y = batch
        return torch.nn.functional.cross_entropy(self.layers(x), y)

    def on_train_epoch_end(self):
        if self.global_rank == 0:
            print(f"epoch {self.current_epoch + 1:3} of {self.epochs}", flush=True)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=3e-3)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--checkpoints", action="store_true")
    parser.add_argument("--weights_file")
    options = parser.parse_args()
    print(f"process {os.getpid()} begins", flush=True)
    train, test = ((torch.tensor(x, dtype=torch.float32), torch.tensor(y)) for x, y in digits.load())
    lightning.seed_everything(7, verbose=False)
    model = Classifier(options.epochs)
    callbacks = []
    if options.checkpoints:
        from warren.torch.lightning import Survive

        callbacks = [Survive()]
    trainer = lightning.Trainer(
        accelerator="cpu", devices=int(os.environ["LOCAL_WORLD_SIZE"]), max_epochs=options.epochs,
        strategy=DDPStrategy(process_group_backend="warren"), callbacks=callbacks,
        logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    images = torch.utils.data.TensorDataset(*train)
    trainer.fit(model, torch.utils.data.DataLoader(images, batch_size=BATCH // trainer.world_size, shuffle=True))
    if trainer.global_rank == 0:
        model.eval()
        with torch.no_grad():
            accuracy = (model.layers(test[0]).argmax(1) == test[1]).float().mean()
        print(f"test accuracy {accuracy:.4f}", flush=True)
        if options.weights_file:
            tensors = model.state_dict().values()
            pathlib.Path(options.weights_file).write_bytes(b"".join(tensor.numpy().tobytes() for tensor in tensors))


main()
