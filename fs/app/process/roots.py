"""The composition roots: which settings each of them keeps."""

from collections.abc import Mapping
from typing import Final

from ...node.kept_settings import KeptSettings
from ...runtime.ports import Runtime
from ...runtime.settings import Settings
from ...schema.config import ProcessConfig
from ...schema.routing import Role

ROLES: Final[Mapping[str, tuple[Role, ...]]] = {
    "control": (Role.MGMTD, Role.META),
    "mgmtd": (Role.MGMTD,),
    "meta": (Role.META,),
    "storage": (Role.STORAGE,),
    "mountd": (Role.CLIENT,),
}
"""By composition root."""


def kept_settings(root_name: str, config: ProcessConfig, runtime: Runtime) -> KeptSettings:
    """Return what keeps the settings of a process, by the name of its composition root."""
    settings = Settings(config, ROLES.get(root_name, ()))
    if not settings.roles:
        settings.start()
    return KeptSettings(settings, runtime, directory=config.process.directory)
