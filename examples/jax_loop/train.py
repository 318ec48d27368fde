"""A small regression in JAX: a compiled update in a plain loop, a printed loss, an end."""

import time

import jax
import jax.numpy as jnp
import numpy as np

import outlay

batch, features, max_steps = 64, 16, 1000
chance = np.random.default_rng(0)
truth = chance.normal(size=features).astype(np.float32)


def batches():
    """Yield points and what was measured at them."""
    for _ in range(max_steps):
        points = chance.normal(size=(batch, features)).astype(np.float32)
        yield points, points @ truth


def loss_of(params, points, values):
    """Return the mean squared error of a two-layer network."""
    hidden = jnp.tanh(points @ params["in"])
    return jnp.mean((hidden @ params["out"] - values) ** 2)


@jax.jit
def update(params, points, values):
    """Return the parameters after a step of gradient descent, and the loss before it."""
    loss, gradients = jax.value_and_grad(loss_of)(params, points, values)
    return jax.tree.map(lambda p, g: p - 0.01 * g, params, gradients), loss


keys = jax.random.split(jax.random.key(0))
params = {
    "in": jax.random.normal(keys[0], (features, 64)) / 4,
    "out": jax.random.normal(keys[1], (64,)) / 8,
}
run = outlay.run("regression", dir="runs/jax", price="1.50 USD/h", budget="iso_tokens=10k")
steps, train_ns, began = 0, 0, time.perf_counter_ns()
for points, values in run.steps(batches(), tokens=batch):
    t0 = time.perf_counter_ns()
    params, loss = update(params, points, values)
    loss.block_until_ready()
    train_ns += time.perf_counter_ns() - t0
    steps += 1
    if steps % 50 == 0:
        print(f"step {steps}: loss {loss:.4f}")
loop_ns = time.perf_counter_ns() - began
run.close()
print(f"stopped after {steps} steps: train {train_ns} ns, loop {loop_ns} ns")
