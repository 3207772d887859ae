"""When entries of a ring become a batch.  Pure."""


def batch_count(pending: int, depth: int, *, is_overdue: bool) -> int:
    """Return how many of the `pending` entries, the oldest,
    are to be done now as one batch; 0: none yet.

    Args:
        pending: entries that were handed in and not taken yet.
        depth: of the ring; n > 0: batches of exactly n; 0: whatever is there; -n: at
            most n, fewer when overdue.
        is_overdue: the oldest has waited for the ring's timeout.
    """
    if depth == 0:
        return pending
    wanted = abs(depth)
    if pending >= wanted:
        return wanted
    return pending if depth < 0 and is_overdue else 0
