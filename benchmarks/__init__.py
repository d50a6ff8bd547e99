"""What pulsar_ray costs, against the floor of the same machine in the same run: `python -m benchmarks`."""
