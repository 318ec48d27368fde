"""Gradient descent on a parabola, without end."""

import sys

options = dict(word.removeprefix("--").split("=", 1) for word in sys.argv[1:])
rate, x = float(options["lr"]), 10.0
while True:
    x -= rate * 2 * x
    print(f"loss {x * x:.3g}", flush=True)
