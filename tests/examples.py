"""How many examples a property test tries that wants more than others."""

from hypothesis import settings

FEW_SHARE = 10


def many(count: int) -> int:
    """Return `count`; in the fast part, as of all property tests, a few of them: the first tenth."""
    is_few = settings.get_current_profile_name() == "few"
    return count // FEW_SHARE if is_few else count
