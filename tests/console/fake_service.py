"""Stand-ins for the services, for tests of the launcher alone: they start in no time and do as they are told.

Each is a real process with a real heartbeat in Redis and real health routes. What a service shall do is
written into a folder named by the environment: `<service>.exit` holds a status to end with at once,
`learner.finish` one to end with when the file appears. Every one writes its end to `ends`.
"""

import os
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

from pydantic import ConfigDict

from shared.config import Settings, Table, parse_command_line
from shared.stream import Streams, connect
from shared.telemetry import set_up_logging
from shared.workers import Heartbeat, worker_id


class AnyTable(Table):
    model_config = ConfigDict(extra="allow", frozen=True)
    host: str = "127.0.0.1"
    port: int = 0
    ranks: int = 1
    steps: int = 1


class FakeSettings(Settings):
    rollout: AnyTable = AnyTable()
    reward: AnyTable = AnyTable()
    learner: AnyTable = AnyTable()


class Healthy(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        return


def run(service: str) -> None:
    settings = parse_command_line(FakeSettings, service)
    folder = Path(os.environ["FAKE_SERVICES"])
    log = set_up_logging(service)
    assert len(os.environ["ROLLSTREAM_TOKEN"]) >= 16
    told_to_end = folder / f"{service}.exit"
    if told_to_end.exists():
        print("boom: the last line before the end")
        raise SystemExit(int(told_to_end.read_text()))
    server = HTTPServer(("127.0.0.1", getattr(settings, service).port), Healthy)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with connect(settings.redis.url) as client:
        url = f"http://127.0.0.1:{server.server_port}"
        heartbeat = Heartbeat(
            Streams(client, settings.run.name), service, worker_id(service), lambda: {"url": url}
        )
        heartbeat.start()
        (folder / f"{service}.pid").write_text(f"{os.getpid()}\n")
        log.info("at work")
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        finish = folder / f"{service}.finish"
        try:
            while not (finish.exists() and finish.read_text()):
                time.sleep(0.02)
            raise SystemExit(int(finish.read_text()))
        finally:
            heartbeat.stop()
            with (folder / "ends").open("a") as ends:
                ends.write(f"{service}\n")
