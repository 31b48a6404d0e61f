"""A server of detections, to copy (docs/deploy.md)."""
