"""One run, joined: recorder, price, budget and guard behind ``outlay.run()``."""
