"""``outlay prices``."""
