//! Pulling: from Debian's `docker-registry`, and from servers that misbehave on purpose.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use image::{Credentials, ImageError, ImportOptions, ImportedImage, ImporterConfig, Progress};
use serde_json::json;
use tokio::sync::mpsc;

use crate::support::Bench;
use crate::support::http::{LayoutRegistry, Request, Response, Server, answer};
use crate::support::layout::{self, Layer};
use crate::support::mounted::Mounted;
use crate::support::tar::{Tar, file};

const USER: &str = "puller";
/// A colon in the password must not confuse anybody.
const PASSWORD: &str = "s3cret:pass";
const PASSWORD_BCRYPT: &str = "$2b$04$GdPqcqrzZLoevAV7jptzFO1O9cXJ08o598LAeeSc14Wt0yHOuE2De";

/// Who may use a registry.
enum Access<'a> {
    Open,
    Password,
    Token { realm: &'a str },
}

/// A registry of Debian's package on a loopback port.
struct DockerRegistry {
    process: Child,
    host: String,
    directory: tempfile::TempDir,
}

impl DockerRegistry {
    fn start(access: Access<'_>, tls: bool) -> Self {
        let directory = tempfile::Builder::new().prefix("image-registry-").tempdir().unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let at = |name: &str| directory.path().join(name).display().to_string();
        let mut config = format!(
            "version: 0.1\nlog: {{level: error}}\nstorage: {{filesystem: {{rootdirectory: {}}}}}\nhttp:\n  addr: \
             127.0.0.1:{port}\n",
            at("data")
        );
        if tls {
            let made = Command::new("openssl")
                .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"])
                .args(["-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"])
                .args(["-addext", "basicConstraints=critical,CA:FALSE"])
                .args(["-keyout", &at("key.pem"), "-out", &at("cert.pem")])
                .stderr(Stdio::null())
                .status();
            assert!(made.unwrap().success(), "openssl failed");
            config += &format!("  tls: {{certificate: {}, key: {}}}\n", at("cert.pem"), at("key.pem"));
        }
        match access {
            Access::Open => {}
            Access::Password => {
                fs::write(at("htpasswd"), format!("{USER}:{PASSWORD_BCRYPT}\n")).unwrap();
                config += &format!("auth: {{htpasswd: {{realm: test, path: {}}}}}\n", at("htpasswd"));
            }
            Access::Token { realm } => {
                config += &format!(
                    "auth: {{token: {{realm: '{realm}', service: test, issuer: test, rootcertbundle: {}}}}}\n",
                    at("cert.pem")
                );
            }
        }
        fs::write(at("config.yml"), config).unwrap();
        let process = Command::new("docker-registry")
            .args(["serve", &at("config.yml")])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("docker-registry is not installed");
        let deadline = Instant::now() + Duration::from_secs(20);
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(Instant::now() < deadline, "docker-registry does not listen");
            std::thread::sleep(Duration::from_millis(20));
        }
        Self { process, host: format!("127.0.0.1:{port}"), directory }
    }

    fn push(&self, layout: &Path, name: &str, arguments: &[&str]) {
        let pushed = Command::new("skopeo")
            .args(["copy", "--quiet", "--dest-tls-verify=false"])
            .args(arguments)
            .args(["--dest-creds", &format!("{USER}:{PASSWORD}")])
            .arg(format!("oci:{}", layout.display()))
            .arg(format!("docker://{}/{name}", self.host))
            .status();
        assert!(pushed.expect("skopeo is not installed").success(), "skopeo could not push");
    }

    fn certificate(&self) -> PathBuf {
        self.directory.path().join("cert.pem")
    }
}

impl Drop for DockerRegistry {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Incompressible data, so that blobs stay large.
fn noise(bytes: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    (0..bytes)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()[0]
        })
        .collect()
}

fn two_layers() -> [Vec<u8>; 2] {
    [
        Tar::new().add(file("base", &noise(3 << 20))).finish(),
        Tar::new().add(file("top", b"top")).add(file(".wh.base", b"")).finish(),
    ]
}

