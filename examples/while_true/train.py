"""A line through noisy points: accumulated gradients, evaluation, checkpoints, resumption."""

import json
import time
from pathlib import Path

import numpy as np

import outlay

out = Path("runs/while_true")
eval_every, accumulation, batch, length, max_iters = 10, 4, 32, 8, 1000
tokens_per_iter = accumulation * batch * length

chance = np.random.default_rng(0)
truth = chance.normal(size=length)
weights, iter_num = np.zeros(length), 0
train_ns = eval_ns = 0
trained = 0


def get_batch():
    """Return points and what was measured at them."""
    points = chance.normal(size=(batch, length))
    return points, points @ truth + chance.normal(size=batch) / 10


def save():
    """Write a checkpoint."""
    out.mkdir(parents=True, exist_ok=True)
    np.savez(out / "new.npz", weights=weights, iter_num=iter_num)
    (out / "new.npz").replace(out / "checkpoint.npz")
    run.checkpoint_committed(iter_num - 1)


if (out / "checkpoint.npz").exists():
    kept = np.load(out / "checkpoint.npz")
    weights, iter_num = kept["weights"], int(kept["iter_num"])
run = outlay.run("line", dir=out, price="1.50 USD/h", budget="iso_tokens=35k")
run.on_stop(save)

began = time.perf_counter_ns()
while run.may_step(tokens=tokens_per_iter):
    if iter_num % eval_every == 0 and iter_num > 0:
        run.phase("evaluation")
        t0 = time.perf_counter_ns()
        points, values = get_batch()
        print(f"iter {iter_num}: loss {np.mean((points @ weights - values) ** 2):.4f}")
        save()
        eval_ns += time.perf_counter_ns() - t0
    if iter_num >= max_iters:
        break
    run.begin_step()
    t0 = time.perf_counter_ns()
    gradient = np.zeros(length)
    for _ in range(accumulation):
        points, values = get_batch()
        gradient += points.T @ (points @ weights - values) / batch
    weights -= 0.1 * gradient / accumulation
    iter_num += 1
    trained += tokens_per_iter
    train_ns += time.perf_counter_ns() - t0
    run.end_step(tokens=tokens_per_iter)
loop_ns = time.perf_counter_ns() - began
counted = {"iters": iter_num, "tokens": trained}
print(json.dumps(counted | {"train_ns": train_ns, "eval_ns": eval_ns, "loop_ns": loop_ns}))
