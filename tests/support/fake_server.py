"""A program that plays a server for the supervisor: ``fake_server.py EVENTS SCRIPT COUNTER``.

EVENTS is a datagram socket that is told what happens. SCRIPT is a JSON list of acts, one for each start, the last
one for all further starts; the file COUNTER counts the starts. Acts are objects with any of:
``exit``: end at once with this code; ``die``: end by this signal; ``ignore_term``: take SIGTERM and go on;
``tie``: end with the supervisor; ``slow_end_secs``: take so long to end; ``listen``: answer /health on this port with
``status``; ``watchdog``: what the watchdog's route answers.
Without exit or die it runs until SIGTERM or SIGINT, and ends with ``end_code``, 0 by default.
"""

import http.server
import json
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path


def main() -> int:
    events, script, counter = sys.argv[1:4]
    number = int(Path(counter).read_text() or 0) if Path(counter).exists() else 0
    Path(counter).write_text(str(number + 1))
    acts = json.loads(script)
    act = acts[min(number, len(acts) - 1)]

    def tell(event: str) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.connect(events)
            sock.send(event.encode())

    done: list[bool] = []  # no Event: its lock may be held by what the signal interrupts

    def take(number: int, _: object) -> None:
        tell(f"signal {signal.Signals(number).name}")
        if not act.get("ignore_term"):
            done.append(True)

    signal.signal(signal.SIGTERM, take)
    signal.signal(signal.SIGINT, take)
    if act.get("tie"):
        from rustedvino.supervisor import tie_to_supervisor

        assert tie_to_supervisor()
    if "listen" in act:
        serve(act)
    Path(f"{counter}.{os.getpid()}").touch()
    tell(f"start {os.getpid()} {' '.join(sys.argv[4:])}".rstrip())
    if "exit" in act:
        return int(act["exit"])
    if "die" in act:
        os.kill(os.getpid(), act["die"])
    while not done:
        time.sleep(0.01)
    time.sleep(act.get("slow_end_secs", 0))
    return int(act.get("end_code", 0))


def serve(act: dict[str, object]) -> None:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(act.get("watchdog") if "watchdog" in self.path else {"status": "ok"}).encode()
            self.send_response(int(str(act.get("status", 200))))
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", int(str(act["listen"]))), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()


if __name__ == "__main__":
    sys.exit(main())
