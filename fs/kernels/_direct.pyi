from collections.abc import Sequence
from typing import Any

from .direct_twin import Place

INTERFACE: int

def new_line(bytes_max: int, /) -> Any: ...
def read_places(places: Sequence[Place], line: Any = None, /) -> bool: ...
