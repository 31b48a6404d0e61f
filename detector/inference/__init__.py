"""Using a trained detector: other ways to look at an image, and what becomes of the detections."""
