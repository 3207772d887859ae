from collections.abc import Sequence

from .direct_twin import Place

INTERFACE: int

def read_places(places: Sequence[Place], /) -> bool: ...
