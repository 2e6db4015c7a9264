//! Commands on a terminal.

use serde_json::{Value, json};

use crate::client::Stream;
use crate::server::Server;

fn start(server: &Server, cmd: &str, args: &[&str]) -> (Stream, u32) {
    let message = json!({
        "process": {"cmd": cmd, "args": args, "envs": {"TERM": "dumb", "PS1": "$ "}},
        "pty": {"size": {"cols": 80, "rows": 24}},
    });
    let mut stream = server.stream_request("Start", &message).open();
    let pid = stream.started();
    (stream, pid)
}

fn type_in(server: &Server, pid: u32, text: &str) -> Value {
    let mut base64 = Vec::new();
    protocol::connect::json::append_base64(text.as_bytes(), &mut base64);
    let base64 = String::from_utf8(base64).unwrap();
    server.succeed("process.Process/SendInput", &json!({"process": {"pid": pid}, "input": {"pty": base64}}))
}

#[test]
fn a_shell_on_a_terminal_sees_its_size_and_every_change_of_it() {
    let server = Server::ready();
    let (mut stream, pid) = start(&server, "/bin/sh", &["-i"]);
    type_in(&server, pid, "stty size; tty; id -u; echo end-$((1+1))\n");
    let output = stream.read_until("end-2");
    assert!(output.contains("24 80") && output.contains("/dev/pts/") && output.contains("12345"), "{output}");
    let size = json!({"process": {"pid": pid}, "pty": {"size": {"cols": 100, "rows": 30}}});
    server.succeed("process.Process/Update", &size);
    type_in(&server, pid, "stty size; echo end-$((2+2))\n");
    let output = stream.read_until("end-4");
    assert!(output.contains("30 100"), "{output}");
    type_in(&server, pid, "exit 3\n");
    assert_eq!(stream.finish().exit_code(), 3);
}

#[test]
fn the_terminal_belongs_to_the_user_and_controls_the_session() {
    let server = Server::ready();
    let (mut stream, pid) =
        start(&server, "/bin/sh", &["-c", "stat -c %U:%a $(tty) || stat -c %u:%a $(tty); exec sleep 100"]);
    let output = stream.read_until("\n");
    assert!(output.contains(":620"), "{output}");
    // Ctrl-C reaches the program through the controlling terminal.
    type_in(&server, pid, "\u{3}");
    assert_eq!(stream.finish().end.unwrap()["status"], "signal: interrupt");
}

#[test]
fn input_and_close_of_the_other_kind_are_refused() {
    let server = Server::ready();
    let (stream, pid) = start(&server, "/bin/cat", &[]);
    let select = json!({"process": {"pid": pid}});
    let input = json!({"process": {"pid": pid}, "input": {"stdin": "eA=="}});
    assert_eq!(server.fail("process.Process/SendInput", &input).1, "internal");
    assert_eq!(server.fail("process.Process/CloseStdin", &select).1, "internal");
    // Ctrl-D at the beginning of a line.
    type_in(&server, pid, "\u{4}");
    assert_eq!(stream.finish().exit_code(), 0);
    let mut plain = server.start_shell("sleep 100");
    let pid = plain.started();
    let size = json!({"process": {"pid": pid}, "pty": {"size": {"cols": 1, "rows": 1}}});
    assert_eq!(server.fail("process.Process/Update", &size).1, "internal");
    server
        .succeed("process.Process/SendSignal", &json!({"process": {"pid": pid}, "signal": "SIGNAL_SIGKILL"}));
}

#[test]
fn output_of_a_terminal_is_whole_and_in_events_of_at_most_16_kib() {
    let server = Server::ready();
    let (mut stream, _) = start(&server, "/usr/bin/seq", &["1", "20000"]);
    let mut bytes = 0;
    while let Some(event) = stream.next() {
        let length = event.data.and_then(|data| data.pty).map_or(0, |data| data.len());
        assert!(length <= 16 << 10);
        bytes += length;
    }
    // The terminal ends lines with two characters.
    let expected: usize = (1..=20_000).map(|number: u32| number.to_string().len() + 2).sum();
    assert_eq!(bytes, expected);
}
