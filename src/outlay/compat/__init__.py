"""Drop-ins for interfaces that users know. They translate; nothing here computes a figure."""
