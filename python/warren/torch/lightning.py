"""Checkpoints of Warren's for Lightning: a worker that is started again continues from the newest epoch.

    trainer = lightning.Trainer(strategy=DDPStrategy(process_group_backend="warren"), callbacks=[Survive()], …)

`warren run -n 4 -- python -m warren.torch train.py` starts it. docs/pytorch.md has the rest.
"""

from __future__ import annotations

import typing

from lightning.pytorch import Callback
from lightning.pytorch.loops import _Loop

from ._training import Training

__all__ = ["Survive"]


class _Progress:
    """How far the trainer's loops are."""

    def __init__(self, trainer: typing.Any):
        self._trainer = trainer

    def state_dict(self) -> dict[str, typing.Any]:
        return {"loop": self._trainer.fit_loop.state_dict()}

    def load_state_dict(self, state: dict[str, typing.Any]) -> None:
        """The loop then stands before the epoch, as it does in a life that has not been started again."""
        loop = self._trainer.fit_loop
        loop.load_state_dict(state["loop"])
        loop.epoch_progress.current.ready -= 1
        loop.epoch_progress.total.ready -= 1
        _forget_restart(loop)


def _forget_restart(loop: typing.Any) -> None:
    """A loop that knows that it was restored would leave calls out, for checkpoints in the midst of an epoch."""
    loop._restarting = loop._loaded_from_state_dict = loop._resuming_from_checkpoint = False
    for part in vars(loop).values():
        if isinstance(part, _Loop):
            _forget_restart(part)


class Survive(Callback):  # type: ignore[misc,unused-ignore]
    """Takes a checkpoint at the start of each `every`-th epoch, and restores the newest one when fit() begins.

    Model, optimizers, schedulers, loss scale, random numbers and the trainer's progress are in it. States of other
    callbacks are not. A program calls fit() once.
    """

    def __init__(self, every: int = 1):
        if every < 1:
            raise ValueError(f"Survive: every is {every}; it is at least 1")
        self._every = every
        self._training: Training | None = None
        self._resumed = False

    def on_train_start(self, trainer: typing.Any, pl_module: typing.Any) -> None:
        # The trainer makes its last calls of the set-up just before this.
        parts = {f"optimizer {i}": optimizer for i, optimizer in enumerate(trainer.optimizers)}
        parts |= {f"schedule {i}": config.scheduler for i, config in enumerate(trainer.lr_scheduler_configs)}
        if (scaler := getattr(trainer.precision_plugin, "scaler", None)) is not None:
            parts["scaler"] = scaler
        progress = _Progress(trainer)
        self._training = Training(local=["progress"], model=trainer.strategy.model, progress=progress, **parts)
        self._resumed = self._training.load(random=False) > 0

    def on_train_epoch_start(self, trainer: typing.Any, pl_module: typing.Any) -> None:
        assert self._training is not None
        if self._resumed:
            self._resumed = False
            self._training.restore_random()  # as they were here when the checkpoint was taken
        elif trainer.current_epoch > 0 and trainer.current_epoch % self._every == 0:
            self._training.checkpoint()
