"""``outlay prices``, ``outlay rates`` and ``outlay survey``."""
