"""Results pushed out in the forms that other tools read."""
