"""What to change: recommendations computed from measured facts, with their evidence."""
