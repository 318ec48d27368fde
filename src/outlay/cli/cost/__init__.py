"""``outlay cost`` and ``outlay cost-report``."""