fn write_layout(directory: &Path) -> PathBuf {
    let path = directory.join("source-layout");
    layout::write(&path, &two_layers().each_ref().map(|layer| Layer::plain(layer)));
    path
}

fn insecure(host: &str) -> impl FnOnce(&mut ImporterConfig) {
    let host = host.to_owned();
    move |config| {
        config.insecure_registries = vec![host];
        config.limits.registry_timeout = Duration::from_millis(800);
    }
}

async fn pull(
    bench: &Bench,
    reference: &str,
    credentials: Option<Credentials>,
) -> Result<ImportedImage, ImageError> {
    let (progress, _events) = mpsc::channel::<Progress>(64);
    let options = ImportOptions { credentials, ..ImportOptions::default() };
    bench.importer.import(&reference.parse().unwrap(), options, progress).await
}

fn login(password: &str) -> Option<Credentials> {
    Some(Credentials { username: USER.to_owned(), password: password.to_owned() })
}

fn assert_content(image: &ImportedImage) {
    let mounted = Mounted::new(&image.layer_paths[1]);
    assert_eq!(fs::read(mounted.path("top")).unwrap(), b"top");
    assert!(!mounted.path("base").exists());
    drop(mounted);
    let mounted = Mounted::new(&image.layer_paths[0]);
    assert_eq!(fs::read(mounted.path("base")).unwrap(), noise(3 << 20));
}

