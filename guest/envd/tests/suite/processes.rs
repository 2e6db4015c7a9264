//! Starting, users, directories, input, signals, ends.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::server::{EXTRA_GROUP_ID, Server, USER_ID, eventually, is_alive, shell};

fn select(pid: u32) -> Value {
    json!({"process": {"pid": pid}})
}

#[test]
fn a_command_has_its_output_apart_and_an_end_with_its_code() {
    let server = Server::ready();
    let finished = server.run("echo out; echo err >&2; exit 3");
    assert_eq!((finished.text(), finished.stderr.as_slice()), ("out\n", &b"err\n"[..]));
    let end = json!({"exitCode": 3, "exited": true, "status": "exit status 3", "error": "exit status 3"});
    assert_eq!(finished.end, Some(end));
    assert!(finished.pid > 0 && finished.error.is_none());
}

#[test]
fn an_exit_code_of_zero_is_on_the_wire() {
    let server = Server::ready();
    let mut body = Vec::new();
    let answer = server.stream_request("Start", &shell("true")).send();
    body.extend_from_slice(&answer.body);
    let text = String::from_utf8_lossy(&body);
    assert!(
        text.contains(r#"{"event":{"end":{"exitCode":0,"exited":true,"status":"exit status 0"}}}"#),
        "{text}"
    );
}

#[test]
fn a_process_killed_by_a_signal_says_so() {
    let server = Server::ready();
    let end = server.run("kill -9 $$").end.unwrap();
    assert_eq!((end["exitCode"].as_i64(), end["status"].as_str()), (Some(-1), Some("signal: killed")));
    assert!(end.get("exited").is_none());
}

#[test]
fn the_reported_pid_is_the_program_itself() {
    let server = Server::ready();
    let finished = server.run("echo $$");
    assert_eq!(finished.text().trim(), finished.pid.to_string());
}

#[test]
fn the_default_user_is_user_with_all_its_groups() {
    let server = Server::ready();
    let output = server.run("id -u; id -g; id -G; echo $HOME $USER $LOGNAME; pwd; umask");
    let home = server.text_path("home");
    let expected =
        format!("{USER_ID}\n{USER_ID}\n{USER_ID} {EXTRA_GROUP_ID}\n{home} user user\n{home}\n0022\n");
    assert_eq!(output.text(), expected);
}

#[test]
fn the_user_in_the_authorization_header_wins_and_an_unknown_one_is_refused() {
    let server = Server::ready();
    let run_as = |credentials: &str| {
        let request = server.stream_request("Start", &shell("id -un"));
        request.header("Authorization", &format!("Basic {credentials}")).open().finish()
    };
    // "root:" and "root123:"
    assert_eq!(run_as("cm9vdDo=").text(), "root\n");
    let refused = run_as("cm9vdDEyMzo=");
    assert_eq!(refused.error.as_ref().unwrap()["code"], "unauthenticated");
    assert_eq!(refused.error.unwrap()["message"], "invalid username: 'root123'");
}

#[test]
fn commands_run_with_a_clean_process_state() {
    let server = Server::ready();
    let output = server.run(
        "cat /proc/self/oom_score_adj; ulimit -n; grep -E 'SigBlk|SigIgn' /proc/self/status; ls /proc/self/fd; \
         ps -o pgid=,sid= -p $$",
    );
    let lines: Vec<&str> = output.text().lines().collect();
    assert_eq!(lines[0], "100");
    let own_limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap();
    assert_eq!(lines[1], own_limit.to_string(), "the daemon's own limit leaks");
    assert_eq!(lines[2], "SigBlk:\t0000000000000000");
    let ignored = u64::from_str_radix(lines[3].strip_prefix("SigIgn:\t").unwrap(), 16).unwrap();
    assert_eq!(ignored & (1 << (libc::SIGPIPE - 1)), 0, "the daemon's ignored SIGPIPE leaks");
    // Standard streams, and the directory ls reads.
    assert_eq!(lines[4..8], ["0", "1", "2", "3"]);
    let ids: Vec<u32> = lines[8].split_whitespace().map(|id| id.parse().unwrap()).collect();
    assert_eq!(ids, [output.pid, output.pid]);
}

#[test]
fn programs_can_open_their_standard_streams_by_name() {
    let server = Server::ready();
    let output = server.run("echo one > /dev/stdout; echo two > /dev/stderr");
    assert_eq!((output.text(), output.stderr.as_slice()), ("one\n", &b"two\n"[..]));
}

#[test]
fn the_directory_is_the_asked_one_or_the_default_one_and_must_exist() {
    let server = Server::ready();
    std::fs::create_dir(server.path("home/sub")).unwrap();
    let start_in = |cwd: &str| {
        let message = json!({"process": {"cmd": "/bin/pwd", "cwd": cwd}, "stdin": false});
        server.stream_request("Start", &message).open().finish()
    };
    let home = server.text_path("home");
    for (cwd, expected) in
        [("/", "/"), ("~/sub", &format!("{home}/sub")), ("sub", &format!("{home}/sub")), ("", &home)]
    {
        assert_eq!(start_in(cwd).text().trim(), expected, "{cwd}");
    }
    let missing = start_in("/no/such/dir").error.unwrap();
    assert_eq!(missing, json!({"code": "invalid_argument", "message": "cwd '/no/such/dir' does not exist"}));
    let file = server.text_path("etc/passwd");
    assert_eq!(start_in(&file).error_code(), "invalid_argument");
    std::fs::create_dir(server.path("closed")).unwrap();
    rustix::fs::chmod(server.path("closed"), rustix::fs::Mode::RWXU).unwrap();
    assert_eq!(start_in(&server.text_path("closed")).error_code(), "permission_denied");

    let init = json!({"defaultWorkdir": "/usr"});
    assert_eq!(server.request("POST", "/init").json(&init).send().status, 204);
    assert_eq!(server.run("pwd").text(), "/usr\n");
}

#[test]
fn a_removed_directory_gives_the_error_and_the_daemon_goes_on() {
    let server = Server::ready();
    let work = server.text_path("home/work");
    std::fs::create_dir(&work).unwrap();
    let message = json!({"process": {"cmd": "/bin/sleep", "args": ["100"], "cwd": work}, "stdin": false});
    let mut running = server.stream_request("Start", &message).open();
    let pid = running.started();
    std::fs::remove_dir(&work).unwrap();
    let again = server.stream_request("Start", &message).open().finish();
    assert_eq!(again.error.unwrap()["message"], format!("cwd '{work}' does not exist"));
    server
        .succeed("process.Process/SendSignal", &json!({"process": {"pid": pid}, "signal": "SIGNAL_SIGKILL"}));
    assert_eq!(server.run("echo on").text(), "on\n");
}

#[test]
fn a_program_that_cannot_run_is_an_error_with_its_reason() {
    let server = Server::ready();
    let start = |cmd: &str| server.stream_request("Start", &json!({"process": {"cmd": cmd}})).open().finish();
    assert_eq!(start("/no/such/program").error.unwrap()["message"], "command '/no/such/program' not found");
    assert_eq!(start("no-such-program").error_code(), "invalid_argument");
    assert_eq!(start("/etc/passwd").error_code(), "invalid_argument");
    assert_eq!(start("").error_code(), "invalid_argument");
    assert_eq!(server.stream_request("Start", &json!({})).open().finish().error_code(), "invalid_argument");
    let huge = json!({"process": {"cmd": "/bin/echo", "args": ["x".repeat(3 << 20)]}});
    assert_eq!(server.stream_request("Start", &huge).open().finish().error_code(), "invalid_argument");
    let nul = json!({"process": {"cmd": "/bin/echo", "args": ["a\u{0}b"]}});
    assert_eq!(server.stream_request("Start", &nul).open().finish().error_code(), "invalid_argument");
}

#[test]
fn a_name_is_searched_in_the_path_of_the_command() {
    let server = Server::ready();
    let message = json!({"process": {"cmd": "echo", "args": ["found"]}, "stdin": false});
    assert_eq!(server.stream_request("Start", &message).open().finish().text(), "found\n");
    let message = json!({"process": {"cmd": "echo", "envs": {"PATH": "/nowhere"}}, "stdin": false});
    assert_eq!(server.stream_request("Start", &message).open().finish().error_code(), "invalid_argument");
}

#[test]
fn without_input_a_program_sees_its_end_and_by_default_it_stays_open() {
    let server = Server::ready();
    let finished = server.run("cat; echo done");
    assert_eq!(finished.text(), "done\n");

    let message = json!({"process": {"cmd": "/bin/cat"}});
    let mut stream = server.stream_request("Start", &message).open();
    let pid = stream.started();
    let send = |text: &str| {
        let bytes = text.bytes().map(|byte| format!("{byte:02x}")).collect::<String>();
        let base64 = base64_of(&bytes);
        server.succeed(
            "process.Process/SendInput",
            &json!({"process": {"pid": pid}, "input": {"stdin": base64}}),
        )
    };
    send("hello ");
    assert_eq!(stream.read_until("hello "), "hello ");
    send("中\n");
    assert_eq!(stream.read_until("\n"), "中\n");
    server.succeed("process.Process/CloseStdin", &select(pid));
    assert_eq!(stream.finish().exit_code(), 0);
}

/// Base64 of bytes given in hexadecimal.
fn base64_of(hexadecimal: &str) -> String {
    let digits: Vec<u8> = hexadecimal.bytes().collect();
    let bytes: Vec<u8> = digits
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect();
    let mut text = Vec::new();
    protocol::connect::json::append_base64(&bytes, &mut text);
    String::from_utf8(text).unwrap()
}

#[test]
fn input_larger_than_any_buffer_arrives_whole() {
    let server = Server::ready();
    let message = json!({"process": {"cmd": "/usr/bin/sha256sum"}});
    let mut stream = server.stream_request("Start", &message).open();
    let pid = stream.started();
    let mut base64 = Vec::new();
    protocol::connect::json::append_base64(&vec![7; 3 << 20], &mut base64);
    let input = json!({"process": {"pid": pid}, "input": {"stdin": String::from_utf8(base64).unwrap()}});
    server.succeed("process.Process/SendInput", &input);
    server.succeed("process.Process/CloseStdin", &select(pid));
    let expected = server.run("head -c 3145728 /dev/zero | tr '\\0' '\\7' | sha256sum");
    assert_eq!(stream.finish().text(), expected.text());
}

#[test]
fn input_of_the_wrong_kind_or_to_nobody_is_refused() {
    let server = Server::ready();
    let mut stream = server.start_shell("sleep 100");
    let pid = stream.started();
    let input = |pid: u32, kind: &str| json!({"process": {"pid": pid}, "input": {kind: "eA=="}});
    assert_eq!(server.fail("process.Process/SendInput", &input(pid, "stdin")).1, "internal");
    assert_eq!(server.fail("process.Process/SendInput", &input(pid, "pty")).1, "internal");
    assert_eq!(server.fail("process.Process/CloseStdin", &select(pid)).1, "internal");
    assert_eq!(server.fail("process.Process/SendInput", &input(4_000_000, "stdin")).1, "not_found");
    assert_eq!(server.fail("process.Process/Update", &select(4_000_000)).1, "not_found");
    server
        .succeed("process.Process/SendSignal", &json!({"process": {"pid": pid}, "signal": "SIGNAL_SIGKILL"}));
}

#[test]
fn an_input_nobody_reads_ends_at_the_callers_deadline() {
    let server = Server::ready();
    let message = json!({"process": {"cmd": "/bin/sleep", "args": ["100"]}});
    let mut stream = server.stream_request("Start", &message).open();
    let pid = stream.started();
    let mut base64 = Vec::new();
    protocol::connect::json::append_base64(&vec![7; 1 << 20], &mut base64);
    let input = json!({"process": {"pid": pid}, "input": {"stdin": String::from_utf8(base64).unwrap()}});
    let request =
        server.request("POST", "/process.Process/SendInput").header("Connect-Timeout-Ms", "300").json(&input);
    let answer = request.send();
    assert_eq!((answer.status, answer.to_json()["code"].as_str()), (504, Some("deadline_exceeded")));
    server
        .succeed("process.Process/SendSignal", &json!({"process": {"pid": pid}, "signal": "SIGNAL_SIGKILL"}));
}

#[test]
fn running_processes_are_listed_with_what_started_them() {
    let server = Server::ready();
    assert_eq!(server.succeed("process.Process/List", &json!({})), json!({}));
    let message = json!({
        "process": {"cmd": "/bin/sleep", "args": ["100"], "envs": {"A": "b"}, "cwd": "/"},
        "tag": "nap",
        "stdin": false,
    });
    let mut stream = server.stream_request("Start", &message).open();
    let pid = stream.started();
    let expected = json!({"processes": [{
        "config": {"cmd": "/bin/sleep", "args": ["100"], "envs": {"A": "b"}, "cwd": "/"}, "pid": pid, "tag": "nap",
    }]});
    assert_eq!(server.succeed("process.Process/List", &json!({})), expected);
    let signal = json!({"process": {"tag": "nap"}, "signal": "SIGNAL_SIGKILL"});
    server.succeed("process.Process/SendSignal", &signal);
    assert_eq!(server.succeed("process.Process/List", &json!({})), json!({}));
    assert_eq!(stream.finish().exit_code(), -1);
}

#[test]
fn after_a_kill_neither_the_process_nor_its_children_exist() {
    let server = Server::ready();
    let mut stream = server.start_shell("sleep 100 & echo $!; wait");
    let pid = stream.started();
    let child: u32 = stream.read_until("\n").trim().parse().unwrap();
    server
        .succeed("process.Process/SendSignal", &json!({"process": {"pid": pid}, "signal": "SIGNAL_SIGKILL"}));
    // Not even as a zombie: the very next command may look.
    assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
    eventually("the child is gone", || !is_alive(child));
    let end = stream.finish().end.unwrap();
    assert_eq!((end["exitCode"].as_i64(), end["status"].as_str()), (Some(-1), Some("signal: killed")));
    let again = server
        .fail("process.Process/SendSignal", &json!({"process": {"pid": pid}, "signal": "SIGNAL_SIGKILL"}));
    assert_eq!((again.0, again.1.as_str()), (404, "not_found"));
}

#[test]
fn a_termination_signal_can_be_handled() {
    let server = Server::ready();
    let mut stream =
        server.start_shell("trap 'echo bye; exit 7' TERM; echo ready; while :; do sleep 0.05; done");
    let pid = stream.started();
    stream.read_until("ready");
    server.succeed("process.Process/SendSignal", &json!({"process": {"pid": pid}, "signal": 15}));
    let finished = stream.finish();
    assert_eq!((finished.text(), finished.exit_code()), ("bye\n", 7));
    let wrong = json!({"process": {"pid": pid}, "signal": "SIGNAL_SIGHUP"});
    assert_eq!(server.fail("process.Process/SendSignal", &wrong).1, "invalid_argument");
}

#[test]
fn the_deadline_kills_the_whole_group_and_frees_its_port() {
    let server = Server::ready();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let script = format!("python3 -m http.server {port} --bind 127.0.0.1 & echo $!; sleep 100");
    let start = Instant::now();
    let stream = server.stream_request("Start", &shell(&script)).header("Connect-Timeout-Ms", "1500").open();
    let finished = stream.finish();
    assert_eq!(finished.error_code(), "deadline_exceeded");
    assert!(start.elapsed() >= Duration::from_millis(1500) && start.elapsed() < Duration::from_secs(5));
    let child: u32 = finished.text().trim().parse().unwrap();
    eventually("the server is gone", || !is_alive(child));
    std::net::TcpListener::bind(("127.0.0.1", port)).unwrap();
    assert_eq!(server.succeed("process.Process/List", &json!({})), json!({}));
}

#[test]
fn a_command_outlives_the_client_that_started_it() {
    let server = Server::ready();
    let marker = server.text_path("home/marker");
    let mut stream = server.start_shell(&format!("sleep 0.3; echo x > {marker}"));
    stream.started();
    drop(stream);
    eventually("the command has run to its end", || std::path::Path::new(&marker).exists());
}

#[test]
fn two_hundred_commands_run_at_the_same_time() {
    let server = Server::ready();
    let start = Instant::now();
    let streams: Vec<_> = (0..200)
        .map(|_| {
            server
                .stream_request(
                    "Start",
                    &json!({"process": {"cmd": "/bin/sleep", "args": ["2"]}, "stdin": false}),
                )
                .open()
        })
        .collect();
    for stream in streams {
        assert_eq!(stream.finish().exit_code(), 0);
    }
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
}
