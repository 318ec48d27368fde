"""The one keeper of processes: what a command starts is found and ended, wherever it hides."""
