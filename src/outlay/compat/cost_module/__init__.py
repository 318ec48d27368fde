"""The classes of a cost module that users know: CostAnalyzer, GPUPriceTracker, CostOptimizer."""
