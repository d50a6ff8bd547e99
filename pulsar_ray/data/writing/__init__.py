"""Write in bulk: parts of a frame or Dataset, sent to a topic under names."""
