"""The control plane as bytes on the wire: both generations, errors as JSON, bounds."""

import http.client
import json
import re
from datetime import datetime

import pytest

TIMESTAMP = re.compile(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z$")
UNKNOWN = "i" + "0" * 19


@pytest.fixture(params=["", "/v2"], ids=["v1", "v2"])
def generation(request) -> str:
    return request.param


@pytest.fixture(scope="module")
def running(node):
    """A running sandbox as the answer to its creation."""
    answer = node.request("POST", "/v2/sandboxes", {"templateID": "tiny", "timeout": 900, "metadata": {"a": "b"}})
    assert answer.status == 201, answer.body
    yield answer.json()
    node.request("DELETE", f"/sandboxes/{answer.json()['sandboxID']}")


def assert_error(answer, status: int, text: str = "") -> None:
    assert answer.status == status, answer.body
    assert answer.headers["Content-Type"].split(";")[0] == "application/json"
    body = answer.json()
    assert body["code"] == status
    assert text in body["message"]


def test_health_needs_no_key(node):
    assert node.request("GET", "/health", key=None).status == 200


def test_openapi_document_describes_the_routes(node):
    document = node.request("GET", "/openapi.json", key=None).json()
    assert document["openapi"].startswith("3.")
    paths = document["paths"]
    for path in ("/sandboxes", "/v2/sandboxes", "/sandboxes/{sandboxID}", "/aenv/v1/templates/pull"):
        assert path in paths
    assert {"get", "delete"} <= set(paths["/sandboxes/{sandboxID}"])


@pytest.mark.parametrize("key", [None, "wrong", "e2b_" + "0" * 40], ids=["none", "text", "well-formed"])
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v2/sandboxes"),
        ("POST", "/sandboxes"),
        ("DELETE", f"/sandboxes/{UNKNOWN}"),
        ("GET", "/aenv/v1/status"),
        ("POST", "/aenv/v1/templates/pull"),
        ("GET", f"/aenv/v1/sandboxes/{UNKNOWN}/console"),
        ("DELETE", "/templates/tiny"),
    ],
)
def test_no_route_answers_without_the_key(node, method, path, key):
    assert_error(node.request(method, path, {} if method == "POST" else None, key=key), 401)


def test_create_and_connect_answer_the_same_shape(node, generation):
    created = node.request("POST", f"{generation}/sandboxes", {"templateID": "tiny", "timeout": 60})
    assert created.status == 201, created.body
    sandbox = created.json()
    try:
        assert re.fullmatch(r"[a-z0-9]{1,57}", sandbox["sandboxID"])
        assert sandbox["alias"] == "tiny"
        assert isinstance(sandbox["clientID"], str)
        assert tuple(int(part) for part in sandbox["envdVersion"].split(".")) >= (0, 6, 13)
        assert len(sandbox["envdAccessToken"]) >= 32
        path = f"{generation}/sandboxes/{sandbox['sandboxID']}/connect"
        connected = node.request("POST", path, {"timeout": 120})
        assert connected.status == 200, connected.body
        assert set(connected.json()) == set(sandbox)
        assert connected.json()["envdAccessToken"] == sandbox["envdAccessToken"]
    finally:
        assert node.request("DELETE", f"/sandboxes/{sandbox['sandboxID']}").status == 204


def test_default_timeout_of_each_generation(node, generation):
    sandbox = node.request("POST", f"{generation}/sandboxes", {"templateID": "tiny"}).json()
    try:
        detail = node.request("GET", f"/sandboxes/{sandbox['sandboxID']}").json()
        assert seconds_between(detail["startedAt"], detail["endAt"]) == (300 if generation else 15)
    finally:
        node.request("DELETE", f"/sandboxes/{sandbox['sandboxID']}")


def seconds_between(start: str, end: str) -> int:
    parsed = (datetime.fromisoformat(text.replace("Z", "+00:00")) for text in (start, end))
    first, second = parsed
    return round((second - first).total_seconds())


def test_detail(node, running):
    detail = node.request("GET", f"/sandboxes/{running['sandboxID']}").json()
    assert TIMESTAMP.match(detail["startedAt"])
    assert TIMESTAMP.match(detail["endAt"])
    assert detail["state"] == "running"
    assert detail["metadata"] == {"a": "b"}
    assert (detail["cpuCount"], detail["memoryMB"], detail["diskSizeMB"]) == (1, 512, 16 * 1024)
    assert detail["envdAccessToken"] == running["envdAccessToken"]


def test_list_shows_no_token(node, running, generation):
    listed = node.request("GET", f"{generation}/sandboxes").json()
    mine = [item for item in listed if item["sandboxID"] == running["sandboxID"]]
    assert len(mine) == 1
    assert "envdAccessToken" not in mine[0]


def test_last_page_has_no_next_token(node, running):
    answer = node.request("GET", "/v2/sandboxes?limit=100")
    assert not answer.headers.get("x-next-token")


@pytest.mark.parametrize("query", ["limit=0", "limit=101", "limit=x", "nextToken=%00bad", "state=asleep", "order=up"])
def test_bad_list_query_is_refused(node, query):
    assert_error(node.request("GET", f"/v2/sandboxes?{query}"), 400)


def test_metadata_filter_is_decoded_twice(node, running):
    # What the SDKs send for {"a": "b"} and for a pair that no sandbox has.
    ids = [item["sandboxID"] for item in node.request("GET", "/v2/sandboxes?metadata=a%3Db").json()]
    assert running["sandboxID"] in ids
    assert node.request("GET", "/v2/sandboxes?metadata=a%252520b%3Dc%252526d").json() == []


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"templateID": 5},
        {"templateID": "tiny", "timeout": 0},
        {"templateID": "tiny", "timeout": -5},
        {"templateID": "tiny", "timeout": "soon"},
        {"templateID": "tiny", "metadata": {"a": 1}},
        {"templateID": "tiny", "envVars": ["A=B"]},
        [],
    ],
    ids=str,
)
def test_bad_create_is_refused(node, generation, body):
    answer = node.request("POST", f"{generation}/sandboxes", body)
    assert answer.status in (400, 422), answer.body
    assert_error(answer, answer.status)


