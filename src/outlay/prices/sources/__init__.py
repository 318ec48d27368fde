"""Sources of offers: vendors' APIs, published catalogs, and manually set prices."""
