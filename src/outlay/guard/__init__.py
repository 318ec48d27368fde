"""The spend guard: what may be launched, what is set aside for it, and what it really cost.

Policy is pure; the spend log is the truth; everything shown is folded from it. Nothing here talks
to a network or knows prices: rates and vendor commands are handed in.
"""