def test_body_that_is_not_json_is_refused(node, generation):
    headers = {"Content-Type": "application/json"}
    answer = node.request("POST", f"{generation}/sandboxes", data=b"{not json", headers=headers)
    assert_error(answer, 400)


def test_unknown_field_is_ignored(node, generation):
    answer = node.request("POST", f"{generation}/sandboxes", {"templateID": "tiny", "timeout": 60, "futureField": {}})
    assert answer.status == 201, answer.body
    node.request("DELETE", f"/sandboxes/{answer.json()['sandboxID']}")


@pytest.mark.parametrize(
    "field",
    [{"autoPause": True}, {"network": {"denyOut": ["0.0.0.0/0"]}}, {"volumeMounts": [{"name": "v", "path": "/v"}]}],
    ids=lambda field: next(iter(field)),
)
def test_feature_that_is_not_there_is_refused_by_name(node, generation, field):
    answer = node.request("POST", f"{generation}/sandboxes", {"templateID": "tiny", "timeout": 60, **field})
    if answer.status == 201:
        node.request("DELETE", f"/sandboxes/{answer.json()['sandboxID']}")
    assert_error(answer, 400, next(iter(field)))


def test_body_without_end_is_refused(node):
    """A chunked body larger than any request may be, of which the server needs not see the end."""
    connection = http.client.HTTPConnection(node.address, timeout=30)
    connection.putrequest("POST", "/v2/sandboxes")
    connection.putheader("X-API-Key", node.api_key)
    connection.putheader("Content-Type", "application/json")
    connection.putheader("Transfer-Encoding", "chunked")
    connection.endheaders()
    chunk = b"x" * 65536
    try:
        for _ in range(1024):
            connection.send(b"%x\r\n%b\r\n" % (len(chunk), chunk))
    except (BrokenPipeError, ConnectionResetError):
        pass
    try:
        assert connection.getresponse().status == 413
    except ConnectionResetError:
        pass  # closed before the answer could be read, since more of the body was on its way
    finally:
        connection.close()
    assert node.request("GET", "/health", key=None).status == 200


def test_chunked_body_is_accepted(node):
    connection = http.client.HTTPConnection(node.address, timeout=60)
    body = json.dumps({"templateID": "tiny", "timeout": 60}).encode()
    headers = {"X-API-Key": node.api_key, "Content-Type": "application/json"}
    connection.request("POST", "/v2/sandboxes", body=iter([body[:5], body[5:]]), headers=headers, encode_chunked=True)
    answer = connection.getresponse()
    created = json.loads(answer.read())
    connection.close()
    assert answer.status == 201
    node.request("DELETE", f"/sandboxes/{created['sandboxID']}")


def test_connect_without_a_body(node, running):
    answer = node.request("POST", f"/v2/sandboxes/{running['sandboxID']}/connect")
    assert answer.status == 200, answer.body


def test_unknown_sandbox_is_404_everywhere(node):
    assert_error(node.request("GET", f"/sandboxes/{UNKNOWN}"), 404, UNKNOWN)
    assert_error(node.request("DELETE", f"/sandboxes/{UNKNOWN}"), 404, UNKNOWN)
    assert_error(node.request("POST", f"/sandboxes/{UNKNOWN}/timeout", {"timeout": 5}), 404, UNKNOWN)
    assert_error(node.request("POST", f"/v2/sandboxes/{UNKNOWN}/connect", {}), 404, UNKNOWN)
    assert_error(node.request("GET", f"/aenv/v1/sandboxes/{UNKNOWN}/console"), 404, UNKNOWN)


def test_unknown_template_is_404(node, generation):
    answer = node.request("POST", f"{generation}/sandboxes", {"templateID": "no-such-template", "timeout": 60})
    assert_error(answer, 404, "no-such-template")
    assert_error(node.request("DELETE", "/templates/no-such-template"), 404, "no-such-template")


def test_unknown_route_and_method_are_json(node):
    assert_error(node.request("GET", "/no/such/route"), 404)
    assert_error(node.request("PATCH", "/v2/sandboxes"), 405)


@pytest.mark.parametrize("sandbox_id", ["..%2F..%2Fetc", "%00", "a" * 5000, "A%20B"])
def test_sandbox_id_that_cannot_be(node, sandbox_id):
    answer = node.request("GET", f"/sandboxes/{sandbox_id}")
    assert answer.status in (400, 404, 414), answer.body


def test_console_is_text_of_the_guest(node, running):
    answer = node.request("GET", f"/aenv/v1/sandboxes/{running['sandboxID']}/console")
    assert answer.status == 200
    assert answer.headers["Content-Type"].startswith("text/plain")
    assert b"aenv-init:" in answer.body


def test_status_counts_what_runs(node, running):
    status = node.request("GET", "/aenv/v1/status").json()
    assert status["running"] == len(node.sandbox_ids())
    assert status["templates"] >= 2


def test_templates_are_listed(node):
    templates = node.request("GET", "/aenv/v1/templates").json()
    agent = next(template for template in templates if template["name"] == "agent")
    assert agent["layerCount"] == 2
    assert agent["manifestDigest"].startswith("sha256:")
    assert agent["virtualSizeBytes"] == 16 << 30
