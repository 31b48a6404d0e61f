"""Custom parts to copy or to choose by `class_path` (docs/parts.md)."""
