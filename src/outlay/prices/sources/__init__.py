"""Sources of offers: vendors' APIs, published catalogs, and manually set prices."""

__all__ = ["catalogs", "http", "vendors"]
