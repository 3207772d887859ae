"""The mount daemon's side of the batch interface; see specs/batch.md."""
