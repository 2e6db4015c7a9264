//! `/files`.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::process::Command;

use serde_json::{Value, json};

use crate::client::{Answer, Request};
use crate::server::{Server, USER_ID, encode};

/// A form with one part for each file name and content.
fn form(request: Request, files: &[(&str, &[u8])]) -> Request {
    let mut body = Vec::new();
    for (name, content) in files {
        let name = name.replace('"', "%22");
        let head = format!(
            "--b0\r\nContent-Disposition: form-data; name=\"file\"; filename=\"{name}\"\r\n\
             Content-Type: application/octet-stream\r\n\r\n"
        );
        body.extend_from_slice(head.as_bytes());
        body.extend_from_slice(content);
        body.extend_from_slice(b"\r\n");
    }
    body.extend_from_slice(b"--b0--\r\n");
    request.body("multipart/form-data; boundary=b0", body)
}

fn write(server: &Server, path: &str, content: &[u8]) -> Answer {
    let request = server.request("POST", &format!("/files?path={}", encode(path)));
    form(request, &[(path, content)]).send()
}

fn assert_failed(answer: &Answer, status: u16) {
    let body = answer.to_json();
    assert_eq!((answer.status, body["code"].as_u64()), (status, Some(status.into())), "{body}");
    assert!(body["message"].as_str().is_some_and(|message| !message.is_empty()));
}

#[test]
fn a_written_file_belongs_to_the_user_and_is_read_back() {
    let server = Server::ready();
    let path = server.text_path("home/new/dir/file.bin");
    let content = b"\x89PNG\r\n\x1a\n\0\xff";
    let answer = write(&server, &path, content);
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(answer.to_json(), json!([{"path": path, "name": "file.bin", "type": "file"}]));
    let meta = server.path("home/new/dir/file.bin").metadata().unwrap();
    assert_eq!((meta.uid(), meta.gid(), meta.mode() & 0o7777), (USER_ID, USER_ID, 0o644));
    let parent = server.path("home/new").metadata().unwrap();
    assert_eq!((parent.uid(), parent.mode() & 0o7777), (USER_ID, 0o755));
    let read = server.get_file(&path);
    assert_eq!((read.status, read.body.as_slice()), (200, &content[..]));
    assert_eq!(read.header("content-length"), Some("10"));
}

#[test]
fn overwriting_truncates_and_keeps_mode_and_links() {
    let server = Server::ready();
    let path = server.path("home/f");
    std::fs::write(&path, "long old content").unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o750)).unwrap();
    std::fs::hard_link(&path, server.path("home/other")).unwrap();
    assert_eq!(write(&server, "f", b"new").status, 200);
    assert_eq!(std::fs::read(server.path("home/other")).unwrap(), b"new");
    assert_eq!(path.metadata().unwrap().mode() & 0o7777, 0o750);
}

#[test]
fn an_empty_file_has_a_length() {
    let server = Server::ready();
    assert_eq!(write(&server, "empty", b"").status, 200);
    let read = server.get_file("empty");
    assert_eq!((read.status, read.header("content-length"), read.body.len()), (200, Some("0"), 0));
}

#[test]
fn names_with_all_kinds_of_characters() {
    let server = Server::ready();
    let long = "n".repeat(255);
    for name in ["a 中.txt", "a\"b", "100%.txt", "e\u{301}", "a+b&c=d", "back\\slash", "semi;colon", &long] {
        // By the query, and by the form alone.
        let asked = format!("q/{name}");
        assert_eq!(write(&server, &asked, name.as_bytes()).status, 200, "{name}");
        assert_eq!(std::fs::read(server.path("home/q").join(name)).unwrap(), name.as_bytes());
        let asked = format!("m/{name}");
        let answer = form(server.request("POST", "/files"), &[(&asked, name.as_bytes())]).send();
        assert_eq!(answer.to_json()[0]["name"].as_str(), Some(name), "{name}");
        assert_eq!(server.get_file(&asked).body, name.as_bytes());
    }
    // A space as a plus sign, as Python writes it.
    let read = server.request("GET", "/files?path=q%2Fa+%E4%B8%AD.txt").send();
    assert_eq!(read.body, "a 中.txt".as_bytes());
    assert_failed(&write(&server, &"n".repeat(256), b""), 400);
}

#[test]
fn a_batch_writes_every_part_and_refuses_a_path_twice() {
    let server = Server::ready();
    let request = server.request("POST", "/files?username=root");
    let paths = [server.text_path("x/1"), server.text_path("x/2")];
    let answer = form(request, &[(&paths[0], b"one"), (&paths[1], b"two")]).chunked().send();
    let names: Vec<Value> =
        answer.to_json().as_array().unwrap().iter().map(|file| file["name"].clone()).collect();
    assert_eq!(names, ["1", "2"]);
    assert_eq!(server.path("x/2").metadata().unwrap().uid(), 0);
    let twice = form(server.request("POST", "/files"), &[("t", b"1"), ("./t", b"2")]).send();
    assert_failed(&twice, 400);
    let twice = form(server.request("POST", "/files?path=t"), &[("a", b"1"), ("b", b"2")]).send();
    assert_failed(&twice, 400);
}

#[test]
fn a_raw_body_is_a_file() {
    let server = Server::ready();
    let post = |target: &str| server.request("POST", target).body("application/octet-stream", "raw\r\n--b0");
    assert_eq!(post("/files?path=raw").send().status, 200);
    assert_eq!(post("/files?path=chunked").chunked().send().status, 200);
    for name in ["home/raw", "home/chunked"] {
        assert_eq!(std::fs::read(server.path(name)).unwrap(), b"raw\r\n--b0");
    }
    assert_failed(&post("/files").send(), 400);
    let empty = server.request("POST", "/files?path=nothing").body("application/octet-stream", "").send();
    assert_eq!(empty.status, 200);
    assert_eq!(server.path("home/nothing").metadata().unwrap().len(), 0);
}

