"""Drop-in classes of a cost module: CostAnalyzer, GPUPriceTracker, CostOptimizer."""
