"""Jobs that take care of themselves on their node, and what follows them from here."""