#[test]
fn requests_that_cannot_be_served_say_why() {
    let server = Server::ready();
    std::fs::create_dir(server.path("home/dir")).unwrap();
    assert!(Command::new("mkfifo").arg(server.path("home/fifo")).status().unwrap().success());
    assert_failed(&server.get_file("missing"), 404);
    assert_failed(&server.get_file("dir"), 400);
    assert_failed(&server.get_file("fifo"), 400);
    assert_failed(&server.request("GET", "/files?path=x&username=nobody").send(), 401);
    assert_failed(&write(&server, "dir", b"x"), 400);
    assert_failed(&write(&server, "fifo", b"x"), 400);
    assert_failed(&form(server.request("POST", "/files?username=nobody"), &[("x", b"")]).send(), 401);
    std::fs::write(server.path("home/plain"), "").unwrap();
    assert_failed(&write(&server, "plain/below", b"x"), 400);
    let post = |content_type: &str, body: &str| {
        server.request("POST", "/files?path=p").body(content_type, body).send()
    };
    assert_failed(&post("text/plain", "x"), 415);
    assert_failed(&post("multipart/form-data", "x"), 400);
    assert_failed(
        &post("multipart/form-data; boundary=b", "--b\r\nContent-Disposition: form-data; name=file"),
        400,
    );
    let gzip = server.request("POST", "/files?path=p").header("Content-Encoding", "gzip");
    assert_failed(&gzip.body("application/octet-stream", "x").send(), 415);
    let picky = server
        .request("GET", &format!("/files?path={}", encode("plain")))
        .header("Accept-Encoding", "identity;q=0");
    assert_failed(&picky.send(), 406);
}

#[test]
fn ranges_dates_and_heads() {
    let server = Server::ready();
    let content: Vec<u8> = (0..200_000_u32).flat_map(u32::to_le_bytes).collect();
    for (name, content) in [("small", &b"0123456789"[..]), ("large", &content)] {
        std::fs::write(server.path("home").join(name), content).unwrap();
        let get = |method: &str| server.request(method, &format!("/files?path={name}"));
        let part = get("GET").header("Range", "bytes=2-5").send();
        assert_eq!((part.status, part.body.as_slice()), (206, &content[2..6]));
        assert_eq!(part.header("content-range").unwrap(), format!("bytes 2-5/{}", content.len()));
        let tail = get("GET").header("Range", "bytes=-3").send();
        assert_eq!(tail.body, content[content.len() - 3..]);
        let outside = get("GET").header("Range", "bytes=999999999-").send();
        assert_failed(&outside, 416);
        let head = get("HEAD").send();
        assert_eq!(
            (head.status, head.header("content-length").unwrap()),
            (200, content.len().to_string().as_str())
        );
        let whole = get("GET").send();
        assert_eq!(whole.body, content);
        let date = whole.header("last-modified").unwrap().to_owned();
        assert_eq!(get("GET").header("If-Modified-Since", &date).send().status, 304);
    }
}

#[test]
fn kernel_files_without_a_size_are_sent() {
    let server = Server::ready();
    let read = server.get_file("/proc/version");
    assert_eq!(read.status, 200);
    assert_eq!(read.body, std::fs::read("/proc/version").unwrap());
}

#[test]
fn uploads_into_the_same_new_directory_do_not_disturb_each_other() {
    let server = Server::ready();
    for round in 0..10 {
        std::thread::scope(|scope| {
            for number in 0..8 {
                let server = &server;
                scope.spawn(move || {
                    let path = format!("{round}/x/y/z/f{number}");
                    assert_eq!(write(server, &path, &[number; 1000]).status, 200);
                    assert_eq!(server.get_file(&path).body, [number; 1000]);
                });
            }
        });
    }
}

#[test]
fn large_files_are_streamed_both_ways() {
    const BYTES: usize = 200 << 20;
    let server = Server::ready();
    let before = server.resident_kib();
    let content = vec![b'x'; BYTES];
    let request = server.request("POST", "/files?path=big").body("application/octet-stream", content);
    assert_eq!(request.chunked().send().status, 200);
    assert_eq!(server.path("home/big").metadata().unwrap().len(), BYTES as u64);
    assert_eq!(server.get_file("big").body.len(), BYTES);
    let grown = server.resident_kib().saturating_sub(before);
    assert!(grown < 3 * 1024, "the daemon grew by {grown} KiB");
}

#[test]
fn a_full_disk_is_said_and_the_daemon_goes_on() {
    let server = Server::ready();
    let small = server.path("home/small");
    std::fs::create_dir(&small).unwrap();
    let mounted = Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=64k,mode=1777", "envd-test"])
        .arg(&small)
        .status();
    assert!(mounted.unwrap().success());
    let answer = write(&server, "small/f", &vec![1; 1 << 20]);
    let after = write(&server, "g", b"fine");
    assert!(Command::new("umount").arg(&small).status().unwrap().success());
    assert_failed(&answer, 507);
    assert_eq!(after.status, 200);
}

#[test]
fn an_upload_that_breaks_off_leaves_the_daemon_well() {
    use std::io::Write as _;
    let server = Server::ready();
    for _ in 0..20 {
        let mut stream = std::net::TcpStream::connect(server.address).unwrap();
        let head = "POST /files?path=broken HTTP/1.1\r\nHost: x\r\nContent-Type: application/octet-stream\r\n\
                    Content-Length: 1000000\r\n\r\nsome bytes";
        stream.write_all(head.as_bytes()).unwrap();
    }
    assert_eq!(write(&server, "whole", b"x").status, 200);
}
