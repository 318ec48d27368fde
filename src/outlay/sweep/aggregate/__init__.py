"""The runs of a sweep side by side: what each got for its budget."""
