"""A small real training: a NumPy MLP that learns two interleaved spirals, recorded by outlay.

Run again in the same directory, it resumes from its last checkpoint:

    python -m outlay.demo.mlp --dir runs/spirals --steps 600

On a preemption notice (SIGTERM or SIGUSR2) it saves a checkpoint and exits.
"""

from __future__ import annotations

import argparse
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import outlay

Floats = NDArray[np.float64]
BATCH = 256
CHECKPOINT_EVERY = 100


def spirals(count: int, turns: float, seed: int) -> tuple[Floats, Floats]:
    """Return points on two interleaved spirals, and the spiral of each (0 or 1)."""
    random = np.random.default_rng(seed)
    label = random.integers(0, 2, count)
    radius = np.sqrt(random.uniform(0.05, 1, count))
    angle = turns * np.pi * radius + np.pi * label
    points = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
    return points + random.normal(0, 0.02, points.shape), label.astype(float)


def batches(points: Floats, labels: Floats, seed: int) -> Iterator[tuple[Floats, Floats]]:
    """Yield random batches forever."""
    random = np.random.default_rng(seed)
    while True:
        chosen = random.integers(0, len(points), BATCH)
        yield points[chosen], labels[chosen]


class Mlp:
    """Two hidden layers of tanh, trained by gradient descent with momentum."""

    def __init__(self, *, seed: int = 1, hidden: int = 64, learning_rate: float = 0.3) -> None:
        random = np.random.default_rng(seed)
        shapes = [(2, hidden), (hidden, hidden), (hidden, 1)]
        self.learning_rate = learning_rate
        self.weights = [random.normal(0, np.sqrt(1 / shape[0]), shape) for shape in shapes]
        self.biases = [np.zeros(shape[1]) for shape in shapes]
        self.velocity = [np.zeros_like(p) for p in self.parameters()]

    def parameters(self) -> list[Floats]:
        """Return weights and biases."""
        return [*self.weights, *self.biases]

    def forward(self, points: Floats) -> list[Floats]:
        """Return the activations of every layer, the points first and the probabilities last."""
        activations = [points]
        for weight, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
            activations.append(np.tanh(activations[-1] @ weight + bias))
        logits = activations[-1] @ self.weights[-1] + self.biases[-1]
        return [*activations, 1 / (1 + np.exp(-logits))]

    def step(self, points: Floats, labels: Floats) -> float:
        """Take one step of gradient descent and return the loss before it."""
        activations = self.forward(points)
        probability = activations[-1][:, 0]
        error = ((probability - labels) / len(points))[:, None]
        gradients_w: list[Floats] = []
        gradients_b: list[Floats] = []
        for layer in reversed(range(len(self.weights))):
            gradients_w.insert(0, activations[layer].T @ error)
            gradients_b.insert(0, error.sum(axis=0))
            if layer:
                error = (error @ self.weights[layer].T) * (1 - activations[layer] ** 2)
        pairs = zip(self.parameters(), self.velocity, gradients_w + gradients_b, strict=True)
        for parameter, velocity, gradient in pairs:
            velocity *= 0.9
            velocity -= self.learning_rate * gradient
            parameter += velocity
        likelihood = np.where(labels > 0.5, probability, 1 - probability)
        return float(-np.log(np.maximum(likelihood, 1e-12)).mean())

    def accuracy(self, points: Floats, labels: Floats) -> float:
        """Return the share of correctly classified points."""
        return float(((self.forward(points)[-1][:, 0] > 0.5) == (labels > 0.5)).mean())

    def save(self, path: Path) -> None:
        """Write a checkpoint atomically."""
        draft = path.with_suffix(".draft.npz")
        np.savez(draft, *self.parameters(), *self.velocity)
        draft.replace(path)

    def load(self, path: Path) -> None:
        """Restore a checkpoint."""
        with np.load(path) as saved:
            arrays = [saved[name] for name in saved.files]
        for current, stored in zip([*self.parameters(), *self.velocity], arrays, strict=True):
            current[...] = stored


class Training:
    """A model, its data and its checkpoint, recorded as a run."""

    def __init__(self, run: outlay.Run, model: Mlp, directory: Path, turns: float) -> None:
        self._run = run
        self._model = model
        self._checkpoint = directory / "checkpoint.npz"
        with run.span("training_prep"):
            self._points, self._labels = spirals(20_000, turns, seed=2)
            self._held_out = spirals(4_000, turns, seed=3)
        if run.resume_step:
            with run.span("checkpoint_restore"):
                model.load(self._checkpoint)
        run.on_preemption(self._save)

    def train(self, *, steps: int, kill_at: int | None) -> None:
        """Train up to ``steps`` steps in total, or until the budget ends."""
        run, data = self._run, batches(self._points, self._labels, seed=self._run.resume_step)
        run.metric("parameters", sum(each.size for each in self._model.parameters()))
        for batch in run.steps(data, samples=len_first):
            loss = self._model.step(*batch)
            if run.step_number == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            if (run.step_number + 1) % CHECKPOINT_EVERY == 0:
                run.metric("loss", loss)
                self._evaluate()
                self._save()
            if run.step_number + 1 == steps:
                break
        if (run.step_number + 1) % CHECKPOINT_EVERY:
            self._evaluate()

    def _evaluate(self) -> None:
        """Measure the accuracy, unless the budget has no room for it."""
        if not self._run.allows("evaluation"):
            self._run.note("evaluation skipped: it no longer fits the budget")
            return
        with self._run.span("evaluation"):
            self._run.metric("accuracy", self._model.accuracy(*self._held_out))

    def _save(self) -> None:
        with self._run.span("checkpoint_save"):
            self._model.save(self._checkpoint)
        self._run.checkpoint_committed()


def len_first(batch: tuple[Floats, Floats]) -> int:
    """Return the number of samples in a batch."""
    return len(batch[0])


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=1000, help="when to stop")
    parser.add_argument("--price", help='per GPU-hour, such as "1.50 USD/h"')
    parser.add_argument("--kill-at", type=int, help="kill itself with SIGKILL in this step")
    parser.add_argument("--hidden", type=int, default=64, help="units of a hidden layer")
    parser.add_argument("--learning-rate", type=float, default=0.3)
    parser.add_argument("--turns", type=float, default=2.5, help="the more, the harder to learn")
    parser.add_argument("--seed", type=int, default=1, help="of the first weights")
    given = parser.parse_args()
    model = Mlp(seed=given.seed, hidden=given.hidden, learning_rate=given.learning_rate)
    with outlay.run("spirals-mlp", dir=given.dir, price=given.price) as run:
        training = Training(run, model, given.dir, given.turns)
        training.train(steps=given.steps, kill_at=given.kill_at)


if __name__ == "__main__":
    main()
