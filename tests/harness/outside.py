"""A network of our own that stands for "outside" in tests: a namespace with a web and a DNS server.

One address is public (TEST-NET-3, RFC 5737); the others lie in networks a sandbox must never reach. All exist only
inside the namespace, so that no packet of a test can leave this machine, whatever the policy under test lets through.
"""

import http.server
import socket
import socketserver
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness.shell import CommandFailed, run, text

HOST_NAME = "outside.test"
HTTP_PORT = 80

CLOSED_NETS = ("10.{}.7.0", "172.31.{}.0", "192.168.{}.0", "100.64.{}.0", "169.254.{}.0")
"""Networks of private use (RFC 1918), of carriers (RFC 6598) and of one link (RFC 3927)."""


def _used(net: str) -> bool:
    return net in text(["ip", "-4", "route", "show", "table", "all"])


def _neighbour(net: str, offset: int) -> str:
    head, _, last = net.rpartition(".")
    return f"{head}.{int(last) + offset}"


class Outside:
    """The namespace and its servers; a context manager that removes both."""

    def __init__(self, name: str) -> None:
        self.name = name
        for index in range(31):
            nets = [f"203.0.113.{8 * index}", *(net.format(200 + index) for net in CLOSED_NETS)]
            if not any(_used(f"{net}/29") for net in nets):
                break
        else:
            raise RuntimeError("no free test network is left: remove namespaces of earlier runs (ip netns)")
        hosts, inner = ([_neighbour(net, offset) for net in nets] for offset in (1, 2))
        self.public, *self.closed = inner
        self.dns = self.public
        self._process = None
        inside = ["ip", "-n", name]
        try:
            run(["ip", "netns", "add", name])
            run(["ip", "link", "add", f"{name}h", "type", "veth", "peer", "name", "outside0", "netns", name])
            for host, address in zip(hosts, inner, strict=True):
                run(["ip", "addr", "add", f"{host}/29", "dev", f"{name}h"])
                run([*inside, "addr", "add", f"{address}/29", "dev", "outside0"])
            run(["ip", "link", "set", f"{name}h", "up"])
            run([*inside, "link", "set", "outside0", "up"])
            run([*inside, "link", "set", "lo", "up"])
            # Answers to sandboxes whose address is not translated would otherwise have no way back, and a test that
            # expects a refusal would pass for that reason alone.
            run([*inside, "route", "add", "default", "via", hosts[0]])
            self._serve()
        except BaseException:
            self.close()
            raise

    def _serve(self) -> None:
        server = ["ip", "netns", "exec", self.name, sys.executable, str(Path(__file__)), self.public]
        self._process = subprocess.Popen(
            server, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True
        )
        line = self._process.stdout.readline() if self._process.stdout else b""
        if line != b"ready\n":
            raise CommandFailed("the servers of the test network did not start")

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(timeout=10)
        run(["ip", "link", "delete", f"{self.name}h"], check=False)
        run(["ip", "netns", "delete", self.name], check=False)

    def __enter__(self) -> "Outside":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Hello(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = f"outside, asked by {self.client_address[0]}\n".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Silent."""


class _Dns(socketserver.BaseRequestHandler):
    """Answers A of `HOST_NAME`; no data for other types, NXDOMAIN for other names."""

    def handle(self) -> None:
        query, reply_socket = self.request
        if len(query) < 17:
            return
        labels, position = [], 12
        while position < len(query) and query[position]:
            length = query[position]
            labels.append(query[position + 1 : position + 1 + length].decode(errors="replace"))
            position += 1 + length
        question = query[12 : position + 5]
        known = ".".join(labels).lower() == HOST_NAME
        answer = b""
        if known and question[-4:] == b"\0\1\0\1":
            answer = b"\xc0\x0c\0\1\0\1" + struct.pack(">IH", 60, 4) + socket.inet_aton(self.server.address_answered)
        flags = 0x8580 if known else 0x8583
        counts = struct.pack(">HHHHH", flags, 1, 1 if answer else 0, 0, 0)
        reply_socket.sendto(query[:2] + counts + question + answer, self.client_address)


def _main(public: str) -> None:
    web = http.server.ThreadingHTTPServer(("0.0.0.0", HTTP_PORT), _Hello)
    dns = socketserver.ThreadingUDPServer(("0.0.0.0", 53), _Dns)
    dns.address_answered = public
    threading.Thread(target=web.serve_forever, daemon=True).start()
    threading.Thread(target=dns.serve_forever, daemon=True).start()
    print("ready", flush=True)
    while True:
        time.sleep(3600)


if __name__ == "__main__":
    _main(sys.argv[1])
