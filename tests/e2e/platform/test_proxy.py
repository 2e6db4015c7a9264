"""Ways into a sandbox: by header, by path, by host name; and what stays closed."""

import json
import socket
import time
import urllib.parse

import pytest

ENVD_PORT = 49983
WEB_PORT = 8000
UNKNOWN = "i" + "0" * 19


class Door:
    """One of the three ways to name a sandbox and a port in a request."""

    def __init__(self, node, kind: str) -> None:
        self._node, self._kind = node, kind

    def request(self, method: str, sandbox_id: str, port: int, path: str, headers=None, **options):
        headers = dict(headers or {})
        if self._kind == "header":
            headers.update({"E2b-Sandbox-Id": sandbox_id, "E2b-Sandbox-Port": str(port)})
        elif self._kind == "path":
            path = f"/proxy/{sandbox_id}/{port}{path}"
        else:
            headers["Host"] = f"{port}-{sandbox_id}.{self._node.domain}"
        return self._node.request(method, path, key=None, headers=headers, **options)


@pytest.fixture(params=["header", "path", "host"])
def door(node, request) -> Door:
    return Door(node, request.param)


def token(node, sandbox) -> str:
    return node.request("GET", f"/sandboxes/{sandbox.sandbox_id}").json()["envdAccessToken"]


@pytest.fixture(scope="module")
def web(sandbox):
    """A web server in the guest that answers with what it was asked."""
    sandbox.files.write(
        "/home/user/echo.py",
        """
import http.server, json, sys, time

class Echo(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        if self.path == "/slow":
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for _ in range(3):
                self.wfile.write(b"5\\r\\npart\\n\\r\\n")
                self.wfile.flush()
                time.sleep(0.7)
            self.wfile.write(b"0\\r\\n\\r\\n")
            return
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        answer = json.dumps({"method": self.command, "path": self.path, "body": body.decode("latin-1"),
                             "headers": {k.lower(): v for k, v in self.headers.items()}}).encode()
        self.send_response(418 if self.path == "/teapot" else 200)
        self.send_header("X-Echo", "yes")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)
    do_POST = do_PUT = do_DELETE = do_GET
    def log_message(self, *_): pass

http.server.ThreadingHTTPServer(("0.0.0.0", int(sys.argv[1])), Echo).serve_forever()
""",
    )
    sandbox.commands.run(f"python3 /home/user/echo.py {WEB_PORT} >/tmp/echo.log 2>&1", background=True, timeout=0)
    deadline = time.monotonic() + 30
    while sandbox.commands.run(f"curl -s -o /dev/null http://127.0.0.1:{WEB_PORT}/ || echo no").stdout:
        assert time.monotonic() < deadline, "the web server in the guest did not start"
        time.sleep(0.3)
    return sandbox


def test_web_server_in_the_guest_is_reached(door, web):
    answer = door.request("GET", web.sandbox_id, WEB_PORT, "/some/path?x=1&y=%20z")
    assert answer.status == 200, answer.body
    assert answer.headers["X-Echo"] == "yes"
    assert answer.json()["path"] == "/some/path?x=1&y=%20z"


def test_method_body_and_status_pass(door, web):
    answer = door.request("POST", web.sandbox_id, WEB_PORT, "/teapot", data=b"\x00\xff body")
    assert answer.status == 418
    assert (answer.json()["method"], answer.json()["body"]) == ("POST", "\x00\xff body")


def test_routes_of_the_control_plane_belong_to_the_guest_here(door, web):
    for path in ("/health", "/sandboxes", "/openapi.json"):
        assert door.request("GET", web.sandbox_id, WEB_PORT, path).json()["path"] == path


def test_the_key_does_not_reach_the_guest(node, web):
    headers = {"E2b-Sandbox-Id": web.sandbox_id, "E2b-Sandbox-Port": str(WEB_PORT)}
    seen = node.request("GET", "/", headers=headers).json()["headers"]
    assert node.api_key not in json.dumps(seen)


