"""The modules that command lines name: `python -m fs.app.NAME`.  They stay where they are.

What one release starts, installs or writes down, another one meets: processes of two releases run
beside each other during an upgrade, and files that name a module outlive the release that wrote
them.

    main                the command `ember`, also where an installer writes it (deploy/on_host.py)
    supervisor          started by `ember up` (supervision/supervisor_link.py)
    control, mgmtd, meta, kv, storage, mountd
                        started by a supervisor, by units of systemd (deploy/layout.py), and for
                        mount(8) (local/lone_mount.py)
    mount_helper        in programs that are written into /sbin (mounts/helper_script.py)
    deploy.agent        called by an installer, maybe of another release (deploy/reach.py)
    deploy/keeper.py    a file, run where there is no systemd (deploy/installer.py)

Who runs is read from command lines, too (running.py).
"""

from typing import Final

ENTRY_PACKAGE: Final = __name__.rsplit(".", 2)[0]
"""Where they are."""
