"""Read in bulk: stored blocks become Arrow blocks, tables and Datasets."""
