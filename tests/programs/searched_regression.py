"""A small training that a search compares: logistic regression by stochastic gradient descent.

Arguments: the directory for its checkpoint, learning rate, weight decay, momentum. Its data are
generated, its batches follow from the number of the step: a run that was paused continues as if it
had not been. An example is a token.
"""

from __future__ import annotations

import itertools
import json
import math
import random
import sys
from dataclasses import dataclass
from pathlib import Path

FEATURES, TRAINED, VALIDATED, BATCH = 12, 384, 256, 8

Example = tuple[list[float], int]


def generated(count: int, seed: int) -> list[Example]:
    """Return examples of which some labels are wrong; later features are smaller."""
    truth = [random.Random(7).gauss(0, 1) for _ in range(FEATURES)]
    chance, found = random.Random(seed), []
    for _ in range(count):
        row = [chance.gauss(0, 1) / (1 + place) ** 0.5 for place in range(FEATURES)]
        score = sum(map(math.prod, zip(row, truth, strict=True)))
        found.append((row, int(chance.random() < _sigmoid(3 * score))))
    return found


def _sigmoid(score: float) -> float:
    return 1 / (1 + math.exp(-max(-30.0, min(30.0, score))))


@dataclass
class Model:
    """Weights and what momentum keeps of earlier steps."""

    weights: list[float]
    speed: list[float]

    def predict(self, row: list[float]) -> float:
        """Return the probability of label 1."""
        return _sigmoid(sum(map(math.prod, zip(row, self.weights, strict=True))))

    def learn(self, batch: list[Example], lr: float, decay: float, momentum: float) -> None:
        """Take one step."""
        slope = [decay * weight for weight in self.weights]
        for row, label in batch:
            error = (self.predict(row) - label) / len(batch)
            slope = [one + error * value for one, value in zip(slope, row, strict=True)]
        self.speed = [momentum * v - lr * s for v, s in zip(self.speed, slope, strict=True)]
        self.weights = [w + v for w, v in zip(self.weights, self.speed, strict=True)]

    def loss(self, examples: list[Example]) -> float:
        """Return the mean cross-entropy."""
        right = [self.predict(row) if label else 1 - self.predict(row) for row, label in examples]
        return -sum(math.log(max(p, 1e-12)) for p in right) / len(examples)


def batch_at(step: int, examples: list[Example]) -> list[Example]:
    """Return the batch of a step."""
    return [examples[(step * BATCH + place) % len(examples)] for place in range(BATCH)]


def main() -> None:
    """Train until the budget is used up; save, and report the loss on other examples."""
    import outlay

    saved = Path(sys.argv[1]) / "model.json"
    lr, decay, momentum = map(float, sys.argv[2:5])
    model = Model([0.0] * FEATURES, [0.0] * FEATURES)
    with outlay.run("regression") as run:
        if run.resume_step:
            kept = json.loads(saved.read_text())
            assert kept["steps"] == run.resume_step
            model = Model(kept["weights"], kept["speed"])
        examples, done = generated(TRAINED, 1), run.resume_step
        for step in run.steps(itertools.count(run.resume_step), tokens=BATCH):
            model.learn(batch_at(step, examples), lr, decay, momentum)
            done = step + 1
        about = {"steps": done, "weights": model.weights, "speed": model.speed}
        saved.write_text(json.dumps(about))
        run.checkpoint_committed(done - 1)
        run.metric("val_loss", model.loss(generated(VALIDATED, 2)), done - 1)


if __name__ == "__main__":
    main()
