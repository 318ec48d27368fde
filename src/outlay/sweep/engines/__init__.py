"""What starts and ends runs: one protocol, and engines that keep it."""
