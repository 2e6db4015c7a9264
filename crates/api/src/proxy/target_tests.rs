use axum::body::Body;

use super::*;

const ID: &str = "abc00000000000000000";

fn target(uri: &str, headers: &[(&str, &str)]) -> Option<Result<(String, u16, String), String>> {
    let mut request = http::Request::builder().uri(uri);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(Body::empty()).unwrap();
    of(&request, Some("sandbox.test:3000")).map(|target| {
        target
            .map(|target| (target.sandbox_id, target.port, target.path_and_query.to_string()))
            .map_err(|error| error.to_string())
    })
}

fn to(port: u16, path: &str) -> Option<Result<(String, u16, String), String>> {
    Some(Ok((ID.to_owned(), port, path.to_owned())))
}

#[test]
fn without_a_sandbox_it_is_the_control_plane() {
    for host in
        ["127.0.0.1:3000", "sandbox.test", "api.sandbox.test", "8000-abc.other.test", "x-y.sandbox.test"]
    {
        assert_eq!(target("/sandboxes", &[("host", host)]), None, "{host}");
    }
}

#[test]
fn headers_name_the_sandbox_on_any_path() {
    let headers = [("e2b-sandbox-id", ID), ("e2b-sandbox-port", "49983")];
    assert_eq!(target("/health?x=1", &headers), to(49983, "/health?x=1"));
    assert_eq!(target("/sandboxes", &headers), to(49983, "/sandboxes"));
}

#[test]
fn one_routing_header_without_the_other_is_an_error() {
    let error = target("/files", &[("e2b-sandbox-id", ID)]).unwrap().unwrap_err();
    assert!(error.contains("E2b-Sandbox-Port"), "{error}");
    assert!(target("/files", &[("e2b-sandbox-port", "1")]).unwrap().is_err());
}

#[test]
fn a_host_name_names_port_and_sandbox() {
    let host = format!("8000-{ID}.Sandbox.Test:3000");
    assert_eq!(target("/a", &[("host", &host)]), to(8000, "/a"));
    let dashed = target("/", &[("host", "8000-a-b-c.sandbox.test")]).unwrap().unwrap();
    assert_eq!((dashed.0.as_str(), dashed.1), ("a-b-c", 8000));
}

#[test]
fn the_host_name_beats_the_headers() {
    let host = format!("8000-{ID}.sandbox.test");
    let headers = [("host", host.as_str()), ("e2b-sandbox-id", "other"), ("e2b-sandbox-port", "1")];
    assert_eq!(target("/", &headers), to(8000, "/"));
}

#[test]
fn a_path_names_the_sandbox_and_the_rest_is_not_touched() {
    for (rest, path) in [
        ("", "/"),
        ("/", "/"),
        ("?q=1", "/?q=1"),
        ("/a%2Fb/../c/./d//e?q=%2F", "/a%2Fb/../c/./d//e?q=%2F"),
        ("/proxy/x/1/y", "/proxy/x/1/y"),
    ] {
        assert_eq!(target(&format!("/proxy/{ID}/8000{rest}"), &[]), to(8000, path), "{rest}");
    }
}

#[test]
fn ports_that_cannot_be_are_refused() {
    for port in ["0", "65536", "x", "-1", "+80", "", " 80", "80,80"] {
        let headers = [("e2b-sandbox-id", ID), ("e2b-sandbox-port", port)];
        assert!(target("/", &headers).unwrap().is_err(), "{port:?}");
    }
    assert!(target(&format!("/proxy/{ID}"), &[]).unwrap().is_err());
}

#[test]
fn internal_routes_of_the_guest_daemon_are_hidden_however_they_are_written() {
    for path in [
        "/init",
        "//init",
        "/./init",
        "/%69nit",
        "/init/",
        "/a/../init",
        "/a/%2e%2e/init",
        "/INIT",
        "/init?x",
        "/upgrade",
    ] {
        let error = target(&format!("/proxy/{ID}/49983{path}"), &[]).unwrap().unwrap_err();
        assert_eq!(error, ProxyError::Internal.to_string(), "{path}");
    }
    for path in ["/initial", "/files/init", "/health"] {
        assert!(target(&format!("/proxy/{ID}/49983{path}"), &[]).unwrap().is_ok(), "{path}");
    }
    assert!(target(&format!("/proxy/{ID}/8000/init"), &[]).unwrap().is_ok());
}
