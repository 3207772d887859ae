"""The kv process: the embedded key-value store,
served to the managers and metadata services of a cluster.

Whoever uses it has `engine = "remote"` and this process's address in [kv].
"""

import trio

from ..kv.remote_server import KvService
from ..schema.config import check_message_size
from .process.compose import Process, main
from .stores.kept_store import check_there, note_there
from .stores.store import boot_number, open_local_store


async def run(process: Process) -> None:
    """Serve the store in kv.path until asked to stop."""
    check_message_size(process.config)
    check_there(process.config)
    async with open_local_store(process) as engine:
        service = KvService(engine, process.runtime, boot=boot_number())
        process.sources.append(service.say)
        server = process.server({"Kv": service})
        server.on_disconnect = service.forget
        async with trio.open_nursery() as nursery:
            nursery.start_soon(note_there, process.config, process.runtime)
            await nursery.start(service.run)
            await nursery.start(server.run, process.runtime.network, process.config.process.listen)
            process.ready()
            await process.stopping.wait()
            nursery.cancel_scope.cancel()


if __name__ == "__main__":
    main(run)
