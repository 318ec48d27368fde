"""A small real training, and what is needed to show all of outlay on it in a minute."""