def test_answer_streams(node, web):
    with socket.create_connection(("127.0.0.1", node.identity.port), timeout=20) as connection:
        request = f"GET /proxy/{web.sandbox_id}/{WEB_PORT}/slow HTTP/1.1\r\nHost: {node.address}\r\n\r\n"
        connection.sendall(request.encode())
        began, first, everything = time.monotonic(), None, b""
        while b"0\r\n\r\n" not in everything:
            everything += connection.recv(65536)
            if first is None and b"part" in everything:
                first = time.monotonic() - began
        assert first is not None
        assert time.monotonic() - began - first > 1, "the parts were held back"


def test_closed_port_is_502_with_the_known_text(door, web):
    answer = door.request("GET", web.sandbox_id, 8123, "/")
    assert answer.status == 502
    assert answer.json()["code"] == 502
    assert "port is not open" in answer.json()["message"]


def test_unknown_sandbox_is_502_with_the_known_text(door, lab):
    answer = door.request("GET", UNKNOWN, ENVD_PORT, "/health")
    assert answer.status == 502
    assert answer.json()["code"] == 502
    assert "was not found" in answer.json()["message"]


@pytest.mark.parametrize("port", ["0", "65536", "x", "-1"])
def test_port_that_cannot_be(node, web, port):
    answer = node.request("GET", f"/proxy/{web.sandbox_id}/{port}/", key=None)
    assert answer.status in (400, 404)


def test_guest_daemon_health_needs_no_token(door, sandbox):
    assert door.request("GET", sandbox.sandbox_id, ENVD_PORT, "/health").status == 204


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/metrics"),
        ("GET", "/envs"),
        ("GET", "/files?path=/etc/passwd"),
        ("POST", "/files?path=/tmp/x"),
        ("POST", "/process.Process/List"),
        ("POST", "/process.Process/Start"),
        ("POST", "/filesystem.Filesystem/Stat"),
    ],
)
def test_guest_daemon_is_closed_without_the_token(door, sandbox, create_for_module, node, method, path):
    body = {} if method == "POST" else None
    assert door.request(method, sandbox.sandbox_id, ENVD_PORT, path, body=body).status == 401
    wrong = {"X-Access-Token": "0" * 64}
    assert door.request(method, sandbox.sandbox_id, ENVD_PORT, path, wrong, body=body).status == 401


def test_token_of_another_sandbox_is_refused(door, sandbox, create, node):
    other = create("tiny")
    stolen = {"X-Access-Token": token(node, other)}
    answer = door.request("POST", sandbox.sandbox_id, ENVD_PORT, "/process.Process/List", stolen, body={})
    assert answer.status == 401
    own = {"X-Access-Token": token(node, sandbox)}
    answer = door.request("POST", sandbox.sandbox_id, ENVD_PORT, "/process.Process/List", own, body={})
    assert answer.status == 200


def test_api_key_is_no_token(door, sandbox, node):
    answer = door.request(
        "POST", sandbox.sandbox_id, ENVD_PORT, "/process.Process/List", {"X-Access-Token": node.api_key}, body={}
    )
    assert answer.status == 401


@pytest.mark.parametrize(
    "path", ["/init", "//init", "/./init", "/%69nit", "/init/", "/freeze", "/unfreeze", "/upgrade", "/fsfreeze"]
)
def test_internal_routes_of_the_guest_daemon_are_not_there(door, sandbox, node, path):
    headers = {"X-Access-Token": token(node, sandbox)}
    body = {"accessToken": "taken-over", "envVars": {"TAKEN": "over"}}
    answer = door.request("POST", sandbox.sandbox_id, ENVD_PORT, path, headers, body=body)
    assert answer.status in (400, 404), answer.body
    assert sandbox.commands.run("echo [$TAKEN]").stdout == "[]\n", "the daemon was initialised from outside"


def test_path_is_not_rewritten(node, web):
    path = "/a%2Fb/../c/./d//e?q=%2F#"
    answer = node.request("GET", f"/proxy/{web.sandbox_id}/{WEB_PORT}{path.removesuffix('#')}", key=None)
    assert urllib.parse.unquote(answer.json()["path"]).endswith("q=/")
    assert "a%2Fb" in answer.json()["path"]
