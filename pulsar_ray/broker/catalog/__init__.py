"""The cluster's catalog: topics, partitions, their numbers and stores."""
