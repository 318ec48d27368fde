"""A small real training: a NumPy MLP that learns two interleaved spirals, recorded by outlay.

Run it again in the same directory and it goes on from its last checkpoint:

    python examples/mlp.py --dir runs/spirals --steps 600
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


def spirals(count: int, seed: int) -> tuple[Floats, Floats]:
    """Return points on two interleaved spirals and which of the two each is on (0 or 1)."""
    random = np.random.default_rng(seed)
    label = random.integers(0, 2, count)
    radius = np.sqrt(random.uniform(0.05, 1, count))
    angle = 2.5 * np.pi * radius + np.pi * label
    points = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
    return points + random.normal(0, 0.02, points.shape), label.astype(float)


def batches(points: Floats, labels: Floats, seed: int) -> Iterator[tuple[Floats, Floats]]:
    """Yield random batches without end."""
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
        """Return everything that is learned."""
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
        gradients_w, gradients_b = [], []
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
        """Return the share of points that are put on the right spiral."""
        return float(((self.forward(points)[-1][:, 0] > 0.5) == (labels > 0.5)).mean())

    def save(self, path: Path) -> None:
        """Write a checkpoint; a reader sees the old one or the new one, never half of it."""
        draft = path.with_suffix(".draft.npz")
        np.savez(draft, *self.parameters(), *self.velocity)
        draft.replace(path)

    def load(self, path: Path) -> None:
        """Go back to a checkpoint."""
        with np.load(path) as saved:
            arrays = [saved[name] for name in saved.files]
        for current, stored in zip([*self.parameters(), *self.velocity], arrays, strict=True):
            current[...] = stored


def train(
    directory: Path, model: Mlp, *, steps: int, price: str | None, kill_at: int | None
) -> None:
    """Train for ``steps`` steps in all, going on from the checkpoint in ``directory``.

    Args:
        directory: Where the run log and the checkpoint go.
        model: What to train.
        steps: When to stop.
        price: Per GPU-hour; None for no price.
        kill_at: Die of SIGKILL in this step, to show what that costs.
    """
    checkpoint = directory / "checkpoint.npz"
    with outlay.run("spirals-mlp", dir=directory, price=price) as run:
        with run.span("training_prep"):
            points, labels = spirals(20_000, seed=2)
            held_out = spirals(4_000, seed=3)
        if run.resume_step:
            with run.span("checkpoint_restore"):
                model.load(checkpoint)
        for batch in run.steps(batches(points, labels, seed=run.resume_step), samples=len_first):
            loss = model.step(*batch)
            if run.step_number == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            if (run.step_number + 1) % CHECKPOINT_EVERY == 0:
                with run.span("evaluation"):
                    run.metric("accuracy", model.accuracy(*held_out))
                    run.metric("loss", loss)
                with run.span("checkpoint_save"):
                    model.save(checkpoint)
                run.checkpoint_committed()
            if run.step_number + 1 == steps:
                break


def len_first(batch: tuple[Floats, Floats]) -> int:
    """Return how many samples a batch has."""
    return len(batch[0])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--price", help='per GPU-hour, such as "1.50 USD/h"')
    parser.add_argument("--kill-at", type=int, help="die of SIGKILL in this step")
    parser.add_argument("--hidden", type=int, default=64, help="units of a hidden layer")
    parser.add_argument("--learning-rate", type=float, default=0.3)
    parser.add_argument("--seed", type=int, default=1, help="of the first weights")
    given = parser.parse_args()
    mlp = Mlp(seed=given.seed, hidden=given.hidden, learning_rate=given.learning_rate)
    train(given.dir, mlp, steps=given.steps, price=given.price, kill_at=given.kill_at)
