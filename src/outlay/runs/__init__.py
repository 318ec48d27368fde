"""One run, joined: recorder, price, budget and guard behind ``outlay.run()``."""

__all__ = [
    "accounting", "collect", "command_budget", "exec", "figures", "inbox", "inventory", "limit_use",
    "live", "options", "reading", "run_poller", "spending_reader",
]  # fmt: skip
