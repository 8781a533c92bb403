"""One replica: how much fits into its memory, how long a step takes, how it batches."""
