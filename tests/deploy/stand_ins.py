"""Images that stand in for official ones, where there is no registry, and the wheels that images are built from.

Each has the name, the paths and the user of the image that it stands for, so that deploy/ is used unchanged. Grafana's
is no Grafana: it looks whether what Grafana needs is there.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.deploy.engine import BRIDGE, Engine, cache_folder, run
from tests.deploy.wheels import CHECKOUT, TORCH

HERE = Path(__file__).parent
LOCKS = sorted((CHECKOUT / "deploy" / "constraints").glob("image-*.txt"))
DEBIAN = "shoal-test/debian:1"
PORT = 8000  # of the wheels

PYTHON = f"""\
FROM {DEBIAN}
LABEL stand-in="Debian's Python, for python:3.11-slim; pip finds what the tests serve"
RUN ln -s /usr/bin/python3 /usr/local/bin/python
COPY pip.conf /etc/pip.conf
"""
PROMETHEUS = f"""\
FROM {DEBIAN}
LABEL stand-in="Debian's Prometheus, for prom/prometheus"
RUN install -d -o 65534 -g 65534 /prometheus
COPY prometheus promtool /bin/
USER 65534:65534
WORKDIR /prometheus
ENTRYPOINT ["/bin/prometheus"]
"""
GRAFANA = f"""\
FROM {DEBIAN}
LABEL stand-in="no Grafana, but a server at its port, for grafana/grafana-oss"
RUN install -d -o 472 -g 0 /var/lib/grafana && ln -s /usr/local/bin/wget.py /usr/bin/wget
COPY grafana.py wget.py /usr/local/bin/
RUN chmod 0755 /usr/local/bin/grafana.py /usr/local/bin/wget.py
USER 472:0
ENTRYPOINT ["/usr/local/bin/grafana.py"]
"""
GRAFANA_SERVER = """\
#!/usr/bin/python3
import http.server, json, os, pathlib, signal, sys, threading

def facts():
    password = pathlib.Path(os.environ["GF_SECURITY_ADMIN_PASSWORD__FILE"]).read_text()
    folders = [pathlib.Path("/etc/grafana/provisioning"), pathlib.Path("/var/lib/grafana/dashboards")]
    pathlib.Path("/var/lib/grafana/written").write_text("yes")
    return {"password_length": len(password), "folders": [str(folder) for folder in folders if folder.is_dir()],
            "files": sorted(str(file) for folder in folders for file in folder.rglob("*") if file.is_file())}

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = json.dumps({"database": "ok"} if self.path == "/api/health" else facts()).encode()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body)
    do_HEAD = do_GET
    def log_message(self, *_words):
        pass

server = http.server.ThreadingHTTPServer(("", 3000), Handler)
signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown).start())
facts()
server.serve_forever()
"""
WGET = """\
#!/usr/bin/python3
import sys, urllib.request
urllib.request.urlopen(sys.argv[-1], timeout=5)
"""


def make(engine: Engine, root_tar: Path, folder: Path, *, prometheus: str, grafana: str) -> None:
    """Make all of them.

    Args:
        engine: that gets them.
        root_tar: a Debian root file system.
        folder: for the contexts of their builds.
        prometheus: the tag of prom/prometheus that is asked for.
        grafana: the tag of grafana/grafana-oss that is asked for.
    """
    engine.docker("import", str(root_tar), DEBIAN, timeout_s=300)
    address = engine.serve(locked_wheels(), PORT)
    pip = f"[global]\nno-index = true\nfind-links = {address}\ntrusted-host = {BRIDGE}\n"
    for tag, dockerfile, files in (
        ("python:3.11-slim", PYTHON, {"pip.conf": pip}),
        (f"prom/prometheus:{prometheus}", PROMETHEUS, {}),
        (f"grafana/grafana-oss:{grafana}", GRAFANA, {"grafana.py": GRAFANA_SERVER, "wget.py": WGET}),
    ):
        context = folder / re.sub(r"\W", "-", tag)
        context.mkdir(parents=True)
        (context / "Dockerfile").write_text(dockerfile)
        for name, text in files.items():
            (context / name).write_text(text)
        if dockerfile is PROMETHEUS:
            for program in ("prometheus", "promtool"):
                shutil.copy(str(shutil.which(program)), context / program)
        engine.build(tag, context)
        shutil.rmtree(context)


def locked_wheels() -> Path:
    """A folder with the wheels that the images are locked to, kept between runs as long as the locks stay."""
    said = hashlib.sha256(b"".join(lock.read_bytes() for lock in LOCKS) + TORCH.encode()).hexdigest()[:12]
    house = cache_folder() / f"wheels-images-{said}"
    if not house.exists():
        aside = house.with_name(f"{house.name}.aside")
        shutil.rmtree(aside, ignore_errors=True)
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(aside)]
        command += ["--only-binary", ":all:", "--python-version", "3.11"]
        for lock in LOCKS:
            subprocess.run([*command, "--require-hashes", "-r", str(lock)], check=True, timeout=900)
        subprocess.run([*command, TORCH], check=True, timeout=900)
        for older in cache_folder().glob("wheels-images-*"):
            if older != aside:
                shutil.rmtree(older)
        aside.rename(house)
    return house


def debian_root() -> Path:
    """The root file system that all of them are made from; made if this machine has none yet."""
    return Path(run("bash", str(HERE / "bootstrap.sh"), timeout_s=900).strip().splitlines()[-1])
