"""Parts of one's own, chosen by `class_path` as a user's are (docs/parts.md)."""
