"""Rules in ``outlay.toml``, what they are judged by, and who is told; each alert once."""
