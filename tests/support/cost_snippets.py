"""The documented snippets of cost analysis; only imports and placeholders are changed."""

from __future__ import annotations

QUICK_START = """
tracker = GPUPriceTracker()
prices = tracker.fetch_vastai_prices()
for price in prices:
    tracker.track_price(price)

# Analyze training costs
analyzer = CostAnalyzer()
metrics = TrainingMetrics(
    run_id="my_run_001",
    model_name="bert-base",
    num_samples=100000,
    num_epochs=3,
    batch_size=32,
    learning_rate=2e-5,
    total_duration_hours=24.5,
    gpu_name="A100",
    gpu_price_per_hour=1.50,
    test_accuracy=0.94,
    tokens_processed=50_000_000,
)
report = analyzer.analyze_training_run(metrics)
print(f"Cost: ${report.total_cost:.2f}")

# Set budget and check status
analyzer.set_budget("bert-base", 1000.0)
alert = analyzer.check_budget("bert-base", report.total_cost)

# Get optimization recommendations
optimizer = CostOptimizer()
rec = optimizer.recommend_batch_size(
    current_batch_size=32,
    gpu_vram_gb=40,
    model_param_count=110_000_000,
    current_throughput=100,
    gpu_price_per_hour=1.50,
    epoch_hours=24.5/3,
)
"""

INTEGRATION = """
analyzer = CostAnalyzer()
analyzer.set_budget("my_model", 1000.0)

start = time.time()
# ... training code ...
duration = (time.time() - start) / 3600

metrics = TrainingMetrics(
    run_id="run_001",
    model_name="my_model",
    num_samples=len(train_dataset),
    num_epochs=3,
    batch_size=32,
    learning_rate=2e-5,
    total_duration_hours=duration,
    gpu_name="A100",
    gpu_price_per_hour=1.50,
    test_accuracy=accuracy,
)

report = analyzer.analyze_training_run(metrics)
print(f"Training cost: ${report.total_cost:.2f}")

alert = analyzer.check_budget("my_model", report.total_cost)
if alert:
    print(f"Budget alert: {alert.message}")
"""


def run(snippet: str, **placeholders: object) -> dict[str, object]:
    """Run a snippet and return its names."""
    names: dict[str, object] = dict(placeholders)
    imports = "import time\nfrom outlay import CostAnalyzer, CostOptimizer, GPUPriceTracker\n"
    exec(imports + "from outlay import GPUPrice, TrainingMetrics\n" + snippet, names)
    return names
