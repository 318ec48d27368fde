"""Where offers come from: vendors, catalogs that others publish, and prices stated by hand.

Each source turns what it reads into offers and findings; screening, storing and ranking happen
elsewhere.
"""
