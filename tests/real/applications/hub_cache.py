"""The cache of huggingface_hub: blobs, symbolic links to them and locks,
filled by both mounts at once from a server in this process.
"""

import hashlib
import http.server
import os
import subprocess
import sys
import threading
from pathlib import Path

HERE, OTHER = Path(sys.argv[1]), Path(sys.argv[2])
COMMIT = "0123456789abcdef0123456789abcdef01234567"
FILES = {f"part-{i}.bin": bytes([i]) * (1 << 20) for i in range(6)} | {"sub/config.json": b"{}"}
FETCH = """
import sys
from huggingface_hub import snapshot_download
print(snapshot_download("team/model", cache_dir=sys.argv[1], max_workers=2))
"""
fetched = []


class Hub(http.server.BaseHTTPRequestHandler):
    """What a client asks: the list of a model's files, and each of them."""

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        if self.path.startswith("/api/models/"):
            names = ",".join(f'{{"rfilename": "{name}"}}' for name in FILES)
            body = f'{{"id": "team/model", "sha": "{COMMIT}", "siblings": [{names}]}}'.encode()
        else:
            body = FILES[self.path.split(f"/{COMMIT}/")[1]]
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", f'"{hashlib.sha1(body).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)
            fetched.append(self.path)

    def log_message(self, *_):
        pass


with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
    threading.Thread(target=server.serve_forever, daemon=True).start()
    environment = os.environ | {
        "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}",
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "HF_HOME": str(HERE / "home"),
    }
    clients = [
        subprocess.Popen(
            [sys.executable, "-c", FETCH, side / "hub"],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        for side in (HERE, OTHER)
    ]
    places = [Path(client.communicate()[0].strip()) for client in clients]
    assert [client.returncode for client in clients] == [0, 0]
    server.shutdown()
for place in places:
    for name, content in FILES.items():
        assert (place / name).is_symlink()
        assert (place / name).read_bytes() == content, name
once = {path for path in fetched if COMMIT in path}
assert len([path for path in fetched if COMMIT in path]) == len(once) == len(FILES), fetched
assert not list((HERE / "hub").rglob("*.incomplete"))
