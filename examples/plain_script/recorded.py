"""Gradient descent on a parabola, until the budget ends."""

import sys

import outlay

options = dict(word.removeprefix("--").split("=", 1) for word in sys.argv[1:])
rate, x = float(options["lr"]), 10.0
with outlay.run("parabola") as run:
    while True:
        if run.should_stop():
            break
        with run.step(samples=1):
            x -= rate * 2 * x
    run.metric("loss", x * x)
