"""Registries that ask for credentials, and those that may not be spoken to without encryption."""

import base64
import json

import pytest
from harness import images
from harness.node import Node, Settings
from harness.registry import Credentials, Registry
from harness.shell import CommandFailed

CREDENTIALS = Credentials("puller", "correct horse")


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    """A registry that asks for user and password, holding the `bare` image."""
    with Registry(tmp_path_factory.mktemp("guarded"), CREDENTIALS) as registry:
        registry.push("bare", images.bare())
        yield registry


@pytest.fixture(scope="module")
def docker_config(tmp_path_factory, guarded):
    """Docker's credential file with the right password."""
    path = tmp_path_factory.mktemp("docker") / "config.json"
    encoded = base64.b64encode(f"{CREDENTIALS.user}:{CREDENTIALS.password}".encode()).decode()
    path.write_text(json.dumps({"auths": {guarded.host: {"auth": encoded}}}))
    path.chmod(0o600)
    return path


@pytest.fixture(scope="module")
def own_node(guarded):
    """A node that may speak plain HTTP to that registry and knows no password."""
    with Node(Settings(insecure_registries=[guarded.host])) as node:
        node.set_up_assets()
        yield node.start()


def last_event(node, **body) -> dict:
    answer = node.request("POST", "/aenv/v1/templates/pull", body, timeout_s=120)
    if answer.status != 200:
        return {"error": answer.json()}
    return json.loads(answer.body.splitlines()[-1])


def test_pull_without_credentials_is_refused(own_node, guarded):
    error = last_event(own_node, source=guarded.reference("bare"), name="bare")["error"]
    assert error["code"] in (401, 403)
    assert guarded.host in error["message"]


def test_pull_with_a_wrong_password_is_refused(own_node, guarded):
    wrong = {"username": CREDENTIALS.user, "password": "wrong pass phrase"}
    error = last_event(own_node, source=guarded.reference("bare"), name="bare", **wrong)["error"]
    assert error["code"] in (401, 403)
    assert wrong["password"] not in json.dumps(error)


def test_pull_with_credentials_in_the_request(own_node, guarded):
    right = {"username": CREDENTIALS.user, "password": CREDENTIALS.password}
    event = last_event(own_node, source=guarded.reference("bare"), name="bare", **right)
    assert event["template"]["name"] == "bare"
    assert CREDENTIALS.password not in json.dumps(event)
    assert CREDENTIALS.password not in own_node.logs()


def test_pull_with_dockers_credential_file(guarded, docker_config):
    settings = Settings(insecure_registries=[guarded.host], extra={"registry": {"docker_config": str(docker_config)}})
    with Node(settings) as node:
        node.set_up_assets()
        node.start().pull(guarded.reference("bare"), "bare")


def test_plain_http_is_refused_unless_configured(node, guarded):
    """The shared node was not told of this registry, so the password must not travel in clear text either."""
    with pytest.raises(CommandFailed, match="insecure"):
        node.pull(guarded.reference("bare"), "never")
