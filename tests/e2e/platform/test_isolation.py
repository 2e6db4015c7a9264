"""What a sandbox can reach over the network, and what it cannot."""

import json
import socket
import threading

import pytest
from harness import leftovers
from harness.outside import HOST_NAME
from harness.shell import run

PROBE = """
import socket, sys
for target in sys.argv[1:]:
    host, port = target.rsplit(":", 1)
    try:
        socket.create_connection((host, int(port)), timeout=2).close()
        print(target, "open")
    except ConnectionRefusedError:
        print(target, "refused")
    except OSError as error:
        print(target, "closed")
"""


@pytest.fixture(scope="module")
def host_port():
    """A port on which this machine answers on every address."""
    listener = socket.create_server(("0.0.0.0", 0), backlog=16)
    stop = threading.Event()
    listener.settimeout(0.2)

    def accept() -> None:
        while not stop.is_set():
            try:
                listener.accept()[0].close()
            except TimeoutError:
                continue

    thread = threading.Thread(target=accept)
    thread.start()
    yield listener.getsockname()[1]
    stop.set()
    thread.join()
    listener.close()


def addresses(*command: str) -> list[str]:
    """IPv4 addresses `ip` shows in one namespace."""
    shown = json.loads(run(["ip", *command, "-4", "-json", "addr"]).stdout)
    return [entry["local"] for link in shown for entry in link["addr_info"]]


def probe(sandbox, targets: list[str]) -> dict[str, str]:
    sandbox.files.write("/tmp/probe.py", PROBE)
    output = sandbox.commands.run(f"python3 /tmp/probe.py {' '.join(targets)}", timeout=100).stdout
    return dict(line.split() for line in output.splitlines())


def reached(results: dict[str, str]) -> list[str]:
    return [target for target, result in results.items() if result != "closed"]


def test_public_address_is_reached(sandbox, lab):
    output = sandbox.commands.run(f"curl -sS --max-time 10 http://{lab.outside_public}/").stdout
    assert output.startswith("outside, asked by ")


def test_names_resolve_and_are_reached(sandbox):
    output = sandbox.commands.run(f"curl -sS --max-time 15 http://{HOST_NAME}/").stdout
    assert output.startswith("outside, asked by ")


def test_unknown_name_fails_at_once(sandbox):
    result = sandbox.commands.run("curl -sS --max-time 15 http://no-such-name.test/ 2>&1 || echo code $?").stdout
    assert "code 6" in result


def test_own_host_name_resolves(sandbox):
    assert sandbox.commands.run("getent hosts $(hostname)").stdout
    assert sandbox.commands.run("getent hosts localhost").stdout


def test_private_and_link_local_networks_behind_the_host_are_not_reached(sandbox, lab):
    assert reached(probe(sandbox, [f"{address}:80" for address in lab.outside_closed])) == []


def test_addresses_of_the_host_are_not_reached(sandbox, host_port, lab):
    own = [address for address in addresses() if not address.startswith("127.")]
    assert own, "this machine has no address but loopback: nothing would be tested"
    assert reached(probe(sandbox, [f"{address}:{host_port}" for address in own])) == []


def test_node_api_is_not_reached(sandbox, node):
    own = [address for address in addresses() if not address.startswith("127.")]
    targets = [f"{address}:{node.identity.port}" for address in [*own, "169.254.0.22"]]
    assert [target for target, result in probe(sandbox, targets).items() if result == "open"] == []


def test_gateway_offers_nothing(sandbox, host_port):
    targets = [f"169.254.0.22:{port}" for port in (22, 53, 80, 111, 3000, 49983, host_port)]
    assert "open" not in probe(sandbox, targets).values()


def test_other_sandbox_is_not_reached(sandbox, create, node):
    other = create("agent")
    other.commands.run("python3 -m http.server 8000 --bind 0.0.0.0", background=True, timeout=0)
    targets = set()
    for namespace in leftovers.namespaces(node.scope):
        for address in addresses("-n", namespace):
            if not address.startswith(("127.", "169.254.")):
                targets |= {f"{address}:{port}" for port in (49983, 8000)}
    assert targets, "the addresses of the sandboxes were not found: nothing would be tested"
    assert reached(probe(sandbox, sorted(targets))) == []


def test_datagrams_are_filtered_like_connections(sandbox, lab):
    script = (
        "import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(3);"
        "q = b'\\x12\\x34\\x01\\0\\0\\x01\\0\\0\\0\\0\\0\\0\\x07outside\\x04test\\0\\0\\x01\\0\\x01';"
        "import sys; s.sendto(q, (sys.argv[1], 53)); print(len(s.recv(512)) > 12)"
    )
    assert sandbox.commands.run(f'python3 -c "{script}" {lab.outside_public}').stdout == "True\n"
    blocked = sandbox.commands.run(f'python3 -c "{script}" {lab.outside_closed[0]} 2>&1 || true').stdout
    assert "True" not in blocked


def test_root_in_the_guest_cannot_take_another_address(sandbox, lab):
    """A guest that gives itself another source address gets nothing through."""
    spoof = (
        f"import socket; s = socket.socket(); s.settimeout(3); s.bind(('{lab.outside_closed[0]}', 0));"
        f"s.connect(('{lab.outside_public}', 80)); print('through')"
    )
    script = f"""
import subprocess, sys
SIOCSIFADDR = 0x8916
import fcntl, socket, struct
control = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
def alias(address):
    name = b'eth0:1'.ljust(16, b'\\0')
    fcntl.ioctl(control, SIOCSIFADDR, name + struct.pack('<HH4s8x', socket.AF_INET, 0, socket.inet_aton(address)))
alias('{lab.outside_closed[0]}')
try:
    print(subprocess.run([sys.executable, '-c', {spoof!r}], capture_output=True, text=True, timeout=20).stdout)
finally:
    try:
        alias('0.0.0.0')
    except OSError:
        pass
"""
    sandbox.files.write("/tmp/spoof.py", script)
    output = sandbox.commands.run("python3 /tmp/spoof.py", user="root", timeout=40).stdout
    assert "through" not in output
    # The namespace must still work for the sandbox's own address.
    assert "outside" in sandbox.commands.run(f"curl -sS --max-time 10 http://{lab.outside_public}/").stdout
