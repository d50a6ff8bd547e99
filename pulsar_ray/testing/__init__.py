"""What a test of code on top of pulsar_ray needs: clocks, stub clusters, faults."""
