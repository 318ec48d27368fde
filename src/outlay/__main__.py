"""``python -m outlay`` is the ``outlay`` command."""

from outlay.cli import main

main()