#[tokio::test(flavor = "multi_thread")]
async fn images_are_pulled_from_docker_registry_in_every_compression_and_format() {
    let registry = DockerRegistry::start(Access::Open, false);
    let bench = Bench::with(insecure(&registry.host));
    let path = write_layout(bench.directory.path());
    registry.push(&path, "team/app:gzip", &[]);
    registry.push(&path, "team/app:zstd", &["--dest-compress-format", "zstd", "--format", "oci"]);
    registry.push(&path, "team/app:docker", &["--format", "v2s2"]);
    let image = pull(&bench, &format!("{}/team/app:gzip", registry.host), None).await.unwrap();
    assert_content(&image);
    for tag in ["zstd", "docker"] {
        let other = pull(&bench, &format!("{}/team/app:{tag}", registry.host), None).await.unwrap();
        // The same uncompressed layers.
        assert_eq!((other.reused_layer_count, &other.layer_paths), (2, &image.layer_paths), "{tag}");
        drop(other);
        let fresh = Bench::with(insecure(&registry.host));
        assert_content(&pull(&fresh, &format!("{}/team/app:{tag}", registry.host), None).await.unwrap());
        fresh.assert_clean();
    }
    let pinned = format!("{}/team/app@{}", registry.host, image.manifest_digest);
    assert_eq!(pull(&bench, &pinned, None).await.unwrap().manifest_digest, image.manifest_digest);
    for missing in ["team/app:nope", "team/nope:gzip"] {
        let error = pull(&bench, &format!("{}/{missing}", registry.host), None).await.unwrap_err();
        assert!(matches!(error, ImageError::NotFound { .. }), "{error}");
    }
    bench.assert_clean();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_registry_with_logins_takes_given_and_stored_credentials() {
    let registry = DockerRegistry::start(Access::Password, false);
    let bench = Bench::with(insecure(&registry.host));
    registry.push(&write_layout(bench.directory.path()), "app:1", &[]);
    let reference = format!("{}/app:1", registry.host);
    assert_content(&pull(&bench, &reference, login(PASSWORD)).await.unwrap());
    let error = pull(&bench, &reference, login("wrong")).await.unwrap_err();
    assert!(matches!(error, ImageError::Unauthorized { .. }), "{error}");
    let error = pull(&bench, &reference, None).await.unwrap_err().to_string();
    assert!(error.contains(&format!("docker login {}", registry.host)), "{error}");

    // As `docker login` stores it; the file may appear or change while we run.
    let config = bench.directory.path().join("docker.json");
    let with_config = Bench::with(|importer| {
        insecure(&registry.host)(importer);
        importer.docker_config = Some(config.clone());
    });
    assert!(matches!(pull(&with_config, &reference, None).await, Err(ImageError::Unauthorized { .. })));
    let stored = base64_of(&format!("{USER}:{PASSWORD}"));
    fs::write(&config, json!({"auths": {&registry.host: {"auth": stored}}}).to_string()).unwrap();
    assert_content(&pull(&with_config, &reference, None).await.unwrap());
}

fn base64_of(text: &str) -> String {
    use base64::Engine as _;
    base64::prelude::BASE64_STANDARD.encode(text)
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_is_verified_and_the_way_out_is_said() {
    let registry = DockerRegistry::start(Access::Open, true);
    let bench = Bench::with(|config| config.extra_root_certificates = vec![registry.certificate()]);
    registry.push(&write_layout(bench.directory.path()), "app:1", &[]);
    let reference = format!("{}/app:1", registry.host);
    assert_content(&pull(&bench, &reference, None).await.unwrap());

    let error = pull(&Bench::new(), &reference, None).await.unwrap_err();
    assert!(matches!(&error, ImageError::Tls { reason, .. } if reason.contains("not trusted")), "{error}");
    let error = pull(&Bench::with(insecure(&registry.host)), &reference, None).await.unwrap_err();
    assert!(error.to_string().contains("take it off the list of insecure registries"), "{error}");

    let plain = DockerRegistry::start(Access::Open, false);
    let error = pull(&Bench::new(), &format!("{}/app:1", plain.host), None).await.unwrap_err().to_string();
    assert!(error.contains("does not speak TLS") && error.contains("registry.insecure"), "{error}");
}

/// A server that behaves as `behave` says and otherwise well, and a bench that may talk to it.
fn server(
    behave: impl Fn(&Request, Response) -> Response + Send + Sync + 'static,
) -> (Bench, Server, String) {
    let directory = tempfile::tempdir().unwrap();
    let registry = LayoutRegistry::new(&write_layout(directory.path()));
    let server = Server::start(move |request| behave(request, registry.answer(request)));
    let bench = Bench::with(insecure(&server.address.to_string()));
    let reference = format!("{}/app:1", server.address);
    (bench, server, reference)
}

fn is_large_blob(response: &Response) -> bool {
    response.body.len() > 1 << 20
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transfer_that_breaks_off_is_resumed_where_it_ended() {
    let (bench, server, reference) = server(|_, response| {
        let cut_after = is_large_blob(&response).then_some(1 << 20);
        Response { cut_after, ..response }
    });
    assert_content(&pull(&bench, &reference, None).await.unwrap());
    let starts: Vec<usize> = server.requests().iter().filter_map(Request::range_start).collect();
    assert!(starts.len() >= 2 && starts.is_sorted(), "{starts:?}");
    assert!(starts[0] > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transfer_that_stalls_is_resumed_after_the_deadline() {
    let tries = AtomicUsize::new(0);
    let (bench, _server, reference) = server(move |_, response| {
        let first = is_large_blob(&response) && tries.fetch_add(1, Ordering::SeqCst) == 0;
        let stall_after = first.then_some(1 << 20);
        Response { stall_after, ..response }
    });
    assert_content(&pull(&bench, &reference, None).await.unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_ignores_ranges_does_not_damage_the_layer() {
    let tries = AtomicUsize::new(0);
    let (bench, _server, reference) = server(move |request, response| {
        let mut response = response;
        if is_large_blob(&response) || request.range_start().is_some() {
            if tries.fetch_add(1, Ordering::SeqCst) == 0 {
                response.cut_after = Some(1 << 20);
            } else if let Some(start) = request.range_start() {
                // Everything again, with 200.
                let whole = Tar::new().add(file("base", &noise(3 << 20))).finish();
                assert!(start > 0);
                return answer(200, whole);
            }
        }
        response
    });
    assert_content(&pull(&bench, &reference, None).await.unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_answers_another_range_is_not_believed() {
    let (bench, _server, reference) = server(|request, mut response| {
        if request.range_start().is_some() {
            response.headers = vec![("content-range".to_owned(), "bytes 0-1/2".to_owned())];
        } else if is_large_blob(&response) {
            response.cut_after = Some(1 << 20);
        }
        response
    });
    let error = pull(&bench, &reference, None).await.unwrap_err();
    assert!(matches!(error, ImageError::RegistryFailed { .. }), "{error}");
    bench.assert_clean();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_blob_with_other_bytes_is_refused() {
    let (bench, _server, reference) = server(|_, mut response| {
        if is_large_blob(&response) {
            response.body[1 << 20] ^= 1;
        }
        response
    });
    let error = pull(&bench, &reference, None).await.unwrap_err();
    assert!(matches!(error, ImageError::DigestMismatch { .. }), "{error}");
    bench.assert_clean();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_manifest_with_other_bytes_is_refused() {
    let (bench, _server, reference) = server(|request, mut response| {
        if request.path.contains("/manifests/") {
            response.body.push(b' ');
            return response.header("docker-content-digest", &format!("sha256:{}", "0".repeat(64)));
        }
        response
    });
    let error = pull(&bench, &reference, None).await.unwrap_err();
    assert!(matches!(error, ImageError::DigestMismatch { .. }), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_blob_larger_than_announced_is_cut_off() {
    let (bench, _server, reference) = server(|_, mut response| {
        if is_large_blob(&response) {
            response.body.extend(vec![0; 1 << 20]);
        }
        response
    });
    let error = pull(&bench, &reference, None).await.unwrap_err();
    assert!(matches!(error, ImageError::SizeMismatch { .. }), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_overloaded_registry_is_asked_again() {
    let tries = AtomicUsize::new(0);
    let (bench, server, reference) = server(move |_, response| match tries.fetch_add(1, Ordering::SeqCst) {
        0 => answer(503, ""),
        1 => answer(429, "").header("retry-after", "1"),
        _ => response,
    });
    let start = Instant::now();
    assert_content(&pull(&bench, &reference, None).await.unwrap());
    assert!(start.elapsed() > Duration::from_secs(1), "Retry-After was not respected");
    assert!(server.requests().len() >= 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_registry_that_keeps_failing_is_given_up_with_the_reason() {
    let (bench, server, reference) = server(|_, _| answer(500, ""));
    let error = pull(&bench, &reference, None).await.unwrap_err().to_string();
    assert!(error.contains("500") && error.contains("5 attempts"), "{error}");
    assert_eq!(server.requests().len(), 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_a_registry_is_said_to_be_none() {
    for body in [answer(200, "<html>").header("content-type", "text/html"), answer(404, "<html>nginx")] {
        let (bench, _server, reference) = server(move |_, _| body.clone());
        let error = pull(&bench, &reference, None).await.unwrap_err();
        assert!(matches!(error, ImageError::NotARegistry { .. }), "{error}");
    }
    let unused = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let bench = Bench::with(|config| config.limits.registry_attempts = 2);
    let error = pull(&bench, &format!("{unused}/app"), None).await.unwrap_err().to_string();
    assert!(error.contains("refused"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn bearer_tokens_are_fetched_used_and_renewed() {
    let issued = AtomicUsize::new(0);
    let valid = std::sync::Arc::new(AtomicUsize::new(usize::MAX));
    let (bench, server, reference) = server(move |request, response| {
        let host = request.header("host").unwrap().to_owned();
        if request.path.starts_with("/token") {
            let expected = format!("Basic {}", base64_of(&format!("{USER}:{PASSWORD}")));
            if request.header("authorization") != Some(expected.as_str()) {
                return answer(401, "");
            }
            let number = issued.fetch_add(1, Ordering::SeqCst);
            valid.store(number, Ordering::SeqCst);
            return answer(200, json!({"token": format!("token-{number}"), "expires_in": 60}).to_string());
        }
        let token = format!("Bearer token-{}", valid.load(Ordering::SeqCst));
        if request.header("authorization") == Some(token.as_str()) {
            let mut response = response;
            if is_large_blob(&response) {
                // The token expires while the blob is on its way.
                valid.store(usize::MAX, Ordering::SeqCst);
                response.cut_after = Some(2 << 20);
            }
            return response;
        }
        let challenge = format!(
            r#"Bearer realm="http://{host}/token?account=x",service="fake, registry",scope="repository:app:pull""#
        );
        answer(401, "")
            .header("www-authenticate", "Basic realm=\"other\"")
            .header("www-authenticate", &challenge)
    });
    assert_content(&pull(&bench, &reference, login(PASSWORD)).await.unwrap());
    let requests = server.requests();
    let tokens: Vec<_> = requests.iter().filter(|request| request.path.starts_with("/token")).collect();
    assert_eq!(tokens[0].path, "/token?account=x&scope=repository%3Aapp%3Apull&service=fake%2C+registry");
    assert!(tokens.len() >= 2, "the expired token was not renewed");
    let error = pull(&bench, &reference, login("wrong")).await.unwrap_err();
    assert!(matches!(error, ImageError::Unauthorized { .. }), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn identity_tokens_from_a_credential_helper_are_exchanged() {
    let (bench, server, reference) = server(|request, response| {
        let host = request.header("host").unwrap().to_owned();
        if request.path.starts_with("/token") {
            let granted = request.method == "POST" && request.body.contains("refresh_token=refresh%2Bme");
            return if granted { answer(200, r#"{"access_token": "granted"}"#) } else { answer(401, "") };
        }
        if request.header("authorization") == Some("Bearer granted") {
            return response;
        }
        answer(401, "")
            .header("www-authenticate", &format!(r#"Bearer realm="http://{host}/token",service="s""#))
    });
    // Found on PATH, so the name must be one that nobody else has.
    let helper = Path::new("/usr/local/bin/docker-credential-image-crate-test");
    fs::write(helper, "#!/bin/sh\nread host\necho \"{\\\"ServerURL\\\":\\\"$host\\\",\\\"Username\\\":\\\"<token>\\\",\\\"Secret\\\":\\\"refresh+me\\\"}\"\n").unwrap();
    fs::set_permissions(helper, fs::Permissions::from_mode(0o755)).unwrap();
    let config = bench.directory.path().join("docker.json");
    let host = server.address.to_string();
    fs::write(&config, json!({"credHelpers": {&host: "image-crate-test"}}).to_string()).unwrap();
    let with_helper = Bench::with(|importer| {
        insecure(&host)(importer);
        importer.docker_config = Some(config);
    });
    let pulled = pull(&with_helper, &reference, None).await;
    fs::remove_file(helper).unwrap();
    assert_content(&pulled.unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_server_in_plain_http_gets_no_credentials_from_a_registry_with_tls() {
    let spy = Server::start(|_| answer(200, r#"{"token": "t"}"#));
    let realm = format!("http://{}/token", spy.address);
    let registry = DockerRegistry::start(Access::Token { realm: &realm }, true);
    let bench = Bench::with(|config| config.extra_root_certificates = vec![registry.certificate()]);
    let error =
        pull(&bench, &format!("{}/app:1", registry.host), login(PASSWORD)).await.unwrap_err().to_string();
    assert!(error.contains("does not use HTTPS"), "{error}");
    assert!(spy.requests().is_empty(), "the token server was asked");
}

#[tokio::test(flavor = "multi_thread")]
async fn blobs_served_from_elsewhere_are_followed_without_the_credentials() {
    let directory = tempfile::tempdir().unwrap();
    let registry = LayoutRegistry::new(&write_layout(directory.path()));
    let elsewhere = std::sync::Arc::new(Server::start(move |request| registry.answer(request)));
    let target = elsewhere.address;
    let (bench, _server, reference) = server(move |request, response| {
        let expected = format!("Basic {}", base64_of(&format!("{USER}:{PASSWORD}")));
        if request.header("authorization") != Some(expected.as_str()) {
            return answer(401, "").header("www-authenticate", "Basic realm=\"x\"");
        }
        if request.path.contains("/blobs/") {
            return answer(307, "").header("location", &format!("http://{target}{}", request.path));
        }
        response
    });
    assert_content(&pull(&bench, &reference, login(PASSWORD)).await.unwrap());
    let requests = elsewhere.requests();
    assert!(requests.len() >= 3);
    assert!(
        requests.iter().all(|request| request.header("authorization").is_none()),
        "credentials were sent on"
    );
}
