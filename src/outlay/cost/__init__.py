"""What a run cost, what a model costs, what the next runs will cost, and who pays."""
