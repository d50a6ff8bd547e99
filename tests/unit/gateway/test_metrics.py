"""Metrics of all nodes at one address."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

from tests.unit.gateway.conftest import serving

NODE = """# HELP ray_pulsar_ray_messages_in_total Messages.
# TYPE ray_pulsar_ray_messages_in_total counter
ray_pulsar_ray_messages_in_total{{topic="t",NodeAddress="{0}"}} 5.0
# HELP ray_node_cpu Not the broker's.
# TYPE ray_node_cpu gauge
ray_node_cpu{{NodeAddress="{0}"}} 1.0
# HELP ray_pulsar_ray_seconds Times.
# TYPE ray_pulsar_ray_seconds histogram
ray_pulsar_ray_seconds_bucket{{le="+Inf",NodeAddress="{0}"}} 1.0
ray_pulsar_ray_seconds_count{{NodeAddress="{0}"}} 1.0
"""


@contextmanager
def exporting(text: str) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/metrics"
    server.shutdown()
    thread.join()
    server.server_close()


def test_series_of_one_name_stand_in_a_row_for_all_nodes(tmp_path: Path) -> None:
    with ExitStack() as stack:
        urls = [stack.enter_context(exporting(NODE.format(node))) for node in "ab"]
        gone = "http://127.0.0.1:9/metrics"
        asked = [*urls, gone]
        call = stack.enter_context(serving(tmp_path, exporters=lambda: asked))
        for path in ("/metrics", "/metrics/"):
            answer = call("GET", path)
            assert answer.status == 200
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            assert answer.body.decode().splitlines() == [
                "# HELP ray_pulsar_ray_messages_in_total Messages.",
                "# TYPE ray_pulsar_ray_messages_in_total counter",
                'ray_pulsar_ray_messages_in_total{topic="t",NodeAddress="a"} 5.0',
                'ray_pulsar_ray_messages_in_total{topic="t",NodeAddress="b"} 5.0',
                "# HELP ray_pulsar_ray_seconds Times.",
                "# TYPE ray_pulsar_ray_seconds histogram",
                'ray_pulsar_ray_seconds_bucket{le="+Inf",NodeAddress="a"} 1.0',
                'ray_pulsar_ray_seconds_count{NodeAddress="a"} 1.0',
                'ray_pulsar_ray_seconds_bucket{le="+Inf",NodeAddress="b"} 1.0',
                'ray_pulsar_ray_seconds_count{NodeAddress="b"} 1.0',
            ]
        asked[:] = [gone]
        assert call("GET", "/metrics").status == 503
        assert gone in call("GET", "/metrics").json["reason"]
        asked[:] = []
        assert call("GET", "/metrics").status == 501
