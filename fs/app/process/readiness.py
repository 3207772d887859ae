"""How a process tells whoever started it that it serves: a line through a pipe.

Standard library only.

The line says where its metrics are, empty: nowhere.  An end of file
without it: the process died before.
"""

import os
from typing import Final

READY_VARIABLE: Final = "EMBERFS_READY_FD"
"""Environment variable with the descriptor of the pipe;
fs/app/deploy/keeper.py, which stands alone, has it, too.
"""


def tell_ready(metrics_address: str) -> None:
    """Tell it, once; nobody: if nobody asked."""
    descriptor = os.environ.pop(READY_VARIABLE, "")
    if descriptor:
        os.write(int(descriptor), f"{metrics_address}\n".encode())
        os.close(int(descriptor))
