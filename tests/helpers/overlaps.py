"""Overlap of boxes, one step at a time, for slow oracles."""


def overlap(a, b, eps=0):
    """Intersection over union of two xyxy boxes; eps: what is added to the union."""
    width = min(a[2], b[2]) - max(a[0], b[0])
    height = min(a[3], b[3]) - max(a[1], b[1])
    shared = max(width, 0) * max(height, 0)
    return shared / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - shared + eps)
